# SPDX-License-Identifier: Apache-2.0
"""rdma_state on temporary roots: which stack is installed, which is loaded, what it may do about it."""

import os
from types import SimpleNamespace

import pytest

from tests.modules.conftest import load_module

OLD, NEW = "5.15.0-138-generic", "5.15.0-139-generic"
NAMES = ("ib_core", "mlx5_core", "mlx5_ib")
VERSION = "25.07-0.9.7"
HCA = {"vendor": "15b3", "device": "1021"}
ARGUMENTS = {"source": "vendor", "device_names": "kernel", "hca_match": [HCA]}
# BarrinXu/FaaSMem#1 (bug 111)
OPENIBD = """\
Unloading HCA driver:                                      [  OK  ]
Module mlx5_core does not exist, skipping...               [FAILED]
Loading HCA driver and Access Layer:                       [  OK  ]
"""


class Node:
    """A node with two kernels and two HCAs; modinfo, modprobe and the like answer from a table."""

    def __init__(self, tmp_path, commands, monkeypatch):
        self.root, self.commands = tmp_path, commands
        self.warnings = []
        # where a test has loaded the controller's code, Ansible shows warnings there instead of returning them
        monkeypatch.setattr(
            "ansible.module_utils.basic.AnsibleModule.warn", lambda _self, text: self.warnings.append(text)
        )
        self.module = load_module("rdma_state")
        for name in ("sys", "proc", "modules", "boot"):
            (tmp_path / name).mkdir()
        monkeypatch.setattr(self.module, "MODULES_ROOT", str(tmp_path / "modules"))
        monkeypatch.setattr(self.module, "BOOT_ROOT", str(tmp_path / "boot"))
        monkeypatch.setattr(self.module, "SYS_ROOT", str(tmp_path / "sys"))
        monkeypatch.setattr(self.module, "PROC_ROOT", str(tmp_path / "proc"))
        monkeypatch.setattr(self.module.os, "uname", lambda: SimpleNamespace(release=NEW))
        self.users = []
        monkeypatch.setattr(self.module, "find_users", lambda proc, sys: self.users)
        for release in (OLD, NEW):
            (tmp_path / "modules" / release).mkdir()
            (tmp_path / "boot" / f"vmlinuz-{release}").touch()
        self.write("proc/mounts", "")

    def write(self, path, text):
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    def hcas(self, *addresses, rdma=True):
        for number, address in enumerate(addresses):
            for name, value in (("vendor", "0x15b3"), ("device", "0x1021"), ("class", "0x020700")):
                self.write(f"sys/bus/pci/devices/{address}/{name}", f"{value}\n")
            if rdma:
                self.device(f"mlx5_{number}", address)

    def device(self, name, address):
        link = self.root / "sys/class/infiniband" / name
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(f"../../devices/pci0000:15/{address}/infiniband/{name}")

    def load(self, *names, origin="ofed", version=VERSION):
        for name in names or NAMES:
            self.write(f"sys/module/{name}/taint", "OE\n" if origin == "ofed" else "\n")
            if origin == "ofed":
                self.write(f"sys/module/{name}/version", f"{version}\n")

    def files(self, release, origin="ofed", version=VERSION, names=NAMES):
        for name in names:
            folder = "updates/dkms" if origin == "ofed" else "kernel/drivers/infiniband"
            path = f"{self.root}/modules/{release}/{folder}/{name}.ko"
            text = f"filename:       {path}\nvermagic:       {release} SMP\n"
            text += f"version:        {version}\n" if origin == "ofed" else "intree:         Y\n"
            self.commands.answer(f"modinfo -k {release} {name}", text)

    def none(self, release, name):
        self.commands.answer(f"modinfo -k {release} {name}", rc=1, err=f"modinfo: ERROR: Module {name} not found.")

    def ofed(self, text=f"OFED-internal-{VERSION}:\n"):
        self.commands.answer("ofed_info -s", text)

    def unit(self, state="enabled"):
        self.commands.answer("systemctl is-enabled openibd.service", f"{state}\n", rc=0 if state == "enabled" else 1)

    def as_wanted(self):
        self.ofed()
        self.files(OLD)
        self.files(NEW)
        self.load()
        self.hcas("0000:1a:00.0", "0000:3c:00.0")
        self.unit()

    def acted(self):
        acts = [line for line in self.commands.calls("systemctl") if "is-enabled" not in line]
        return acts + [line for name in ("modprobe", "update-initramfs") for line in self.commands.calls(name)]


@pytest.fixture
def node(tmp_path, commands, monkeypatch):
    return Node(tmp_path, commands, monkeypatch)


@pytest.mark.parametrize("check", [False, True])
def test_converged(node, run_module, check):
    node.as_wanted()
    result = run_module(node.module, check=check, **ARGUMENTS)
    assert not result["changed"], result
    assert result["installed"] and result["ofed"] == f"OFED-internal-{VERSION}"
    assert result["devices"][0] == {"name": "mlx5_0", "pci_address": "0000:1a:00.0"}
    assert result["hcas"] == ["0000:1a:00.0", "0000:3c:00.0"]
    assert result["loaded"]["mlx5_core"] == {"origin": "ofed", "version": VERSION}
    assert result["kernels"][OLD]["ib_core"]["origin"] == "ofed"
    assert result["reboot_reason"] is None and node.acted() == []


def test_distro_on_a_node_without_hcas_as_the_lab(node, run_module):
    node.files(OLD, "inbox")
    node.files(NEW, "inbox")
    result = run_module(node.module, **{**ARGUMENTS, "source": "distro"})
    assert not result["changed"] and result["installed"], result
    assert (result["ofed"], result["loaded"], result["devices"]) == (None, {}, [])
    assert node.acted() == []


def test_check_mode_on_a_fresh_node_demands_nothing(node, run_module):
    node.files(OLD, "inbox")
    node.files(NEW, "inbox")
    result = run_module(node.module, check=True, **ARGUMENTS)
    assert not result["installed"] and not result["changed"] and not result.get("failed")


def test_the_same_is_an_error_without_check_mode(node, run_module):
    node.files(OLD, "inbox")
    node.files(NEW, "inbox")
    result = run_module(node.module, **ARGUMENTS)
    assert result["failed"] and "ofed_info is not there" in result["msg"] and result["next_step"]


def test_bug_112_the_kernels_own_module_would_be_loaded(node, run_module):
    node.as_wanted()
    node.commands.table.clear()
    node.ofed()
    node.unit()
    node.files(OLD)
    node.files(NEW, "inbox")
    result = run_module(node.module, **ARGUMENTS)
    assert f"kernel {NEW} (running) would load" in result["msg"] and "bug 112" in result["msg"]
    assert "dkms status" in result["next_step"]


def test_a_kernel_that_dkms_has_left_out(node, run_module):
    node.ofed()
    node.files(NEW)
    for name in NAMES:
        node.none(OLD, name)
    result = run_module(node.module, **ARGUMENTS)
    assert f"kernel {OLD} has no module ib_core, mlx5_core, mlx5_ib" in result["msg"]


def test_inbox_is_loaded_after_ofed_was_installed(node, run_module):
    node.ofed()
    node.files(OLD)
    node.files(NEW)
    node.load(origin="inbox")
    node.hcas("0000:1a:00.0")
    node.unit()
    result = run_module(node.module, **ARGUMENTS)
    assert "ib_core is loaded from the kernel's own (inbox) stack" in result["reboot_reason"]
    assert result["reboot_still_needed"][0] == "/bin/sh"
    assert not result["changed"] and node.acted() == []


def restartable(node, monkeypatch, loads):
    """Inbox modules are loaded; `systemctl restart` does what `loads` says."""
    node.ofed()
    node.files(OLD)
    node.files(NEW)
    node.load(origin="inbox")
    node.hcas("0000:1a:00.0")
    node.unit()
    node.commands.answer("journalctl *", OPENIBD)
    node.commands.answer("systemctl restart openibd.service")
    run = node.module.run_bounded

    def run_and_load(argv, limit_s):
        if list(argv[:2]) == ["systemctl", "restart"] and loads:
            node.load()
        return run(argv, limit_s)

    monkeypatch.setattr(node.module, "run_bounded", run_and_load)


def test_restart_where_allowed_and_nothing_is_in_use(node, run_module, monkeypatch):
    restartable(node, monkeypatch, loads=True)
    result = run_module(node.module, **ARGUMENTS, restart_allowed=True)
    assert result["changed"] and result["reboot_reason"] is None
    assert node.acted() == ["systemctl restart openibd.service"]


def test_bug_111_openibd_ends_with_ok_and_has_loaded_nothing(node, run_module, monkeypatch):
    restartable(node, monkeypatch, loads=False)
    result = run_module(node.module, **ARGUMENTS, restart_allowed=True)
    assert "ib_core is loaded from the kernel's own (inbox) stack" in result["reboot_reason"]
    assert "printed: Module mlx5_core does not exist, skipping..." in result["reboot_reason"]


def test_check_mode_foresees_the_restart(node, run_module, monkeypatch):
    restartable(node, monkeypatch, loads=True)
    result = run_module(node.module, check=True, **ARGUMENTS, restart_allowed=True)
    assert result["changed"] and result["reboot_reason"] is None and node.acted() == []
    assert "would restart openibd.service" in result["diff"]["after"]


def test_no_restart_while_the_stack_is_in_use(node, run_module, monkeypatch):
    restartable(node, monkeypatch, loads=True)
    node.users = ["/data is mounted (lustre)"]
    result = run_module(node.module, **ARGUMENTS, restart_allowed=True)
    assert result["in_use"] == ["/data is mounted (lustre)"]
    assert "not restarted, since the RDMA stack is in use: /data is mounted (lustre)" in str(node.warnings)
    assert "inbox" in result["reboot_reason"] and node.acted() == []


def test_modules_are_loaded_where_none_is(node, run_module, monkeypatch):
    node.as_wanted()
    for name in NAMES:
        (node.root / "sys/module" / name / "taint").unlink()
    node.commands.answer("modprobe *")
    run = node.module.run_bounded

    def run_and_load(argv, limit_s):
        if argv[0] == "modprobe":
            node.load()
        return run(argv, limit_s)

    assert run_module(node.module, check=True, **ARGUMENTS)["changed"]
    assert node.acted() == []
    monkeypatch.setattr(node.module, "run_bounded", run_and_load)
    result = run_module(node.module, **ARGUMENTS)
    assert result["changed"] and "mlx5_ib" in result["loaded"]
    assert node.acted() == [f"modprobe {name}" for name in ("mlx5_ib", "ib_uverbs", "rdma_ucm", "ib_umad")]


def test_secure_boot_is_told_apart(node, run_module):
    node.as_wanted()
    (node.root / "sys/module/mlx5_ib/taint").unlink()
    node.commands.answer(
        "modprobe *", rc=1, err="modprobe: ERROR: could not insert 'mlx5_ib': Key was rejected by service"
    )
    result = run_module(node.module, **ARGUMENTS)
    assert "mlx5_ib was not loaded: the kernel rejects the module's signature" in result["msg"]
    assert "mokutil" in result["next_step"]


def test_a_modprobe_that_reports_success_and_loads_nothing(node, run_module):
    node.as_wanted()
    (node.root / "sys/module/mlx5_ib/taint").unlink()
    node.commands.answer("modprobe *")
    assert "reported success, yet" in run_module(node.module, **ARGUMENTS)["msg"]


def test_openibd_is_enabled(node, run_module):
    node.as_wanted()
    node.commands.table.clear()
    node.ofed()
    node.files(OLD)
    node.files(NEW)
    node.unit("disabled")
    node.commands.answer("systemctl enable openibd.service")
    result = run_module(node.module, **ARGUMENTS)
    assert result["changed"] and node.acted() == ["systemctl enable openibd.service"]


@pytest.mark.parametrize(("image_is_newer", "expected"), [(True, []), (False, [f"update-initramfs -u -k {NEW}"])])
def test_an_initramfs_with_the_old_modules_is_rebuilt(node, run_module, image_is_newer, expected):
    """Bug 112 again: mlx5_core comes from the initramfs, before anything of DOCA-OFED is asked."""
    node.as_wanted()
    node.write(f"modules/{NEW}/updates/dkms/mlx5_core.ko", "")
    node.write(f"boot/initrd.img-{NEW}", "")
    arrived = os.stat(node.root / f"modules/{NEW}/updates/dkms/mlx5_core.ko").st_ctime
    made = arrived + (10 if image_is_newer else -10)
    os.utime(node.root / f"boot/initrd.img-{NEW}", (made, made))
    node.commands.answer("update-initramfs *")
    assert run_module(node.module, check=True, **ARGUMENTS)["changed"] is bool(expected)
    assert node.acted() == []
    assert run_module(node.module, **ARGUMENTS)["changed"] is bool(expected)
    assert node.acted() == expected


def test_names_by_pci_address_need_a_boot(node, run_module):
    node.as_wanted()
    result = run_module(node.module, **{**ARGUMENTS, "device_names": "pci"})
    assert "HCA mlx5_0 (0000:1a:00.0), mlx5_1" in result["reboot_reason"]


def test_one_dead_hca_is_a_warning_and_all_of_them_an_error(node, run_module):
    node.as_wanted()
    (node.root / "sys/class/infiniband/mlx5_1").unlink()
    run_module(node.module, **ARGUMENTS)
    assert "no RDMA device belongs to HCA 0000:3c:00.0" in str(node.warnings)
    (node.root / "sys/class/infiniband/mlx5_0").unlink()
    assert "none of the 2 HCAs works" in run_module(node.module, **ARGUMENTS)["msg"]


def test_text_that_is_no_answer_of_ofed_info(node, run_module):
    node.as_wanted()
    node.commands.table.clear()
    node.files(OLD)
    node.files(NEW)
    node.ofed("something\n")
    assert "ofed_info -s printed 'something'" in run_module(node.module, **ARGUMENTS)["msg"]


def test_no_kernel_at_all(node, run_module):
    for release in (OLD, NEW):
        (node.root / "boot" / f"vmlinuz-{release}").unlink()
    assert "no installed kernel was found" in run_module(node.module, **ARGUMENTS)["msg"]
