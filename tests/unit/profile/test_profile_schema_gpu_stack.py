# SPDX-License-Identifier: Apache-2.0
"""The profile's description of driver, RDMA stack and peer memory: what cannot be installed or cannot work together is
refused with place, expectation and hint."""

import copy
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible.module_utils.gpufleet.profile_schema import validate

PROFILES = Path(__file__).resolve().parents[3] / "profiles"
DRIVER, RDMA = "packages.nvidia_driver", "packages.rdma"
REPOSITORY = {
    "uri": "http://mirror.example/cuda",
    "suites": ["./"],
    "components": [],
    "key_url": "http://mirror.example/key.asc",
    "key_sha256": "0" * 64,
}
OF_DISTRO: dict[str, Any] = {f"{DRIVER}.source": "distro", f"{DRIVER}.repository": None}


def changed(changes: dict[str, Any], name: str = "xe9680-h100") -> dict[str, Any]:
    """A shipped profile with some keys set."""
    profile: dict[str, Any] = copy.deepcopy(yaml.safe_load((PROFILES / f"{name}.yml").read_text()))
    for path, value in changes.items():
        node: Any = profile
        *parents, last = path.split(".")
        for part in parents:
            node = node[part]
        node[last] = value
    return profile


# changes, then the problem's path, expected, found, and a piece of its hint
REFUSED: dict[str, tuple[dict[str, Any], str, str, str, str]] = {
    "driver: vendor without repository": (
        {f"{DRIVER}.repository": None},
        f"{DRIVER}.repository",
        "since packages.nvidia_driver.source is vendor",
        "null",
        "node_profile_overrides_fleet",
    ),
    "driver: mirror without repository": (
        {f"{DRIVER}.source": "mirror", f"{DRIVER}.repository": None},
        f"{DRIVER}.repository",
        "is mirror",
        "null",
        "",
    ),
    "rdma: vendor without repository": ({f"{RDMA}.repository": None}, f"{RDMA}.repository", "is vendor", "null", ""),
    "driver: distro with a repository": (
        {f"{DRIVER}.source": "distro"},
        f"{DRIVER}.repository",
        "null, since",
        "a section",
        "to mirror",
    ),
    "rdma: distro with a repository": (
        {f"{RDMA}.source": "distro"},
        f"{RDMA}.repository",
        "null, since",
        "a section",
        "packages.rdma.source to mirror",
    ),
    "driver: vendor without branch": ({f"{DRIVER}.branch": None}, f"{DRIVER}.branch", "is vendor", "null", '"580"'),
    "driver: branch as a number": ({f"{DRIVER}.branch": 580}, f"{DRIVER}.branch", "first number", "580", "in quotes"),
    "driver: version of another branch": (
        {f"{DRIVER}.version": "570.172.08"},
        f"{DRIVER}.version",
        "of branch 580",
        "570.172.08",
        "both together",
    ),
    "driver: prebuilt without a package": (
        {**OF_DISTRO, f"{DRIVER}.modules_from": "prebuilt"},
        f"{DRIVER}.module_package",
        "{kernel}",
        "null",
        "each installed kernel",
    ),
    "driver: prebuilt for no kernel in particular": (
        {**OF_DISTRO, f"{DRIVER}.modules_from": "prebuilt", f"{DRIVER}.module_package": "nvidia-modules"},
        f"{DRIVER}.module_package",
        "{kernel}",
        "'nvidia-modules'",
        "each installed kernel",
    ),
    "driver: prebuilt with the vendor's packages": (
        {f"{DRIVER}.modules_from": "prebuilt", f"{DRIVER}.module_package": "nvidia-modules-{kernel}"},
        f"{DRIVER}.modules_from",
        "dkms, since packages.nvidia_driver.source is vendor",
        "prebuilt",
        "with source distro",
    ),
    "driver: the profiling option twice": (
        {f"{DRIVER}.module_options": {"NVreg_RestrictProfilingToAdminUsers": "1"}},
        f"{DRIVER}.module_options.NVreg_RestrictProfilingToAdminUsers",
        "a key of its own",
        "1",
        "profiling_for_all_users",
    ),
    "driver: a module option as a number": (
        {f"{DRIVER}.module_options": {"NVreg_EnableGpuFirmware": 0}},
        f"{DRIVER}.module_options.NVreg_EnableGpuFirmware",
        "a value without blanks",
        "0",
        "in quotes",
    ),
    "driver: a module option with a blank": (
        {f"{DRIVER}.module_options": {"NVreg_X": "1 NVreg_Y=2"}},
        f"{DRIVER}.module_options.NVreg_X",
        "without blanks",
        "NVreg_Y=2",
        "",
    ),
    "driver: misspelt modules": (
        {f"{DRIVER}.kernel_modules": "opn"},
        f"{DRIVER}.kernel_modules",
        "one of open",
        "'opn'",
        "'open'?",
    ),
    "repository: no address": (
        {f"{RDMA}.repository.uri": "mirror.example/doca"},
        f"{RDMA}.repository.uri",
        "https://",
        "'mirror.example/doca'",
        "",
    ),
    "repository: no suite": ({f"{RDMA}.repository.suites": []}, f"{RDMA}.repository.suites", "at least 1", "empty", ""),
    "repository: flat with components": (
        {f"{RDMA}.repository.components": ["main"]},
        f"{RDMA}.repository.components",
        "an empty list, since the suite ends in /",
        "main",
        "apt refuses",
    ),
    "repository: a suite without components": (
        {f"{RDMA}.repository.suites": ["stable"]},
        f"{RDMA}.repository.components",
        "at least one component",
        "an empty list",
        "end the suite in /",
    ),
    "repository: flat and not": (
        {f"{RDMA}.repository.suites": ["./", "stable"]},
        f"{RDMA}.repository.suites",
        "all end in /",
        "./, stable",
        "",
    ),
    "repository: a key that nothing vouches for": (
        {f"{RDMA}.repository": {**REPOSITORY, "key_sha256": None}},
        f"{RDMA}.repository.key_sha256",
        "since key_url is no https address",
        "null",
        "nothing else vouches",
    ),
    "repository: a short hash": (
        {f"{RDMA}.repository.key_sha256": "abc"},
        f"{RDMA}.repository.key_sha256",
        "64 lower-case",
        "'abc'",
        "",
    ),
    "rdma: version with the package's revision": (
        {f"{RDMA}.version": "3.1.0-091000"},
        f"{RDMA}.version",
        "without the package's revision",
        "3.1.0-091000",
        "",
    ),
    "peer memory by DMA-BUF with proprietary modules": (
        {"platform.gpu_peer_memory": "dma_buf", f"{DRIVER}.kernel_modules": "proprietary"},
        "platform.gpu_peer_memory",
        "nvidia_peermem or none",
        "dma_buf",
        "only the open kernel modules",
    ),
    "peer memory without a driver": (
        {f"{DRIVER}.manage": False, "platform.gpu": None},
        "platform.gpu_peer_memory",
        "none, since",
        "nvidia_peermem",
        "without the NVIDIA driver",
    ),
}


@pytest.mark.parametrize("case", REFUSED.values(), ids=REFUSED)
def test_what_does_not_fit_together_is_refused(case: tuple[dict[str, Any], str, str, str, str]) -> None:
    changes, path, expected, found, hint = case
    (problem,) = validate(changed(changes))
    assert problem.path == path
    assert expected in problem.expected
    assert found in problem.found
    assert hint in problem.hint


TAKEN: dict[str, dict[str, Any]] = {
    "a mirror with a key of one's own": {f"{DRIVER}.source": "mirror", f"{DRIVER}.repository": REPOSITORY},
    "a file repository": {
        f"{RDMA}.repository": {**REPOSITORY, "uri": "file:/srv/doca", "key_url": "file:/srv/doca/key.asc"}
    },
    "suites with components": {
        f"{DRIVER}.repository": {**REPOSITORY, "suites": ["stable"], "components": ["main", "cuda"]}
    },
    "a version of the branch": {f"{DRIVER}.version": "580.105.08"},
    "the distribution's driver without a branch": {
        f"{DRIVER}.source": "distro",
        f"{DRIVER}.repository": None,
        f"{DRIVER}.branch": None,
        f"{DRIVER}.version": "535.261.03",
    },
    # somebody else's driver: what would install it is not read
    "a driver that is not managed": {f"{DRIVER}.manage": False, f"{DRIVER}.repository": None, f"{DRIVER}.branch": None},
    "DMA-BUF with the open modules": {"platform.gpu_peer_memory": "dma_buf"},
    "no peer memory, no driver": {
        "platform.gpu_peer_memory": "none",
        f"{DRIVER}.manage": False,
        "platform.gpu": None,
    },
    "prebuilt modules": {
        **OF_DISTRO,
        f"{DRIVER}.modules_from": "prebuilt",
        f"{DRIVER}.module_package": "nvidia-{kernel}",
    },
}


@pytest.mark.parametrize("changes", TAKEN.values(), ids=TAKEN)
def test_what_fits_together_is_taken(changes: dict[str, Any]) -> None:
    assert validate(changed(changes)) == []


@pytest.mark.parametrize("section", [DRIVER, RDMA, f"{DRIVER}.repository", f"{RDMA}.repository"])
def test_rules_say_nothing_of_keys_that_are_missing(section: str) -> None:
    """An empty section is told by its missing keys alone."""
    for problem in validate(changed({section: {}})):
        assert problem.found == "nothing (the key is missing)", problem


def test_a_driver_without_gpus_is_taken() -> None:
    """The lab installs the driver although it demands no GPU."""
    assert validate(changed({}, "lab")) == []
    assert changed({}, "lab")["platform"]["gpu"] is None
