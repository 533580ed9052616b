# SPDX-License-Identifier: Apache-2.0
"""Packages of the engine and of the toolkit by source and system."""

import re

import pytest
from ansible.module_utils.gpufleet.container_toolkit_error import ToolkitError
from ansible.module_utils.gpufleet.container_toolkit_packages import PACKAGES
from ansible.module_utils.gpufleet.container_toolkit_packages import apt_arguments as toolkit_arguments
from ansible.module_utils.gpufleet.docker_error import DockerError
from ansible.module_utils.gpufleet.docker_packages import (
    apt_arguments,
    engine_packages,
    refuse_other_source,
    release_train,
)
from ansible.module_utils.gpufleet.nvidia_packages import NEVER_UPGRADED as OF_THE_DRIVER

DEBIAN12 = {"ID": "debian", "VERSION_ID": "12"}
DEBIAN13 = {"ID": "debian", "VERSION_ID": "13"}
NOBLE = {"ID": "ubuntu", "VERSION_ID": "24.04"}


@pytest.mark.parametrize(
    ("source", "system", "names"),
    [
        ("vendor", NOBLE, ["docker-ce", "docker-ce-cli", "containerd.io", "docker-buildx-plugin"]),
        ("mirror", DEBIAN12, ["docker-ce", "docker-ce-cli", "containerd.io", "docker-buildx-plugin"]),
        ("distro", DEBIAN12, ["docker.io"]),
        ("distro", DEBIAN13, ["docker.io", "docker-cli"]),
        ("distro", NOBLE, ["docker.io"]),
    ],
)
def test_names(source: str, system: dict[str, str], names: list[str]) -> None:
    asked = apt_arguments(engine_packages(source, system), "28.5.1", False, False, [], False)
    assert [package["name"] for package in asked["packages"]] == names
    pinned = [package["name"] for package in asked["packages"] if "upstream" in package]
    assert pinned == [name for name in names if name in ("docker-ce", "docker-ce-cli", "docker.io", "docker-cli")]
    # Each is out of reach of unattended-upgrades.
    assert all(any(re.match(pattern, name) for pattern in asked["never_upgraded"]) for name in names)
    free = apt_arguments(engine_packages(source, system), None, False, False, [], False)
    assert all(set(package) == {"name"} for package in free["packages"])


def test_packages_of_the_other_source_are_named() -> None:
    packages = engine_packages("vendor", DEBIAN12)
    installed = {"docker.io": "20.10.24", "runc": "1.1.5", "docker-ce-rootless-extras": "x"}
    with pytest.raises(DockerError, match=r"docker\.io 20\.10\.24, runc 1\.1\.5") as caught:
        refuse_other_source(packages, "vendor", installed, replace=False)
    assert "docker_replace_packages" in caught.value.next_step
    assert refuse_other_source(packages, "vendor", installed, replace=True) == ["docker.io", "runc"]
    assert refuse_other_source(packages, "vendor", {"docker-ce": "5:28"}, replace=False) == []
    distro = engine_packages("distro", DEBIAN12)
    assert refuse_other_source(distro, "distro", {"docker-ce": "5:28", "runc": "1"}, replace=True) == ["docker-ce"]


def test_live_restore_reaches_within_a_train() -> None:
    assert release_train("28.5.1") == release_train("28.5.2") != release_train("28.4.0")
    assert release_train("20.10.24+dfsg1") == release_train("20.10.25+dfsg1")


def test_the_four_packages_of_the_toolkit() -> None:
    asked = toolkit_arguments("1.17.8", {}, upgrade=False, downgrade=False)
    assert asked["packages"] == [{"name": name, "upstream": "1.17.8"} for name in PACKAGES]
    for name in PACKAGES:
        assert any(re.match(pattern, name) for pattern in asked["never_upgraded"])
        # The driver's pattern leaves them alone: their versions have nothing to do with each other.
        assert not any(re.match(pattern, name) for pattern in OF_THE_DRIVER)


def test_four_packages_of_several_versions_need_a_word() -> None:
    installed = {**dict.fromkeys(PACKAGES, "1.18.2-1"), "libnvidia-container1": "1.17.8-1"}
    with pytest.raises(ToolkitError, match=r"libnvidia-container1 1\.17\.8") as caught:
        toolkit_arguments(None, installed, upgrade=False, downgrade=False)
    assert "packages.container_toolkit.version" in caught.value.next_step
    assert toolkit_arguments("1.18.2", installed, upgrade=True, downgrade=False)["upgrade"]
    assert "upstream" not in toolkit_arguments(None, dict.fromkeys(PACKAGES, "1.18.2-1"), False, False)["packages"][0]


@pytest.mark.parametrize("source", ["vendor", "distro"])
def test_an_engine_that_confines_containers_has_the_program_for_it(source: str) -> None:
    packages = engine_packages(source, {"ID": "debian", "VERSION_ID": "12"})
    plain, confined = (apt_arguments(packages, None, False, False, [], confines) for confines in (False, True))
    assert confined["packages"] == [*plain["packages"], {"name": "apparmor", "hold": False}]
