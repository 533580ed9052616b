# SPDX-License-Identifier: Apache-2.0
"""apt_stack with the real apt of Debian 12 and 13, on stand-ins of the vendors' packages (tests/vendor_repository)."""

import json
import re
from typing import Any

import pytest

from tests.integration.gpu_stack.conftest import ADDRESS, DEBIAN_SOURCES, AptNode
from tests.vendor_repository.stand_ins import (
    BEFORE,
    BUILD_FAILS,
    DRIVER,
    FUTURE_KERNEL,
    NEW,
    NEXT_BRANCH,
    OLD,
    WANTS_A_KERNEL,
    WITHOUT_FABRIC_MANAGER,
)

pytestmark = pytest.mark.container
ALL = [*DRIVER, "nvidia-fabricmanager"]
NEVER_UPGRADED = ["nvidia-", "libnvidia-", "libcuda1$"]
MAY_REMOVE = ["nvidia-driver-pinning-*"]


def stack(version: str, **other: Any) -> dict[str, Any]:
    """The driver as the role asks for it."""
    return {
        "first": [f"nvidia-driver-pinning-{version}"],
        "packages": [{"name": name, "upstream": version} for name in ("nvidia-open", "nvidia-fabricmanager")],
        "never_upgraded": NEVER_UPGRADED,
        "may_remove": MAY_REMOVE,
        **other,
    }


def versions(node: AptNode) -> set[str]:
    """Versions of driver, libraries and fabric manager; one, where all is well."""
    return {node.version(name) for name in ALL}


def succeeded(answer: dict[str, Any]) -> dict[str, Any]:
    assert not answer.get("failed"), answer
    assert answer["kernels_before"] == answer["kernels_after"]
    return answer


def refused(node: AptNode, answer: dict[str, Any], before: str, *expected: str) -> None:
    """The run failed, says each text, and left the node as it was."""
    assert answer.get("failed") and answer["next_step"], answer
    for text in expected:
        assert text in answer["msg"], answer
    assert node.state() == before


def test_installs_pins_and_holds_what_check_mode_said_and_a_second_run_changes_nothing(node: AptNode) -> None:
    """Beside Debian's own package lists, which a fresh node has not read yet."""
    node.sh(f"cp {DEBIAN_SOURCES} /etc/apt/sources.list; rm -rf /var/lib/apt/lists/*")
    before = node.state()
    planned = succeeded(node.apply(check=True, **stack(OLD)))
    assert planned["changed"] and node.state() == before
    # the pins of the package that comes first count in the plan already: nvidia-open would take the newest branch
    assert f"install libcuda1 {OLD}-1" in planned["plan"], planned
    done = succeeded(node.apply(**stack(OLD)))
    assert sorted(done["plan"]) == sorted(planned["plan"]) and done["installed"] == planned["installed"]
    assert versions(node) == {f"{OLD}-1"}
    assert node.held() == sorted([*ALL, f"nvidia-driver-pinning-{OLD}"])
    assert f"Candidate: {OLD}-1" in node.sh("apt-cache policy nvidia-open")
    assert "/etc/apt/keyrings/gpufleet-nvidia-driver.asc" in node.sh("cat /etc/apt/sources.list.d/*")
    before = node.state()
    for check in (True, False):
        again = succeeded(node.apply(check=check, **stack(OLD)))
        assert not again["changed"] and again["plan"] == [], again
    assert node.state() == before
    node.sh("systemctl stop vendor")
    again = node.apply(**stack(OLD))
    node.serve()
    assert not succeeded(again)["changed"], "a converged node asks no mirror"


def test_an_upgrade_has_to_be_asked_for_lifts_the_holds_and_sets_them_again(node: AptNode) -> None:
    succeeded(node.apply(**stack(OLD)))
    before = node.state()
    refused(node, node.apply(**stack(NEW)), before, f"upgrade nvidia-open {OLD}-1 -> {NEW}-1", "has to be asked for")
    done = succeeded(node.apply(upgrade=True, **stack(NEW)))
    assert done["before"]["nvidia-open"] == f"{OLD}-1" and done["installed"]["nvidia-open"] == f"{NEW}-1"
    assert done["removed"] == [f"nvidia-driver-pinning-{OLD}"]
    assert versions(node) == {f"{NEW}-1"}
    assert node.held() == sorted([*ALL, f"nvidia-driver-pinning-{NEW}"])
    assert not succeeded(node.apply(upgrade=True, **stack(NEW)))["changed"]


def test_a_downgrade_is_refused_and_goes_by_name(node: AptNode) -> None:
    succeeded(node.apply(**stack(NEW)))
    before = node.state()
    answer = node.apply(upgrade=True, **stack(OLD))
    refused(node, answer, before, "this would be a downgrade", f"nvidia-open {NEW}-1 -> {OLD}-1")
    assert "nvidia-fabricmanager" in answer["next_step"]
    succeeded(node.apply(**stack(OLD, downgrade=["nvidia-*", "lib*"])))
    assert versions(node) == {f"{OLD}-1"} and set(ALL) < set(node.held())


def test_a_fabric_manager_of_another_version_is_refused(node: AptNode) -> None:
    succeeded(node.apply(**stack(NEW)))
    before = node.state()
    answer = node.apply(upgrade=True, **stack(WITHOUT_FABRIC_MANAGER))
    offered = f"{NEXT_BRANCH}-1, {NEW}-1, {OLD}-1"
    refused(node, answer, before, f"nvidia-fabricmanager {WITHOUT_FABRIC_MANAGER} is not offered (offered: {offered})")


def test_another_kernel_is_refused(node: AptNode) -> None:
    before = node.state()
    answer = node.apply(packages=[{"name": "nvidia-open", "upstream": WANTS_A_KERNEL}])
    # nothing keeps apt from the newest branch here, so it is told what belongs together
    succeeded(answer)
    node.reset()
    packages = [{"name": name, "upstream": WANTS_A_KERNEL} for name in DRIVER]
    answer = node.apply(packages=packages)
    refused(node, answer, before, "would bring another kernel", f"install linux-image-{FUTURE_KERNEL} 6.99.1-1")


def upgrade_unattended(node: AptNode) -> set[str]:
    """Run the real unattended-upgrade, for which the vendor's packages are among the allowed origins."""
    # the section of unattended-upgrades is a list: this adds to Debian's own origins
    origins = 'Unattended-Upgrade::Origins-Pattern { "origin=NVIDIA"; };'
    node.sh(f"apt-get update >&2; echo '{origins}' >/etc/apt/apt.conf.d/99test-origins; unattended-upgrade --verbose")
    return versions(node)


def test_holds_and_blacklist_keep_each_package_under_a_real_unattended_upgrade(node: AptNode) -> None:
    succeeded(node.apply(**stack(OLD)))
    kept = {f"{OLD}-1"}
    assert upgrade_unattended(node) == kept
    # Without any pin, each of the two keeps them by itself, the libraries that nobody named too.
    node.sh(
        "set -e; rm /etc/apt/preferences.d/*; mv /etc/apt/apt.conf.d/52gpufleet-nvidia-driver /root/; "
        "! apt-cache policy nvidia-open | grep -q 'Candidate: 580'"
    )
    assert upgrade_unattended(node) == kept
    held = " ".join(node.held())
    node.sh(f"set -e; mv /root/52gpufleet-nvidia-driver /etc/apt/apt.conf.d/; apt-mark unhold {held} >&2")
    assert upgrade_unattended(node) == kept
    # Without either it really would have moved them.
    node.sh("rm /etc/apt/apt.conf.d/52gpufleet-nvidia-driver")
    assert upgrade_unattended(node) == {f"{NEXT_BRANCH}-1"}


@pytest.mark.parametrize(
    ("fault", "expected"),
    [
        ("wrong key", "is not signed with the key of the profile"),
        ("expired key", "is signed with a key that has expired"),
        ("old lists", "is out of date"),
        ("no server", "cannot be read"),
        ("no repository", "cannot be read"),
        ("other key file", "has SHA-256"),
        ("no such version", f"nvidia-open 580.1.2 is not offered (offered: {NEXT_BRANCH}-1, {WANTS_A_KERNEL}-1, "),
        ("no such package", "nvidia-opne is not known"),
    ],
)
def test_what_is_wrong_with_the_source_is_told_and_nothing_is_altered(node: AptNode, fault: str, expected: str) -> None:
    cuda = node.repository("cuda")
    arguments: dict[str, Any] = {
        "wrong key": {"repository": node.repository("cuda", key="other", key_url=f"{ADDRESS}/other.asc")},
        "expired key": {"repository": node.repository("expired")},
        "old lists": {"repository": node.repository("stale")},
        "no server": {"repository": {**cuda, "uri": "http://127.0.0.1:9/cuda/"}},
        "no repository": {"repository": {**cuda, "uri": f"{ADDRESS}/nowhere/"}},
        "other key file": {"repository": {**cuda, "key_sha256": "0" * 64}},
        "no such version": {"packages": [{"name": "nvidia-open", "upstream": "580.1.2"}]},
        "no such package": {"packages": [{"name": "nvidia-opne", "upstream": OLD}]},
    }[fault]
    before = node.state()
    refused(node, node.apply(**{**stack(OLD), "first": [], **arguments}), before, expected, "Nothing was changed")


def test_a_lock_that_somebody_holds_is_waited_for_and_named(node: AptNode) -> None:
    hold = (
        "import fcntl, time; lock = open('/var/lib/dpkg/lock-frontend', 'a'); fcntl.lockf(lock, fcntl.LOCK_EX); "
        "print('locked', flush=True); time.sleep({})"
    )

    def start(seconds: float) -> None:
        node.sh(
            "systemctl stop holder 2>/dev/null; systemctl reset-failed; "
            f'systemd-run --quiet --unit=holder python3 -c "{hold.format(seconds)}"; '
            "until journalctl --unit=holder --output=cat --boot | tail -1 | grep -q locked; do sleep 0.1; done"
        )

    start(600)
    before = node.state()
    answer = node.apply(lock_timeout_s=1, **stack(OLD))
    pid = node.sh("systemctl show --property=MainPID --value holder").strip()
    refused(node, answer, before, "apt is in use: ", "python3 -c", f"(pid {pid}, /var/lib/dpkg/lock-frontend)")
    start(4)
    succeeded(node.apply(lock_timeout_s=60, **stack(OLD)))


def test_what_an_interrupted_run_left_is_finished_or_explained(node: AptNode) -> None:
    node.sh(f"touch {BUILD_FAILS}")
    answer = node.apply(**stack(OLD))
    assert answer["failed"] and "nvidia-kernel-open-dkms" in answer["msg"], answer
    assert node.sh("dpkg --audit") != ""
    answer = node.apply(**stack(OLD))
    assert answer["failed"] and "dpkg cannot finish what an interrupted run left" in answer["msg"], answer
    assert "Bad return status for module build" in answer["msg"]
    node.sh(f"rm {BUILD_FAILS}")
    done = succeeded(node.apply(**stack(OLD)))
    assert done["plan"][0].startswith("dpkg --configure -a, since an earlier run was interrupted (")
    assert versions(node) == {f"{OLD}-1"} and node.sh("dpkg --audit") == ""
    assert not succeeded(node.apply(**stack(OLD)))["changed"]


def test_a_full_disk_stops_the_download_before_anything_is_altered(node: AptNode) -> None:
    node.sh(
        "mkdir -p /dev/shm/archives/partial; "
        "echo 'Dir::Cache::Archives \"/dev/shm/archives\";' >/etc/apt/apt.conf.d/99test-archives; "
        "dd if=/dev/zero of=/dev/shm/filler bs=64k 2>/dev/null; truncate --size=-100k /dev/shm/filler"
    )
    before = node.state()
    try:
        answer = node.apply(**stack(OLD))
    finally:
        node.sh("rm /dev/shm/filler")
    refused(node, answer, before, "the node's disk is full", "Nothing was changed")
    succeeded(node.apply(**stack(OLD)))


def test_a_mirror_alone_serves_and_nothing_else_is_asked(node: AptNode) -> None:
    mirror = {"uri": f"{ADDRESS}/mirror", "suites": ["./"], "key_url": "file:/srv/vendor/other-name.asc"}
    node.sh("cp /srv/vendor/mirror/key.asc /srv/vendor/other-name.asc; journalctl --rotate --vacuum-time=1s >&2")
    succeeded(node.apply(**stack(OLD, repository={**mirror, "key_sha256": node.keys["mirror"]})))
    assert versions(node) == {f"{OLD}-1"}
    asked = re.findall(r'"(?:GET|HEAD) (\S+)', node.sh("journalctl --unit=vendor --output=cat"))
    assert asked and all(path.startswith("/mirror/") for path in asked), asked


def test_the_same_repository_in_another_file_is_taken_out_or_named(node: AptNode) -> None:
    """Bug 096: two sources with different keys keep apt from reading any."""
    listed = f"deb [signed-by=/usr/share/keyrings/cuda.gpg] {ADDRESS}/cuda /\n# a note\ndeb {ADDRESS}/doca ./\n"
    path = "/etc/apt/sources.list.d/cuda.list"
    node.sh(f"printf %s '{listed}' >{path}")
    twice = f"Types: deb\nURIs: {ADDRESS}/cuda/\nSuites: /\nSigned-By: /other\n"
    node.sh(f"printf %s '{twice}' >/etc/apt/sources.list.d/x.sources")
    assert "Conflicting values set for option Signed-By" in node.sh("apt-get update 2>&1", check=False)
    done = succeeded(node.apply(**stack(OLD)))
    assert f"{path}, line 1" in json.dumps(done["warnings"]), done
    assert node.sh(f"cat {path}") == f"# a note\ndeb {ADDRESS}/doca ./\n"
    assert node.sh("ls /etc/apt/sources.list.d").split() == ["cuda.list", "gpufleet-nvidia-driver.sources"]
    assert not succeeded(node.apply(**stack(OLD)))["changed"]

    node.reset()
    both = f"Types: deb\nURIs: {ADDRESS}/cuda/ {ADDRESS}/doca/\nSuites: /\n"
    node.sh(f"printf %s '{both}' >/etc/apt/sources.list.d/both.sources")
    before = node.state()
    answer = node.apply(**stack(OLD))
    refused(node, answer, before, "/etc/apt/sources.list.d/both.sources, line 1", "together with other repositories")


def test_a_negative_pin_of_another_file_is_named(node: AptNode) -> None:
    """Bug 101: apt says no more than that there is no candidate."""
    path = "/etc/apt/preferences.d/cuda-repository-pin-600"
    node.sh(f"printf 'Package: *fabricmanager*\nPin: version *\nPin-Priority: -1\n' >{path}")
    before = node.state()
    for packages in (
        [{"name": "nvidia-fabricmanager", "upstream": OLD}],
        [{"name": "nvidia-fabricmanager"}],
        [{"name": "nvidia-fabricmanager", "version": f"{OLD}-1"}],
    ):
        answer = node.apply(packages=packages)
        refused(node, answer, before, f"pinned below zero by {path}, line 1 (Package: *fabricmanager*")
    node.sh(f"printf 'Package: libnvidia-ml1\nPin: version *\nPin-Priority: -1\n' >{path}")
    before = node.state()
    answer = node.apply(**stack(OLD))
    refused(node, answer, before, f"libnvidia-ml1 is pinned out by {path}, line 1")


def test_held_packages_of_another_branch_are_named_and_go_by_name_in_one_transaction(node: AptNode) -> None:
    """Bug 097, NVIDIA/ansible-role-nvidia-driver#33."""
    branch = {"name": "other", "packages": [{"name": "nvidia-open-570", "version": f"{BEFORE}-1"}]}
    succeeded(node.apply(**branch))
    node.sh("apt-mark hold libnvidia-compute-570 >&2; rm /etc/apt/sources.list.d/gpufleet-other.sources")
    before = node.state()
    # the operator's own hold, on what is not of this stack
    answer = node.apply(**stack(OLD, never_upgraded=["nvidia-open$"]))
    refused(node, answer, before, "apt sees no way", "libnvidia-compute-570 is on hold and not part of this stack")
    assert "apt-mark unhold libnvidia-compute-570" in answer["next_step"]
    refused(node, node.apply(**stack(OLD)), before, "apt would remove other packages", "remove libnvidia-compute-570")
    gone = ["nvidia-open-570", "nvidia-driver-570-open", "libnvidia-compute-570"]
    done = succeeded(node.apply(**stack(OLD, may_remove=gone)))
    assert sorted(done["removed"]) == sorted(gone) and versions(node) == {f"{OLD}-1"}


def test_doca_keeps_its_release_together_and_what_conflicts_stays_out(node: AptNode) -> None:
    """The flat repository's newest release, and its own dkms, must not come in with an older one."""
    doca = {
        "name": "rdma",
        "repository": node.repository("doca", suites=["./"]),
        "packages": [{"name": "doca-ofed", "upstream": "3.1.0"}],
        "keep_out": ["dkms", "mft*"],
        "never_upgraded": ["doca-", "mlnx-", "rdma-core$", "ibverbs-", "lib(ibverbs|rdmacm)", "ofed-", "infiniband-"],
    }
    succeeded(node.apply(**doca))
    assert node.version("rdma-core") == node.version("libibverbs1") == "2507mlnx58-1.2507097"
    assert node.version("mlnx-ofed-kernel-dkms") == "25.07.OFED.25.07.0.9.7.1-1"
    assert "Candidate: (none)" in node.sh("apt-cache policy dkms")
    doca["packages"] = [{"name": "doca-ofed", "upstream": "3.2.1"}]
    succeeded(node.apply(upgrade=True, **doca))
    assert node.version("rdma-core") == "2510mlnx58-1.2510171" and "ibverbs-providers" in node.held()
    assert not succeeded(node.apply(upgrade=True, **doca))["changed"], json.dumps(doca)
