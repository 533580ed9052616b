# SPDX-License-Identifier: Apache-2.0
"""gpu_peer_memory on a temporary root: loaded where nothing stands against it, told apart where something does."""

from types import SimpleNamespace

import pytest

from tests.modules.conftest import load_module

RELEASE = "5.15.0-139-generic"
UNIT = "gpufleet-nvidia-peermem.service"
PEERMEM = {"way": "nvidia_peermem", "demanded": True}
DMABUF = {"way": "dma_buf", "demanded": True}
REGISTER = "ib_register_peer_memory_client"
SHOW_DEPENDS = f"modprobe --set-version {RELEASE} --show-depends nvidia-peermem"


class Node:
    """Files below a temporary root, commands from a table."""

    def __init__(self, tmp_path, commands, monkeypatch):
        self.root, self.commands = tmp_path / "root", commands
        self.warnings = []
        # where a test has loaded the controller's code, Ansible shows warnings there instead of returning them
        monkeypatch.setattr(
            "ansible.module_utils.basic.AnsibleModule.warn", lambda _self, text: self.warnings.append(text)
        )
        self.root.mkdir()
        self.module = load_module("gpu_peer_memory")
        monkeypatch.setattr(self.module, "ROOT", str(self.root))
        monkeypatch.setattr(self.module.os, "uname", lambda: SimpleNamespace(release=RELEASE))
        self.monkeypatch = monkeypatch
        self.write(f"lib/modules/{RELEASE}/modules.symbols", f"alias symbol:{REGISTER} ib_core\n")

    def write(self, path, text):
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    def devices(self, gpus=1, hcas=1):
        for number in range(gpus):
            for name, value in (("vendor", "0x10de"), ("device", "0x2330"), ("class", "0x030200")):
                self.write(f"sys/bus/pci/devices/0000:{number}b:00.0/{name}", f"{value}\n")
        for number in range(hcas):
            link = self.root / f"sys/class/infiniband/mlx5_{number}"
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(f"../../devices/pci0000:15/0000:{number}a:00.0/infiniband/mlx5_{number}")

    def modinfo(self, depends="nvidia,ib_core", file="nvidia-peermem", release=RELEASE):
        path = f"/lib/modules/{RELEASE}/updates/dkms/{file}.ko"
        name = path
        if file == "nvidia-peermem":
            lines = f"insmod /lib/modules/{RELEASE}/updates/dkms/nvidia.ko\ninsmod {path}\n"
        else:  # nvidia-modprobe.conf of Debian's package nvidia-open-kernel-support 535.261.03
            lines = f"install modprobe nvidia ; modprobe -i {file} $CMDLINE_OPTS\n"
            name = file
        self.commands.answer(SHOW_DEPENDS, lines)
        self.commands.answer(
            f"modinfo -k {RELEASE} {name}",
            f"filename:       {path}\ndepends:        {depends}\nname:           nvidia_peermem\n"
            f"vermagic:       {release} SMP\n",
        )
        self.commands.answer(f"modprobe --dump-modversions {path}", f"0x1a2b3c4d\t{REGISTER}\n")

    def no_module(self):
        self.commands.answer(SHOW_DEPENDS, rc=1, err="modprobe: FATAL: Module nvidia-peermem not found in directory x")

    def loaded(self, name="nvidia_peermem", clients=("nv_mem", "nv_mem_nc")):
        self.write(f"sys/module/{name}/taint", "OE\n")
        for client in clients:
            (self.root / "sys/kernel/mm/memory_peers" / client).mkdir(parents=True, exist_ok=True)

    def commands_that_load(self, says="", log=""):
        """modprobe loads the module, or says why not; systemd has the unit."""
        self.commands.answer("modprobe nvidia-peermem", rc=1 if says else 0, err=says)
        self.commands.answer("dmesg", log)
        self.commands.answer(f"systemctl start {UNIT}")
        run = self.module.run_bounded

        def run_and_load(argv, limit_s):
            if list(argv) == ["modprobe", "nvidia-peermem"] and not says:
                self.loaded()
            return run(argv, limit_s)

        self.monkeypatch.setattr(self.module, "run_bounded", run_and_load)

    def active(self, *states):
        for state in states:
            self.commands.answer(f"systemctl is-active {UNIT}", f"{state}\n", rc=0 if state == "active" else 3)

    def acted(self):
        calls = self.commands.calls("modprobe") + self.commands.calls("systemctl")
        return [line for line in calls if not any(word in line for word in ("--dump", "--show", "is-active"))]


@pytest.fixture
def node(tmp_path, commands, monkeypatch):
    return Node(tmp_path, commands, monkeypatch)


@pytest.mark.parametrize("check", [False, True])
def test_converged(node, run_module, check):
    node.devices()
    node.modinfo()
    node.loaded()
    node.active("active")
    result = run_module(node.module, check=check, **PEERMEM)
    assert (result["changed"], result["state"], result["module_name"]) == (False, "ready", "nvidia_peermem")
    assert node.acted() == []


def test_it_is_loaded(node, run_module):
    node.devices()
    node.modinfo()
    node.commands_that_load()
    node.active("active")
    result = run_module(node.module, check=True, **PEERMEM)
    assert result["changed"] and result["state"] == "ready" and node.acted() == []
    result = run_module(node.module, **PEERMEM)
    assert result["changed"] and result["state"] == "ready"
    assert node.acted() == ["modprobe nvidia-peermem", f"systemctl start {UNIT}"]


def test_debians_name(node, run_module):
    node.devices()
    node.modinfo("nvidia_current_open,ib_core", "nvidia-current-open-peermem")
    node.commands_that_load()
    node.active("active")
    result = run_module(node.module, **PEERMEM)
    assert (result["changed"], result["module_name"]) == (True, "nvidia_peermem")


def test_loaded_by_hand_the_unit_is_started_all_the_same(node, run_module):
    """openibd's restart is followed by an active unit only."""
    node.devices()
    node.modinfo()
    node.loaded()
    node.commands_that_load()
    node.active("inactive", "active")
    assert run_module(node.module, **PEERMEM)["changed"]
    assert node.acted()[-1] == f"systemctl start {UNIT}"


def test_a_unit_that_does_not_become_active_is_an_error(node, run_module):
    node.devices()
    node.modinfo()
    node.commands_that_load()
    node.active("inactive")
    assert "did not become active" in run_module(node.module, **PEERMEM)["msg"]


def test_a_success_of_modprobe_is_no_proof(node, run_module):
    node.devices()
    node.modinfo()
    node.commands.answer("modprobe nvidia-peermem")
    result = run_module(node.module, **PEERMEM)
    assert result["failed"] and "the module is not loaded" in result["msg"]


REFUSALS = [
    ("could not insert 'nvidia_peermem': Key was rejected by service", "", "rejects the module's signature"),
    ("could not insert 'nvidia_peermem': Invalid argument", "", "without the peer memory interface"),
    ("could not insert 'nvidia_peermem': No such device", "", "there is no GPU that the driver could use"),
    (
        "could not insert 'nvidia_peermem': Unknown symbol in module, or unknown parameter (see dmesg)",
        f"[  9.1] nvidia_peermem: disagrees about version of symbol {REGISTER}\n",
        f"than the one that is installed or loaded: the kernel log names symbol {REGISTER}",
    ),
]


@pytest.mark.parametrize(("says", "log", "expected"), REFUSALS)
def test_why_it_is_not_loaded(node, run_module, says, log, expected):
    node.devices()
    node.modinfo()
    node.commands_that_load(says=f"modprobe: ERROR: {says}", log=log)
    result = run_module(node.module, **PEERMEM)
    assert result["failed"] and expected in result["msg"] and result["next_step"]
    assert node.acted() == ["modprobe nvidia-peermem"]


def test_built_before_the_rdma_stack(node, run_module):
    node.devices()
    node.modinfo("nvidia")
    result = run_module(node.module, **PEERMEM)
    assert "HCAs cannot reach GPU memory by nvidia_peermem: the module was built without" in result["msg"]
    assert "install DOCA-OFED first" in result["next_step"] and node.acted() == []


@pytest.mark.parametrize(
    ("ofed", "crc", "failed"),
    [(True, "0x00000001", True), (True, "0x1a2b3c4d", False), (True, None, False), (False, "0x00000001", True)],
)
def test_checksum_of_the_interface(node, run_module, ofed, crc, failed):
    """Told before any load, by OFED's list where OFED is installed: the kernel's own would be another one there."""
    node.devices()
    node.modinfo()
    node.commands_that_load()
    node.active("active")
    line = f"{crc}\t{REGISTER}\tdrivers/infiniband/core/ib_core\tEXPORT_SYMBOL\t\n" if crc else ""
    if ofed:
        node.write(f"usr/src/ofa_kernel/x86_64/{RELEASE}/Module.symvers", line)
        node.write(f"lib/modules/{RELEASE}/build/Module.symvers", f"0x0000dead\t{REGISTER}\tx\tEXPORT_SYMBOL\n")
    else:
        node.write(f"lib/modules/{RELEASE}/build/Module.symvers", line)
    result = run_module(node.module, **PEERMEM)
    assert bool(result.get("failed")) is failed, result
    assert not failed or "asks for ib_register_peer_memory_client of checksum 0x1a2b3c4d" in result["msg"]


def test_the_lab_tells_a_state_and_no_error(node, run_module):
    """Debian's module on a node without GPU and HCA: real on the lab node, here with all of it seen at once."""
    node.modinfo("nvidia_current_open", "nvidia-current-open-peermem")
    node.write(f"lib/modules/{RELEASE}/modules.symbols", "alias symbol:ib_register_client ib_core\n")
    result = run_module(node.module, **{**PEERMEM, "demanded": False})
    assert not result["changed"] and not result.get("failed")
    assert result["state"] == "no_gpu" and "no peer memory interface" in result["says"]
    assert node.acted() == []


def test_the_same_is_an_error_where_gpus_are_demanded(node, run_module):
    node.modinfo()
    assert "there is no GPU" in run_module(node.module, **PEERMEM)["msg"]


def test_check_mode_on_a_fresh_node(node, run_module):
    node.devices()
    node.no_module()
    result = run_module(node.module, check=True, **PEERMEM)
    assert (result["state"], result["changed"], result["module_name"]) == ("not_built", False, None)
    assert "no module nvidia-peermem for the running kernel" in run_module(node.module, **PEERMEM)["msg"]


def test_it_waits_for_a_reboot_that_is_asked_for(node, run_module):
    """DOCA-OFED was installed while the kernel's own ib_core is loaded: the stage that reboots comes later."""
    node.devices()
    node.modinfo()
    node.commands_that_load(*REFUSALS[3][:2])
    request = (
        '{"name": "rdma_stack", "reason": "r", "still_needed": null, "requested_by": "rdma_stack", "boot_id": "b", '
        '"when": "2026-11-30T00:00:00Z"}'
    )
    node.write("run/gpufleet/reboot.d/rdma_stack.json", request)
    (node.root / "run/gpufleet/reboot.d").chmod(0o755)
    result = run_module(node.module, **PEERMEM)
    assert not result.get("failed"), result
    assert (result["state"], result["waits_for"], result["changed"]) == ("another_stack", ["rdma_stack"], False)
    assert "before the reboot (rdma_stack)" in str(node.warnings)


def test_the_predecessor_is_loaded(node, run_module):
    node.devices()
    node.modinfo()
    node.write("sys/module/nv_peer_mem/taint", "OE\n")
    assert "old module nv_peer_mem" in run_module(node.module, **PEERMEM)["msg"]


def dma_buf(node, flavour="Open ", library=b"...ibv_reg_dmabuf_mr..."):
    node.devices()
    if flavour is not None:
        node.write(
            "proc/driver/nvidia/version",
            f"NVRM version: NVIDIA UNIX {flavour}Kernel Module for x86_64  580.105.08  Release Build\n",
        )
    if library is not None:
        node.write("usr/lib/x86_64-linux-gnu/libibverbs.so.1", "")
        (node.root / "usr/lib/x86_64-linux-gnu/libibverbs.so.1").write_bytes(library)


def test_dma_buf(node, run_module):
    dma_buf(node)
    result = run_module(node.module, **DMABUF)
    assert (result["state"], result["changed"], result["module_name"]) == ("ready", False, None)


@pytest.mark.parametrize(
    ("node_has", "expected"),
    [
        ({"flavour": ""}, "the proprietary kernel module exports no DMA-BUF"),
        ({"flavour": None}, "the module nvidia is not loaded"),
        ({"library": b"ibv_reg_mr"}, "libibverbs has no DMA-BUF registration"),
        ({"library": None}, "libibverbs.so.1 was not found"),
    ],
)
def test_why_there_is_no_dma_buf(node, run_module, node_has, expected):
    dma_buf(node, **node_has)
    assert expected in run_module(node.module, **DMABUF)["msg"]


def test_a_kernel_without_dma_buf(node, run_module):
    dma_buf(node)
    node.monkeypatch.setattr(node.module.os, "uname", lambda: SimpleNamespace(release="5.4.0-216-generic"))
    assert "5.4.0-216-generic, expected 5.12 or later" in run_module(node.module, **DMABUF)["msg"]
