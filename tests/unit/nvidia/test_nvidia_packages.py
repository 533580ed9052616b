# SPDX-License-Identifier: Apache-2.0
"""Which packages make up the driver: by distribution, source, branch and flavour, compared with golden files.

Ubuntu cannot run here: its names are data, and what they come to is kept in golden/. After a change of the data make
them anew with GPUFLEET_WRITE_GOLDEN=1, and read the difference.
"""

import json
import os
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.gpufleet.nvidia_packages import (
    DriverPackagesError,
    Wish,
    apt_arguments,
    driver_packages,
    fabric_manager_package,
    newest_common_release,
    of_another_branch,
)

GOLDEN = Path(__file__).parent / "golden"
KERNELS = ["6.8.0-88-generic", "6.8.0-90-generic"]


def wish(**other: Any) -> Wish:
    return Wish(
        **{
            "source": "vendor",
            "branch": "580",
            "version": "580.105.08",
            "kernel_modules": "open",
            "modules_from": "dkms",
            "module_package": None,
            "fabric_manager": True,
            **other,
        }
    )


def arguments(distribution: str, wanted: Wish, **installed: str) -> "dict[str, Any]":
    packages = driver_packages(distribution, wanted, KERNELS)
    return apt_arguments(packages, wanted, {k.replace("_", "-"): v for k, v in installed.items()}, False, False)


MODULES = "linux-modules-nvidia-580-server-open-{kernel}"
CASES = {
    "ubuntu-vendor-open-580": ("ubuntu", wish()),
    "ubuntu-vendor-proprietary-575": ("ubuntu", wish(branch="575", version=None, kernel_modules="proprietary")),
    "ubuntu-distro-open-580-dkms": ("ubuntu", wish(source="distro")),
    "ubuntu-distro-open-580-prebuilt": (
        "ubuntu",
        wish(source="distro", version=None, modules_from="prebuilt", module_package=MODULES),
    ),
    "debian-vendor-open-580": ("debian", wish(source="mirror")),
    "debian-distro-open-dkms": ("debian", wish(source="distro", branch=None, version=None, fabric_manager=False)),
}


@pytest.mark.parametrize("case", CASES)
def test_the_arguments_are_those_of_the_golden_file(case: str) -> None:
    distribution, wanted = CASES[case]
    packages = driver_packages(distribution, wanted, KERNELS)
    found = {"packages": packages._asdict(), "apt_stack": arguments(distribution, wanted)}
    text = json.dumps(found, indent=1) + "\n"
    if os.environ.get("GPUFLEET_WRITE_GOLDEN"):
        (GOLDEN / f"{case}.json").write_text(text)
    assert text == (GOLDEN / f"{case}.json").read_text()


def test_every_golden_file_has_a_case() -> None:
    assert {file.stem for file in GOLDEN.iterdir()} == set(CASES)


@pytest.mark.parametrize(
    ("branch", "name"),
    [
        ("535", "nvidia-fabricmanager-535"),
        ("575", "nvidia-fabricmanager-575"),
        ("580", "nvidia-fabricmanager"),
        ("610", "nvidia-fabricmanager"),
    ],
)
def test_the_fabric_manager_lost_the_branch_in_its_name(branch: str, name: str) -> None:
    """Peers' item 19 (azhpc-images PR #456)."""
    assert fabric_manager_package(branch) == name


@pytest.mark.parametrize("source", ["vendor", "distro"])
@pytest.mark.parametrize("version", ["580.105.08", None])
def test_driver_and_fabric_manager_are_asked_for_in_one_version(source: str, version: "str | None") -> None:
    """Peers' items 18 and 23: a fabric manager that is added later follows the installed driver."""
    wanted = wish(source=source, version=version)
    first = driver_packages("ubuntu", wanted, KERNELS).of_release[0]
    found = apt_arguments(
        driver_packages("ubuntu", wanted, KERNELS), wanted, {first: "580.105.08-0ubuntu1"}, False, False
    )
    assert {entry.get("upstream") for entry in found["packages"]} == {"580.105.08"}
    assert any("fabricmanager" in entry["name"] for entry in found["packages"])


@pytest.mark.parametrize(
    ("distribution", "other", "said"),
    [
        ("debian", {"source": "distro"}, "Debian has no fabric manager"),
        ("ubuntu", {"source": "distro", "branch": None}, "Ubuntu's packages carry"),
        ("ubuntu", {"branch": None}, "source vendor needs"),
        ("ubuntu", {"modules_from": "prebuilt", "module_package": "x-{kernel}"}, "brings modules by dkms"),
        ("debian", {"source": "distro", "modules_from": "prebuilt", "module_package": "x"}, "{kernel} in it"),
    ],
)
def test_what_no_package_serves_is_refused(distribution: str, other: "dict[str, Any]", said: str) -> None:
    with pytest.raises(DriverPackagesError, match=".") as raised:
        driver_packages(distribution, wish(**other), KERNELS)
    assert said in str(raised.value) and "packages.nvidia_driver" in f"{raised.value}{raised.value.next_step}"


def test_what_is_installed_stays_without_a_version_and_moves_with_an_upgrade() -> None:
    wanted = wish(version=None, fabric_manager=False)
    packages = driver_packages("ubuntu", wanted, KERNELS)
    installed = {"nvidia-open": "580.95.05-0ubuntu1"}
    kept = apt_arguments(packages, wanted, installed, False, False)
    assert kept["packages"] == [{"name": "nvidia-open", "upstream": "580.95.05"}] and kept["upgrade"] is False
    moved = apt_arguments(packages, wanted, installed, True, False)
    assert moved["packages"] == [{"name": "nvidia-open"}] and moved["upgrade"] is True
    assert moved["pins"][0]["version"] == "580.*-*", "not out of its branch"


def test_a_downgrade_is_allowed_by_name_only() -> None:
    wanted = wish()
    packages = driver_packages("ubuntu", wanted, KERNELS)
    assert apt_arguments(packages, wanted, {}, True, False)["downgrade"] == []
    back = apt_arguments(packages, wanted, {}, False, True)
    assert "nvidia-*" in back["downgrade"] and back["upgrade"] is True


def test_an_upgrade_may_take_out_the_old_branch_and_nothing_else_may() -> None:
    """Peers' item 7: a change of branch with its companions in one transaction."""
    wanted = wish()
    packages = driver_packages("ubuntu", wanted, KERNELS)
    installed = dict.fromkeys(
        ["nvidia-fabricmanager-550", "libnvidia-compute-550", "nvidia-driver-pinning-550", "nvidia-container-toolkit"],
        "550.1-1",
    )
    assert apt_arguments(packages, wanted, installed, False, False)["may_remove"] == ["nvidia-driver-pinning-550"]
    assert apt_arguments(packages, wanted, installed, True, False)["may_remove"] == [
        "libnvidia-compute-550",
        "nvidia-driver-pinning-550",
        "nvidia-fabricmanager-550",
    ]


def test_a_change_of_flavour_may_take_out_the_other_one() -> None:
    found = arguments("ubuntu", wish(), cuda_drivers="580.95.05-1")
    assert found["may_remove"] == ["cuda-drivers"]


def test_packages_of_another_branch_are_told_by_their_names() -> None:
    names = ["libnvidia-compute-550", "nvidia-utils-580-server", "nvidia-open-550", "cuda-drivers-550", "nvidia-smi"]
    assert of_another_branch(names, "580") == ["libnvidia-compute-550", "nvidia-open-550", "cuda-drivers-550"]
    assert of_another_branch(names, None) == []


def test_the_newest_release_that_all_packages_have() -> None:
    """Debian 12: a security update of nvidia-smi without one of the modules."""
    offers = {
        "nvidia-smi": ["535.309.01-1~deb12u1", "535.261.03-1"],
        "nvidia-open-kernel-dkms": ["535.261.03-1", "535.247.01-1"],
    }
    assert newest_common_release(offers) == "535.261.03"
    assert newest_common_release({**offers, "libcuda1": []}) is None
    assert newest_common_release({"a": ["535.9-1", "535.10-1"]}) == "535.10"
    assert newest_common_release({}) is None
