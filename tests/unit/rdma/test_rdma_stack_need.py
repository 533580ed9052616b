# SPDX-License-Identifier: Apache-2.0
"""What is wrong with an RDMA stack on disk, and what only a boot brings: every case of the failure matrix."""

import os
import subprocess

import pytest
from ansible.module_utils.gpufleet.rdma_devices import NAMES_STILL_DIFFER
from ansible.module_utils.gpufleet.rdma_facts import LoadedModule, ModuleFile, OfedVersion, RdmaDevice
from ansible.module_utils.gpufleet.rdma_stack_need import (
    RdmaStack,
    hcas_without_device,
    installation_fault,
    modules_need,
    names_need,
    still_other_modules,
)

OLD, NEW = "5.15.0-138-generic", "5.15.0-139-generic"
NAMES = ("ib_core", "mlx5_core", "mlx5_ib")
VERSION = "25.07-0.9.7"
HCAS = ["0000:1a:00.0", "0000:3c:00.0"]
DEVICES = [RdmaDevice("mlx5_0", HCAS[0]), RdmaDevice("mlx5_1", HCAS[1])]


def file_of(name, release, origin="ofed", version=VERSION):
    folder = "updates/dkms" if origin == "ofed" else "kernel/drivers/infiniband"
    version = version if origin == "ofed" else None
    path = f"/lib/modules/{release}/{folder}/{name}.ko"
    return ModuleFile(path, version, None, origin == "inbox", (), release, "Dual BSD/GPL", None)


def kernel(release, origin="ofed", **changes):
    return {name: changes.get(name, file_of(name, release, origin)) for name in NAMES}


def loaded(origin="ofed", version=VERSION):
    version = version if origin == "ofed" else None
    return {name: LoadedModule(name, version, None, origin == "ofed") for name in NAMES}


def stack(source="vendor", **changes):
    origin = "inbox" if source == "distro" else "ofed"
    base = RdmaStack(
        source=source,
        kernels={OLD: kernel(OLD, origin), NEW: kernel(NEW, origin)},
        running=NEW,
        loaded=loaded(origin),
        ofed=OfedVersion(f"OFED-internal-{VERSION}", VERSION) if origin == "ofed" else None,
        devices=DEVICES,
        hcas=HCAS,
        device_names="kernel",
    )
    return base._replace(**changes)


@pytest.mark.parametrize("source", ["vendor", "mirror", "distro"])
def test_a_stack_as_wanted(source):
    assert installation_fault(stack(source)) is None
    assert modules_need(stack(source)) is None
    assert names_need(stack(source)) is None
    assert hcas_without_device(stack(source)) == []


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (stack(ofed=None), "ofed_info is not there"),
        # Bug 102 in the shape it has here: a kernel for which dkms has built nothing.
        (stack(kernels={OLD: kernel(OLD, mlx5_ib=None), NEW: kernel(NEW)}), f"kernel {OLD} has no module mlx5_ib"),
        # Bug 112: the kernel's own module although OFED is installed.
        (stack(kernels={NEW: kernel(NEW, "inbox")}), f"kernel {NEW} (running) would load /lib/modules/{NEW}/kernel/"),
        (
            stack(kernels={NEW: kernel(NEW, mlx5_core=file_of("mlx5_core", NEW, version="25.04-0.6.1"))}),
            f"would load mlx5_core 25.04-0.6.1 (/lib/modules/{NEW}/updates/dkms/mlx5_core.ko), and OFED-internal",
        ),
        (stack("distro", kernels={NEW: kernel(NEW, "ofed")}), "although packages.rdma.source is distro"),
        (stack("distro", kernels={NEW: dict.fromkeys(NAMES)}), "comes up without HCAs"),
    ],
)
def test_what_is_wrong_on_disk(found, expected):
    fault = installation_fault(found)
    assert expected in fault.what
    assert fault.next_step


def test_mlnx_ofed_has_one_number_more_than_its_modules():
    files = {NEW: kernel(NEW, mlx5_core=file_of("mlx5_core", NEW, version="23.10-1.1.9"))}
    named = OfedVersion("MLNX_OFED_LINUX-23.10-1.1.9.0", "23.10-1.1.9.0")
    assert installation_fault(stack(kernels=files, ofed=named)) is None
    assert installation_fault(stack(kernels=files, ofed=OfedVersion("MLNX_OFED_LINUX-23.10-1.1.90", "23.10-1.1.90")))


def test_a_node_without_hcas_needs_no_inbox_modules():
    assert installation_fault(stack("distro", kernels={NEW: dict.fromkeys(NAMES)}, hcas=[], loaded={})) is None
    assert modules_need(stack("distro", running="6.0", hcas=[], loaded={})) is None


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (stack(loaded=loaded("inbox")), "ib_core is loaded from the kernel's own (inbox) stack"),
        (stack(loaded={"mlx5_core": LoadedModule("mlx5_core", "25.04-0.6.1", None, True)}), "25.04-0.6.1 is loaded"),
        (stack("distro", loaded=loaded("ofed")), "ib_core is loaded from the DOCA-OFED stack"),
        (stack(running="5.15.0-100-generic"), "the running kernel 5.15.0-100-generic is no longer installed"),
    ],
)
def test_what_only_a_boot_brings(found, expected):
    need = modules_need(found)
    assert expected in need.reason
    assert need.still_needed[0] == "/bin/sh"


def test_names_that_only_a_boot_changes():
    assert "HCA mlx5_0 (0000:1a:00.0), mlx5_1" in names_need(stack(device_names="pci")).reason
    by_pci = [RdmaDevice("ibp26s0", HCAS[0]), RdmaDevice("rocep60s0", HCAS[1]), RdmaDevice("rxe0", None)]
    assert names_need(stack(device_names="pci", devices=by_pci)) is None
    assert "ibp26s0" in names_need(stack(devices=by_pci)).reason
    many = [RdmaDevice(f"mlx5_{number}", f"0000:{number}a:00.0") for number in range(8)]
    assert "and 5 more has another name" in names_need(stack(device_names="pci", devices=many)).reason


def test_a_dead_hca_is_told_and_a_bond_is_not_mistaken_for_one():
    assert hcas_without_device(stack(devices=DEVICES[:1])) == [HCAS[1]]
    assert hcas_without_device(stack(devices=[RdmaDevice("mlx5_bond_0", HCAS[0])])) == []
    assert hcas_without_device(stack(devices=[], loaded={})) == []


class ShellNode:
    """What the two commands of a reboot request look at, in a temporary root."""

    def __init__(self, tmp_path):
        self.sys = tmp_path / "sys"
        self.bin = tmp_path / "bin"
        self.bin.mkdir()

    def load(self, name, taint="OE", **files):
        folder = self.sys / name
        folder.mkdir(parents=True)
        (folder / "taint").write_text(f"{taint}\n")
        for file, content in files.items():
            (folder / file).write_text(f"{content}\n")

    def modinfo(self, path, version="", srcversion=""):
        script = self.bin / "modinfo"
        script.write_text(
            f'#!/bin/sh\ncase "$1 $2" in -n*) echo {path};; *srcversion) echo {srcversion};; *) echo {version};; esac\n'
        )
        script.chmod(0o755)

    def still(self):
        environment = {"PATH": f"{self.bin}:{os.environ['PATH']}"}
        return subprocess.run(still_other_modules(str(self.sys)), env=environment, check=False).returncode == 0


DKMS, KERNEL = "/lib/modules/x/updates/dkms/mlx5_core.ko", "/lib/modules/x/kernel/drivers/net/mlx5_core.ko"


@pytest.mark.parametrize(
    ("files", "taint", "path", "version", "srcversion", "stands"),
    [
        ({"version": "25.07"}, "OE", DKMS, "25.07", "A1", False),
        ({"version": "25.04"}, "OE", DKMS, "25.07", "A1", True),
        ({"version": "25.07", "srcversion": "B2"}, "OE", DKMS, "25.07", "A1", True),
        ({}, "", KERNEL, "", "", False),
        ({}, "", DKMS, "25.07", "", True),
        ({"version": "25.07"}, "OE", KERNEL, "", "", True),
    ],
)
def test_the_command_sees_the_same(tmp_path, files, taint, path, version, srcversion, stands):
    node = ShellNode(tmp_path)
    node.load("mlx5_core", taint, **files)
    node.modinfo(path, version, srcversion)
    assert node.still() is stands


def test_the_command_with_nothing_loaded_and_without_modinfo(tmp_path):
    node = ShellNode(tmp_path)
    assert not node.still()
    node.load("mlx5_ib")
    (node.bin / "modinfo").write_text("#!/bin/sh\nexit 1\n")
    (node.bin / "modinfo").chmod(0o755)
    assert node.still()


@pytest.mark.parametrize(
    ("wanted", "names", "stands"),
    [
        ("pci", ["ibp26s0", "rocep60s0f1"], False),
        ("pci", ["ibp26s0", "mlx5_1"], True),
        ("kernel", ["mlx5_0", "mlx5_1"], False),
        ("kernel", ["mlx5_0", "ibp60s0"], True),
        ("kernel", ["mlx5_0", "rocex525400c0fe123455"], True),
        ("kernel", [], False),
        ("pci", [], False),
    ],
)
def test_the_command_about_names(tmp_path, wanted, names, stands):
    folder = tmp_path / "infiniband"
    folder.mkdir()
    (folder / "rxe0").symlink_to("../devices/virtual/infiniband/rxe0")
    for name in names:
        (folder / name).symlink_to(f"../devices/pci0000:15/0000:1a:00.0/infiniband/{name}")
    argv = [part.replace("/sys/class/infiniband", str(folder)) for part in NAMES_STILL_DIFFER[wanted]]
    assert (subprocess.run(argv, check=False).returncode == 0) is stands
