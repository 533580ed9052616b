# SPDX-License-Identifier: Apache-2.0
"""Why the role zfs_pool has a module of its own: what the modules of community.general do on a converged node.

The real modules run through their main(); zpool and zfs answer as a node with ZFS 2.1.11 does. Each test asserts a
fault of the pinned version: when it fails, community.general has learned it, and using it should be considered.
"""

import importlib
from pathlib import Path

import pytest

LEARNED = "community.general has learned it: consider using its module instead of our own"

BY_ID = [f"/dev/disk/by-id/nvme-QEMU_NVMe_Ctrl_DATA000{number}" for number in range(1, 6)]
# `zpool status -P -L`: -L follows the links, so the names are those that the kernel gave out at this boot
STATUS = (Path(__file__).resolve().parents[1] / "fixtures" / "zfs" / "status" / "recorded-kernel-names.txt").read_text()
# what `zpool add` says of a disk that the pool has already (community.general issue 10771)
IN_USE = f"{BY_ID[0]} is in use and contains a unknown filesystem.\n"


def community(name: str):
    """A module of the installed community.general."""
    return importlib.import_module(f"ansible_collections.community.general.plugins.modules.{name}")


@pytest.mark.parametrize("check", [False, True])
def test_zpool_adds_the_members_of_a_pool_to_it_again(commands, run_module, check):
    commands.answer("zpool list tank")
    commands.answer("zpool status -P -L tank", STATUS)
    commands.answer("zpool add *", rc=1, err=IN_USE)
    commands.answer("zfs")
    result = run_module(community("zpool"), check=check, name="tank", vdevs=[{"type": "raidz1", "disks": BY_ID}])
    added = [line for line in commands.calls("zpool") if line.startswith("zpool add")]
    assert added == [f"zpool add {'-n ' if check else ''}tank raidz1 {' '.join(BY_ID)}"], LEARNED
    assert result["failed"] and "is in use" in result["msg"], LEARNED


def test_zpool_takes_kernel_names_for_the_same_pool(commands, run_module):
    """The counter-check: what is wrong above is the names, not the answers of this test."""
    commands.answer("zpool list tank")
    commands.answer("zpool status -P -L tank", STATUS)
    commands.answer("zpool get *", "ashift\t12\n")
    commands.answer("zfs get *", "recordsize\t1M\n")
    kernel_names = [f"/dev/nvme{number}n1" for number in range(1, 6)]
    result = run_module(community("zpool"), name="tank", vdevs=[{"type": "raidz1", "disks": kernel_names}])
    assert result["changed"] is False


@pytest.mark.parametrize("check", [False, True])
@pytest.mark.parametrize(
    ("name", "wanted", "printed"), [("recordsize", "1M", "1048576"), ("quota", "100G", "107374182400")]
)
def test_zfs_sets_a_size_again_that_is_set(commands, run_module, check, name, wanted, printed):
    commands.answer("zpool get version tank", "NAME  PROPERTY  VALUE    SOURCE\ntank  version   -        default\n")
    commands.answer("zfs list -t all tank/scratch", "NAME           USED  AVAIL     REFER  MOUNTPOINT\n")
    commands.answer("zfs get -H -p -o property,source all tank/scratch", f"type\t-\n{name}\tlocal\n")
    commands.answer(f"zfs get -H -p -o value {name} tank/scratch", f"{printed}\n")
    commands.answer(f"zfs set {name}={wanted} tank/scratch")
    result = run_module(
        community("zfs"), check=check, name="tank/scratch", state="present", extra_zfs_properties={name: wanted}
    )
    if check:
        assert result["changed"], LEARNED
    else:
        assert f"zfs set {name}={wanted} tank/scratch" in commands.calls("zfs"), LEARNED
