# SPDX-License-Identifier: Apache-2.0
"""Which RDMA stack is installed and which is loaded, from text."""

import subprocess

import pytest
from ansible.module_utils.gpufleet import rdma_facts
from ansible.module_utils.gpufleet.rdma_facts import (
    LoadedModule,
    RdmaDevice,
    differs_from_file,
    named_by,
    parse_infiniband_devices,
    parse_modinfo,
    parse_ofed_info,
    parse_openibd,
    parse_sys_module,
    sys_module_paths,
)

RELEASE = "5.15.0-139-generic"

# What openucx/ucx#6906 shows (bug 112): OFED is installed, modinfo finds the inbox module.
INBOX = """\
filename:       /lib/modules/3.10.0-1160.62.1.el7.x86_64/kernel/drivers/infiniband/hw/mlx5/mlx5_ib.ko.xz
license:        Dual BSD/GPL
description:    Mellanox Connect-IB HCA IB driver
depends:        mlx5_core,ib_core,ib_uverbs
intree:         Y
vermagic:       3.10.0-1160.62.1.el7.x86_64 SMP mod_unload modversions
"""
OFED = f"""\
filename:       /lib/modules/{RELEASE}/updates/dkms/mlx5_core.ko
alias:          auxiliary:mlx5_core.eth-rep
version:        25.07-0.9.7
license:        Dual BSD/GPL
srcversion:     A1B2C3D4E5F60718293A4B5
depends:        mlx_compat,mlxfw,pci-hyperv-intf
name:           mlx5_core
vermagic:       {RELEASE} SMP mod_unload modversions
signer:         node1 Secure Boot Module Signature key
parm:           debug_mask:debug mask: 1 = dump cmd data (uint)
"""
# BarrinXu/FaaSMem#1 (bug 111)
OPENIBD = """\
Unloading HCA driver:                                      [  OK  ]
Module mlx4_core does not exist, skipping...               [FAILED]
Module mlx5_core does not exist, skipping...               [FAILED]
Module mlx5_ib does not exist, skipping...                 [FAILED]
Loading HCA driver and Access Layer:                       [  OK  ]
"""


def test_bug_112_inbox_module_although_ofed_is_installed():
    module = parse_modinfo(INBOX)
    assert (module.origin, module.version, module.intree) == ("inbox", None, True)
    assert module.depends == ("mlx5_core", "ib_core", "ib_uverbs")
    assert (module.name, module.release) == ("mlx5_ib", "3.10.0-1160.62.1.el7.x86_64")


def test_modinfo_of_ofed():
    module = parse_modinfo(OFED)
    assert (module.origin, module.version, module.intree) == ("ofed", "25.07-0.9.7", False)
    assert (module.name, module.release) == ("mlx5_core", RELEASE)
    assert module.depends == ("mlx_compat", "mlxfw", "pci_hyperv_intf")
    assert module.signer == "node1 Secure Boot Module Signature key"


@pytest.mark.parametrize(
    ("path", "origin"),
    [
        ("/lib/modules/6.1.0-26-amd64/kernel/drivers/net/ethernet/mellanox/mlx5/core/mlx5_core.ko", "inbox"),
        ("/usr/lib/modules/6.12.0/kernel/drivers/infiniband/core/ib_core.ko.zst", "inbox"),
        ("/lib/modules/6.1.0-26-amd64/updates/dkms/ib_core.ko", "ofed"),
        ("/lib/modules/5.14.0/extra/mlnx-ofa_kernel/drivers/infiniband/core/ib_core.ko", "ofed"),
        ("(builtin)", "inbox"),
    ],
)
def test_origin_by_path(path, origin):
    assert parse_modinfo(f"filename:       {path}\nlicense:        GPL\n").origin == origin


@pytest.mark.parametrize("text", ["", "modinfo: ERROR: Module mlx5_core not found.\n", "license:        GPL\n"])
def test_no_module_is_no_guess(text):
    with pytest.raises(ValueError, match="no filename"):
        parse_modinfo(text)


def test_bug_111_openibd_says_ok_although_modules_failed():
    report = parse_openibd(OPENIBD)
    assert report.contradicts_itself
    assert report.failed[1] == "Module mlx5_core does not exist, skipping..."
    assert report.ok == ("Unloading HCA driver", "Loading HCA driver and Access Layer")


def test_openibd_that_worked_or_failed_as_a_whole():
    assert not parse_openibd("Loading HCA driver and Access Layer:   [  OK  ]\n").contradicts_itself
    assert not parse_openibd("Loading HCA driver and Access Layer:   [FAILED]\n").contradicts_itself
    assert parse_openibd("\x1b[60G[\x1b[1;31mFAILED\x1b[0;39m]\r\n".replace("\r", "")).failed == ("",)


@pytest.mark.parametrize(
    ("text", "name", "version"),
    [
        ("MLNX_OFED_LINUX-23.10-1.1.9.0:\n", "MLNX_OFED_LINUX-23.10-1.1.9.0", "23.10-1.1.9.0"),
        # DOCA's does not carry MLNX_OFED, by which a peer decides (ansible-peers.md A.7)
        ("OFED-internal-25.07-0.9.7:\n", "OFED-internal-25.07-0.9.7", "25.07-0.9.7"),
    ],
)
def test_ofed_info(text, name, version):
    assert parse_ofed_info(text) == (name, version)


@pytest.mark.parametrize("text", ["", "OFED\n", "bash: ofed_info: command not found\n", "OFED-internal-1:\nmore\n"])
def test_ofed_info_that_is_none(text):
    with pytest.raises(ValueError, match="ofed_info -s printed"):
        parse_ofed_info(text)


def test_loaded_modules():
    files = {
        "/sys/module/mlx5_core/taint": "OE\n",
        "/sys/module/mlx5_core/version": "25.07-0.9.7\n",
        "/sys/module/mlx5_core/srcversion": "A1\n",
        "/sys/module/ib_core/taint": "\n",
        "/sys/module/nvme_core/version": "1.0\n",
    }
    assert parse_sys_module(files) == {
        "mlx5_core": LoadedModule("mlx5_core", "25.07-0.9.7", "A1", True),
        "ib_core": LoadedModule("ib_core", None, None, False),
    }
    assert set(sys_module_paths(["mlx5_core"])) == {path for path in files if "mlx5_core" in path}


def test_loaded_is_compared_with_the_file():
    file = parse_modinfo(OFED)
    same = LoadedModule("mlx5_core", "25.07-0.9.7", "A1B2C3D4E5F60718293A4B5", True)
    assert differs_from_file(same, file) is None
    assert "mlx5_core is loaded from the kernel's own (inbox) stack" in differs_from_file(
        same._replace(version=None, out_of_tree=False), file
    )
    assert "25.04-0.6.1 is loaded" in differs_from_file(same._replace(version="25.04-0.6.1"), file)
    assert "(srcversion)" in differs_from_file(same._replace(srcversion="FFFF"), file)
    # Nothing to compare beside the origin.
    assert differs_from_file(LoadedModule("mlx5_ib", None, None, False), parse_modinfo(INBOX)) is None


def test_devices_with_their_addresses():
    text = (
        "mlx5_10 ../../devices/pci0000:d7/0000:d7:01.0/0000:da:00.0/infiniband/mlx5_10\n"
        "mlx5_2 ../../devices/pci0000:15/0000:15:01.0/0000:16:00.0/0000:17:00.0/0000:1a:00.0/infiniband/mlx5_2\n"
        "rxe0 ../../devices/virtual/infiniband/rxe0\n"
        "mlx5_vmd ../../devices/pci0000:80/0000:80:05.5/pci10000:80/10000:80:01.0/10000:81:00.0/infiniband/mlx5_vmd\n"
    )
    assert parse_infiniband_devices(text) == [
        RdmaDevice("mlx5_2", "0000:1a:00.0"),
        RdmaDevice("mlx5_10", "0000:da:00.0"),
        RdmaDevice("mlx5_vmd", "10000:81:00.0"),
        RdmaDevice("rxe0", None),
    ]
    assert parse_infiniband_devices("") == []
    with pytest.raises(ValueError, match="no device"):
        parse_infiniband_devices("find: something else\n")


def test_what_find_prints_is_read(tmp_path):
    (tmp_path / "devices/pci0000:15/0000:1a:00.0/infiniband/mlx5_0").mkdir(parents=True)
    classes = tmp_path / "class/infiniband"
    classes.mkdir(parents=True)
    (classes / "mlx5_0").symlink_to("../../devices/pci0000:15/0000:1a:00.0/infiniband/mlx5_0")
    argv = [str(classes) if part == rdma_facts.INFINIBAND_CLASS else part for part in rdma_facts.INFINIBAND_ARGV]
    out = subprocess.run(argv, capture_output=True, text=True, check=True).stdout
    assert parse_infiniband_devices(out) == [RdmaDevice("mlx5_0", "0000:1a:00.0")]


@pytest.mark.parametrize(
    ("name", "rule"),
    [
        ("mlx5_0", "kernel"),
        ("mlx5_bond_0", "kernel"),
        ("rxe0", "kernel"),
        ("ibp26s0", "pci"),
        ("ibp0s12f4", "pci"),
        ("rocep26s0f1", "pci"),
        ("ibP1p26s0", "pci"),
        ("rocex525400c0fe123455", "guid"),
        ("myib", "other"),
    ],
)
def test_names(name, rule):
    assert named_by(RdmaDevice(name, None)) == rule
