# SPDX-License-Identifier: Apache-2.0
"""nvidia_driver_state: packages, every kernel's module, initramfs, load, reload and reboot; and what must stop it."""

import json
import os
from types import SimpleNamespace

import pytest

from tests.modules.conftest import load_module

OLD, NEW = "6.1.0-25-amd64", "6.1.0-26-amd64"
V, BEFORE = "580.105.08", "580.95.05"
QUERY = "dpkg-query --show --showformat=${Package}|${db:Status-Abbrev}|${Version}* *"
GPUS = ["0000:1b:00.0", "0000:43:00.0"]
ARGUMENTS = {"packages": ["nvidia-open"], "modules_from": "dkms"}


class Node:
    """Two kernels and two GPUs below temporary roots; what the commands say comes from a table."""

    def __init__(self, tmp_path, commands, monkeypatch):
        self.root, self.commands = tmp_path, commands
        self.module = load_module("nvidia_driver_state")
        for name in ("modules", "boot", "dkms", "proc", "units", "sys/module", "sys/bus/pci/devices", "etc"):
            (tmp_path / name).mkdir(parents=True)
        for name, value in {
            "MODULES_ROOT": "modules",
            "BOOT_ROOT": "boot",
            "DKMS_ROOT": "dkms",
            "SYS": "sys",
            "PROC": "proc",
            "PROC_VERSION": "proc_version",
            "PROC_PARAMETERS": "proc_params",
            "PROC_GPUS": "proc_gpus",
            "SEEN": "state/initramfs.json",
        }.items():
            monkeypatch.setattr(self.module, name, str(tmp_path / value))
        monkeypatch.setattr(self.module, "UNIT_FOLDERS", (str(tmp_path / "units"),))
        self.uname = SimpleNamespace(release=NEW)
        monkeypatch.setattr(self.module.os, "uname", lambda: self.uname)
        self.configuration = tmp_path / "etc" / "gpufleet-nvidia.conf"
        for release in (OLD, NEW):
            (tmp_path / "modules" / release).mkdir()
            (tmp_path / "boot" / f"vmlinuz-{release}").touch()

    def packages(self, **versions):
        rows = "".join(f"{name.replace('_', '-')}|hi |{version}\n" for name, version in versions.items())
        self.commands.answer(QUERY, rows, rc=0 if rows else 1)

    def kernel(self, release, version, license_text="Dual MIT/GPL"):
        """The next answer of modprobe and modinfo for a kernel; None = it has no module."""
        path = f"{self.root}/modules/{release}/updates/dkms/nvidia.ko"
        line = f"modprobe --set-version {release} --show-depends nvidia"
        if version is None:
            self.commands.answer(line, rc=1, err="modprobe: FATAL: Module nvidia not found in directory")
            return
        self.commands.answer(line, f"insmod {path} NVreg_X=1\n")
        self.commands.answer(
            f"modinfo {path}",
            f"filename:       {path}\nversion:        {version}\nlicense:        {license_text}\n"
            f"vermagic:       {release} SMP preempt\n",
        )

    def gpus(self, addresses=tuple(GPUS)):
        for address in addresses:
            folder = self.root / "sys/bus/pci/devices" / address
            folder.mkdir()
            (folder / "vendor").write_text("0x10de\n")
            (folder / "class").write_text("0x030200\n")
        nvswitch = self.root / "sys/bus/pci/devices/0000:05:00.0"
        nvswitch.mkdir()
        (nvswitch / "vendor").write_text("0x10de\n")
        (nvswitch / "class").write_text("0x068000\n")

    def loaded(self, version, gpus=tuple(GPUS), **parameters):
        for name in ("nvidia", "nvidia_uvm"):
            (self.root / "sys/module" / name).mkdir(exist_ok=True)
        text = f"NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  {version}  Release Build\n"
        (self.root / "proc_version").write_text(text)
        (self.root / "proc_params").write_text("".join(f"{name}: {value}\n" for name, value in parameters.items()))
        for address in gpus:
            (self.root / "proc_gpus" / address).mkdir(parents=True, exist_ok=True)

    def on_command(self, line, effect, rc=0, err=""):
        """Have a command do something to the roots: a shell text in place of the table."""
        name = line.split()[0]
        self.commands.answer(line, rc=rc, err=err)
        program = self.commands.folder / name
        program.write_text(program.read_text().replace("#!/bin/sh\n", f"#!/bin/sh\n{effect}\n"))

    def smi(self, count=2, rc=0):
        self.commands.answer("nvidia-smi -L", "".join(f"GPU {n}: NVIDIA H100\n" for n in range(count)), rc=rc)

    def user(self, pid, name, cgroup="0::/system.slice/docker-1.scope\n"):
        (self.root / "proc" / str(pid) / "fd").mkdir(parents=True)
        (self.root / "proc" / str(pid) / "fd" / "3").symlink_to("/dev/nvidia0")
        (self.root / "proc" / str(pid) / "comm").write_text(f"{name}\n")
        (self.root / "proc" / str(pid) / "cgroup").write_text(cgroup)

    def image(self, release, time):
        (self.root / "boot" / f"initrd.img-{release}").touch()
        os.utime(self.root / "boot" / f"initrd.img-{release}", (time, time))

    def altered(self):
        """Commands that alter a node."""
        names = ("rmmod", "systemctl", "update-initramfs", "dkms")
        loads = [line for line in self.commands.calls("modprobe") if "--show-depends" not in line]
        return loads + [line for name in names for line in self.commands.calls(name) if "is-active" not in line]


@pytest.fixture
def node(tmp_path, commands, monkeypatch):
    node = Node(tmp_path, commands, monkeypatch)
    commands.answer("dmesg", "[1.0] NVRM: nothing of interest\n")
    return node


@pytest.fixture
def converged(node):
    node.packages(nvidia_open=f"{V}-0ubuntu1")
    for release in (OLD, NEW):
        node.kernel(release, V)
    node.gpus()
    node.loaded(V, RmProfilingAdminOnly="0")
    node.smi()
    return node


def run(node, run_module, check=False, **more):
    options = {"NVreg_RestrictProfilingToAdminUsers": "0"}
    return run_module(
        node.module, check=check, **{**ARGUMENTS, "options": options, "configuration": str(node.configuration), **more}
    )


@pytest.mark.parametrize("check", [False, True])
def test_a_converged_node_is_left_alone(converged, run_module, check):
    result = run(converged, run_module, check)
    assert not result.get("failed"), result
    assert (result["changed"], result["release"], result["loaded_version"]) == (False, V, V)
    assert result["kernels"] == {OLD: V, NEW: V} and result["gpus"] == GPUS
    assert result["reboot_reason"] is None and converged.altered() == []


@pytest.mark.parametrize("check", [False, True])
def test_a_node_without_a_gpu_is_fine_where_none_is_demanded(node, run_module, check):
    """Peers' item 21; the lab."""
    node.packages(nvidia_open=f"{V}-0ubuntu1")
    for release in (OLD, NEW):
        node.kernel(release, V)
    result = run(node, run_module, check, gpus_demanded=False)
    assert not result.get("failed"), result
    assert result["changed"] is False and result["loaded_version"] is None and node.altered() == []
    result = run(node, run_module, gpus_demanded=True)
    assert result["failed"] and "no NVIDIA GPU" in result["msg"] and result["next_step"]


def test_check_mode_on_a_fresh_node_says_what_would_come(node, run_module):
    node.packages()
    for release in (OLD, NEW):
        node.kernel(release, None)
    node.gpus()
    result = run(node, run_module, check=True)
    assert not result.get("failed"), result
    assert result["changed"] and f"module of kernel {OLD}: new" in result["diff"]["after"] and node.altered() == []
    assert result["units"] == []


def test_a_fabric_manager_of_another_version_is_an_error(node, run_module):
    """Bug 100, peers' items 18, 22 and 23: to the last digit."""
    node.packages(nvidia_open="580.105.08-0ubuntu1", nvidia_fabricmanager="580.105.06-1")
    for release in (OLD, NEW):
        node.kernel(release, V)
    result = run(
        node,
        run_module,
        packages=["nvidia-open", "nvidia-fabricmanager"],
        fabric_manager="nvidia-fabricmanager",
    )
    assert result["failed"] and "nvidia-fabricmanager 580.105.06-1" in result["msg"] and "last digit" in result["msg"]


def test_a_package_that_is_missing_is_an_error(node, run_module):
    node.packages()
    for release in (OLD, NEW):
        node.kernel(release, V)
    result = run(node, run_module)
    assert result["failed"] and "nvidia-open is not installed" in result["msg"]


@pytest.mark.parametrize(("version", "said"), [(None, "has no module"), (BEFORE, f"has {BEFORE}")])
def test_a_kernel_that_dkms_did_not_build_for_is_built_for(node, run_module, commands, version, said):
    """Bug 102, peers' items 11 and 13: the module of every kernel, before anybody boots into it."""
    node.packages(nvidia_open=f"{V}-0ubuntu1")
    node.kernel(NEW, V)
    node.kernel(OLD, version)
    (node.root / "dkms/nvidia" / V).mkdir(parents=True)
    commands.answer("dkms status", f"nvidia/{V}, {NEW}, x86_64: installed\n")
    commands.answer("dkms install *", rc=0)
    if version is None:
        node.kernel(OLD, V)  # what modprobe and modinfo say after the build
    else:
        path = f"{node.root}/modules/{OLD}/updates/dkms/nvidia.ko"
        text = f"filename: {path}\nversion: {V}\nlicense: Dual MIT/GPL\nvermagic: {OLD} SMP\n"
        commands.answer(f"modinfo {path}", text)
    result = run(node, run_module, gpus_demanded=False)
    assert not result.get("failed"), result
    assert result["changed"] and result["kernels"][OLD] == V
    assert commands.calls("dkms")[-1] == f"dkms install --force -m nvidia -v {V} -k {OLD}"


def test_a_build_that_fails_shows_its_log_and_broken_entries(node, run_module, commands):
    """Bug 102: dkms status ends at a broken entry."""
    node.packages(nvidia_open=f"{V}-0ubuntu1")
    node.kernel(NEW, V)
    node.kernel(OLD, None)
    log = node.root / "dkms/nvidia" / V / "build/make.log"
    commands.answer("dkms status", err="Error! Could not locate dkms.conf file.\n", rc=4)
    result = run(node, run_module)
    assert result["failed"] and "no sources" in result["msg"] and "Could not locate dkms.conf" in result["msg"]
    log.parent.mkdir(parents=True)
    commands.answer("dkms install *", rc=10, err="Error! Bad return status")
    result = run(node, run_module)
    assert result["failed"] and "Bad return status" in result["msg"] and "dkms install" in result["next_step"]
    log.write_text(f"DKMS make.log for nvidia-{V} for kernel {OLD} (x86_64)\nnv.c:1: error: implicit declaration\n")
    result = run(node, run_module)
    assert result["failed"] and "implicit declaration" in result["msg"] and OLD in result["msg"]


@pytest.mark.parametrize(
    ("version", "license_text", "said"),
    [(None, "", "has no module"), (BEFORE, "Dual MIT/GPL", BEFORE), (V, "NVIDIA", "the proprietary module")],
)
def test_a_prebuilt_module_that_does_not_fit_is_an_error(node, run_module, version, license_text, said):
    node.packages(nvidia_open=f"{V}-0ubuntu1")
    node.kernel(NEW, V)
    node.kernel(OLD, version, license_text)
    result = run(node, run_module, modules_from="prebuilt")
    assert result["failed"] and f"{OLD} has" in result["msg"] and said in result["msg"]
    assert "module_package" in result["next_step"] and node.altered() == []


def test_the_module_is_loaded_where_a_gpu_is(node, run_module):
    node.packages(nvidia_open=f"{V}-0ubuntu1")
    node.gpus()
    node.smi()
    text = f"NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  {V}  Release"
    effect = f'[ "$*" != nvidia ] || {{ mkdir -p {node.root}/proc_gpus/{GPUS[0]} {node.root}/proc_gpus/{GPUS[1]}; '
    for release in (OLD, NEW):
        node.kernel(release, V)
    node.on_command("modprobe nvidia", f"{effect}echo '{text}' > {node.root}/proc_version; }}")
    result = run(node, run_module)
    assert not result.get("failed"), result
    assert result["changed"] and result["loaded_version"] == V and result["gpus"] == GPUS


@pytest.mark.parametrize(
    ("err", "log", "said", "step"),
    [
        ("could not insert 'nvidia': Key was rejected by service", "", "Secure Boot", "mokutil"),
        ("could not insert 'nvidia': No such device", "NVRM: No NVIDIA GPU found.", "the driver found no GPU", "lspci"),
        (
            "could not insert 'nvidia': No such device",
            "NVRM: GPU 0000:1b:00.0 is already bound to vfio-pci.\nNVRM: No NVIDIA devices probed.",
            "bound to vfio-pci",
            "holds the GPUs",
        ),
        ("could not insert 'nvidia': Exec format error", "", "another kernel", "vermagic"),
        (
            "could not insert 'nvidia': Unknown symbol in module",
            "nvidia: Unknown symbol drm_x (err -2)",
            "drm_x",
            "dmesg",
        ),
    ],
)
def test_a_load_that_fails_gives_the_reason_of_the_kernel_log(node, run_module, commands, err, log, said, step):
    """Bug 105, and the issue: a driver that cannot see its GPUs is an error with the reason."""
    commands.table.clear()
    commands.answer("dmesg", f"[5.0] {log}\n")
    node.packages(nvidia_open=f"{V}-0ubuntu1")
    node.gpus()
    for release in (OLD, NEW):
        node.kernel(release, V)
    commands.answer("modprobe nvidia", rc=1, err=f"modprobe: ERROR: {err}")
    result = run(node, run_module)
    assert result["failed"] and said in result["msg"] and err in result["msg"] and step in result["next_step"]


def test_a_gpu_that_the_driver_does_not_see_is_an_error(converged, run_module, commands):
    commands.table[:] = [entry for entry in commands.table if entry["line"] not in ("dmesg", "nvidia-smi -L")]
    commands.answer("dmesg", "NVRM: GPU 0000:43:00.0: RmInitAdapter failed! (0x62:0x65:1860)\n")
    converged.smi(1)
    result = run(converged, run_module)
    assert result["failed"] and "sees 1 of 2 GPUs" in result["msg"] and "could not initialise" in result["msg"]
    assert not run(converged, run_module, gpus_demanded=False).get("failed")


def active_units(commands, *active):
    for name in ("nvidia-dcgm", "dcgm-exporter", "nvidia-fabricmanager", "nvidia-persistenced"):
        commands.answer(f"systemctl is-active {name}.service", rc=0 if f"{name}.service" in active else 3)


def older_driver(node):
    node.packages(nvidia_open=f"{V}-0ubuntu1")
    for release in (OLD, NEW):
        node.kernel(release, V)
    node.gpus()
    node.loaded(BEFORE)
    node.smi()
    return node


@pytest.mark.parametrize("check", [False, True])
def test_another_driver_loaded_than_installed_is_a_reboot_request(node, run_module, check):
    """Bugs 098 and 099, peers' items 1 and 2."""
    result = run(older_driver(node), run_module, check)
    assert not result.get("failed"), result
    assert f"{BEFORE} (open) is loaded, {V} (open) is installed" in result["reboot_reason"]
    assert result["reboot_still_needed"][0] == "/bin/sh" and node.altered() == [] and result["changed"] is False


def test_a_reload_happens_where_allowed_and_nothing_uses_the_gpus(node, run_module, commands):
    older_driver(node)
    node.user(10, "nvidia-persiste", "0::/system.slice/nvidia-persistenced.service\n")
    active_units(commands, "nvidia-persistenced.service")
    node.on_command("systemctl st*", f'[ "$1" != stop ] || rm -r {node.root}/proc/10')
    commands.answer("rmmod *")
    text = f"NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  {V}  Release"
    node.on_command("modprobe nvidia", f"[ \"$*\" != nvidia ] || echo '{text}' > {node.root}/proc_version")
    result = run(node, run_module, reload_allowed=True)
    assert not result.get("failed"), result
    assert result["reloaded"] and result["changed"] and result["loaded_version"] == V
    assert result["reboot_reason"] is None and result["kept_by"] == []
    assert commands.calls("rmmod") == ["rmmod nvidia_uvm", "rmmod nvidia"]
    verbs = [line for line in commands.calls("systemctl") if "is-active" not in line]
    assert verbs == ["systemctl stop nvidia-persistenced.service", "systemctl start nvidia-persistenced.service"]


def test_no_reload_while_a_process_has_a_gpu_open(node, run_module, commands):
    older_driver(node)
    node.user(4711, "python")
    active_units(commands, "nvidia-persistenced.service")
    commands.answer("systemctl st*")
    result = run(node, run_module, reload_allowed=True)
    assert not result.get("failed"), result
    assert result["kept_by"] == ["python (pid 4711)"] and not result["reloaded"] and node.altered() == []
    assert result["reboot_reason"]


def test_services_come_back_where_the_module_stays(node, run_module, commands):
    older_driver(node)
    active_units(commands, "nvidia-dcgm.service")
    commands.answer("systemctl st*")
    commands.answer("rmmod *", rc=1, err="rmmod: ERROR: Module nvidia_uvm is in use")
    result = run(node, run_module, reload_allowed=True)
    assert not result.get("failed"), result
    assert "Module nvidia_uvm is in use" in result["kept_by"][0] and result["reboot_reason"]
    assert commands.calls("systemctl")[-1] == "systemctl start nvidia-dcgm.service"


def test_an_option_that_is_not_in_use_yet_is_a_reboot_request(converged, run_module):
    """ansible-role-nvidia-driver: a changed option was followed by nothing."""
    (converged.root / "proc_params").write_text("RmProfilingAdminOnly: 1\n")
    result = run(converged, run_module)
    assert "NVreg_RestrictProfilingToAdminUsers=1" in result["reboot_reason"] and not result["changed"]


def test_nouveau_that_holds_the_gpus_is_a_reboot_request(node, run_module):
    """Bug 103."""
    older_driver(node)
    for name in ("proc_version", "proc_params"):
        (node.root / name).unlink()
    (node.root / "sys/module/nouveau").mkdir()
    result = run(node, run_module)
    assert not result.get("failed"), result
    assert "nouveau" in result["reboot_reason"] and node.altered() == []


@pytest.mark.parametrize("check", [False, True])
def test_only_images_that_hold_the_module_are_made_anew_and_once(converged, run_module, commands, check):
    """Bug 103: nouveau still in the initramfs; and peers' roles that rebuild in every run."""
    converged.configuration.touch()
    os.utime(converged.configuration, (200, 200))
    for release, time in ((OLD, 100), (NEW, 100)):
        converged.image(release, time)
    commands.answer(f"lsinitramfs *{OLD}", "usr/lib/modules/k/kernel/nouveau.ko\n")
    commands.answer(f"lsinitramfs *{NEW}", "usr/lib/modules/k/kernel/nvme.ko\n")
    image = converged.root / "boot" / f"initrd.img-{OLD}"
    converged.on_command("update-initramfs *", f"touch {image}")
    result = run(converged, run_module, check)
    assert result["changed"] and result["rebuilt"] == [OLD]
    assert commands.calls("update-initramfs") == ([] if check else [f"update-initramfs -u -k {OLD}"])
    if check:
        assert not (converged.root / "state").exists()
        return
    assert list(json.loads((converged.root / "state/initramfs.json").read_text())) == [NEW]
    asked = len(commands.calls("lsinitramfs"))
    result = run(converged, run_module)
    assert result["changed"] is False and len(commands.calls("lsinitramfs")) == asked


def test_an_image_that_cannot_be_made_is_an_error(converged, run_module, commands):
    converged.configuration.touch()
    converged.image(OLD, 100)
    commands.answer("lsinitramfs *", "kernel/nouveau.ko\n")
    commands.answer("update-initramfs *", rc=1, err="cat: write error: No space left on device")
    result = run(converged, run_module)
    assert result["failed"] and "No space left" in result["msg"] and "update-initramfs -u -k" in result["next_step"]


def test_a_running_kernel_that_is_gone_is_a_reboot_request_and_nothing_is_reloaded(converged, run_module):
    converged.uname.release = "6.1.0-9-amd64"
    result = run(converged, run_module, reload_allowed=True)
    assert "6.1.0-9-amd64 is no longer installed" in result["reboot_reason"] and converged.altered() == []


def test_what_cannot_be_told_is_an_error(node, run_module, commands):
    node.packages(nvidia_open=f"{V}-0ubuntu1")
    commands.answer("modprobe *", rc=1)
    for release in (OLD, NEW):
        (node.root / "boot" / f"vmlinuz-{release}").unlink()
    result = run(node, run_module)
    assert result["failed"] and "no installed kernel" in result["msg"] and result["next_step"]
