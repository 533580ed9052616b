# SPDX-License-Identifier: Apache-2.0
"""Which RDMA stack a node has, from text alone: the same parsers serve role rdma_stack and the health checks.

Two stacks exist. "inbox": the modules that the kernel's own packages hold. "ofed": DOCA-OFED or its predecessor
MLNX_OFED, built for the kernel as external modules. Which one is loaded is told by the modules, never by the text of
openibd, which ends with OK where modules failed (bug 111), nor by ofed_info alone, which names what is installed while
the kernel may run the inbox modules (bug 112).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from .package_version import natural

# The modules that decide: the core of the subsystem, the card's driver, and its RDMA half.
STACK_MODULES = ("ib_core", "mlx5_core", "mlx5_ib")
# Loaded with OFED only: its layer over the kernel's interfaces.
OFED_ONLY_MODULE = "mlx_compat"
# NVIDIA's (Mellanox's) PCI vendor number: what mlx5 drives. The lab's stand-ins for HCAs are of others.
MELLANOX = "15b3"
# Which stack each source brings.
ORIGIN_OF_SOURCE = {"vendor": "ofed", "mirror": "ofed", "distro": "inbox"}

# What the parsers read. A missing /sys/class/infiniband (find ends with 1) means that ib_core is not loaded.
OFED_INFO_ARGV = ("ofed_info", "-s")
INFINIBAND_CLASS = "/sys/class/infiniband"
INFINIBAND_ARGV = ("find", INFINIBAND_CLASS, "-mindepth", "1", "-maxdepth", "1", "-printf", "%f %l\\n")

_PCI_ADDRESS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")


class ModuleFile(NamedTuple):
    """The file that modprobe would load for a module, as modinfo describes it.

    path: "" for a module that is built into the kernel. version, srcversion: None where the module states none (inbox
    mlx5 has no version since Linux 5.10 [assumption: not looked up for each kernel]). intree: built with the kernel.
    depends: names of modules. release: the kernel it was built for (first word of vermagic), None where not stated.
    internal_name: what it was called when it was built (modinfo's line "name").
    """

    path: str
    version: str | None
    srcversion: str | None
    intree: bool
    depends: tuple[str, ...]
    release: str | None
    license: str | None
    signer: str | None
    internal_name: str | None = None

    @property
    def name(self) -> str:
        """The name that it has once loaded: its own, else the file's with underscores.

        Debian's nvidia-current-open-peermem.ko is called nvidia_peermem in the kernel (package
        nvidia-open-kernel-support 535.261.03, comment in nvidia-modprobe.conf: unloading needs the internal names).
        """
        if self.internal_name:
            return self.internal_name
        file = self.path.rpartition("/")[2]
        return re.sub(r"\.ko(\.(gz|xz|zst))?$", "", file).replace("-", "_")

    @property
    def origin(self) -> str:
        """ "inbox" or "ofed", by where it lies: kernel packages fill kernel/, everybody else updates/ or extra/.

        intree alone does not tell: Lustre's and other people's builds lack it as well, but those do not bring ib_core
        or mlx5. Bug 112 has the shape of an inbox module, which is kernel/drivers with intree: Y.
        """
        return "inbox" if not self.path or re.search(r"/kernel/(drivers|net)/", self.path) else "ofed"


class LoadedModule(NamedTuple):
    """A module in the kernel, from /sys/module/<name>: version and srcversion are None where the files are missing.

    out_of_tree: whether it taints as external (letter O in taint, include/linux/panic.h), so as OFED's do.
    """

    name: str
    version: str | None
    srcversion: str | None
    out_of_tree: bool

    @property
    def origin(self) -> str:
        """ "inbox" or "ofed"."""
        return "ofed" if self.out_of_tree else "inbox"


class RdmaDevice(NamedTuple):
    """A device below /sys/class/infiniband. pci_address is None for a virtual one (soft-RoCE, siw)."""

    name: str
    pci_address: str | None


class OpenibdReport(NamedTuple):
    """What openibd printed. failed: its lines that end with [FAILED]. ok: its lines that end with [ OK ]."""

    ok: tuple[str, ...]
    failed: tuple[str, ...]

    @property
    def contradicts_itself(self) -> bool:
        """Whether it reports that the driver is loaded although modules failed (bug 111)."""
        return bool(self.failed) and any(line.lower().startswith("loading hca driver") for line in self.ok)


class OfedVersion(NamedTuple):
    """What ofed_info -s printed: name as printed, version without it.

    DOCA's OFED calls itself OFED-internal-25.07-0.9.7, MLNX_OFED MLNX_OFED_LINUX-23.10-1.1.9.0. Neither is the version
    of package doca-ofed (3.1.0), so that one is compared as a package.
    """

    name: str
    version: str


def parse_ofed_info(text: str) -> OfedVersion:
    """`ofed_info -s`: one line, a colon at its end. Raises ValueError for anything else (a role that looks for the
    word MLNX_OFED takes DOCA for no OFED at all: oci-hpc, ansible-peers.md A.7).
    """
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    found = (
        re.fullmatch(r"((?:MLNX_)?OFED[A-Za-z_]*(?:-[A-Za-z]+)?)-(\d[\w.-]*):?", lines[0]) if len(lines) == 1 else None
    )
    if found is None:
        raise ValueError(
            f"ofed_info -s printed {text.strip()[:200]!r}, expected one line such as OFED-internal-25.07-0.9.7:"
        )
    return OfedVersion(f"{found.group(1)}-{found.group(2)}", found.group(2))


def parse_modinfo(text: str) -> ModuleFile:
    """What `modinfo [-k release] <module>` printed for one module; raises ValueError where it names no file."""
    fields: dict[str, str] = {}
    for line in text.splitlines():
        key, colon, value = line.partition(":")
        if colon and re.fullmatch(r"[a-z_]+", key):
            # The first counts: alias and parm come many times, the fields read here once.
            fields.setdefault(key, value.strip())
    path = fields.get("filename", "")
    if not path:
        raise ValueError(f"modinfo printed no filename: {text.strip()[:200]!r}")
    vermagic = fields.get("vermagic", "").split()
    return ModuleFile(
        path="" if path == "(builtin)" else path,
        version=fields.get("version") or None,
        srcversion=fields.get("srcversion") or None,
        intree=fields.get("intree", "").upper() == "Y" or path == "(builtin)",
        depends=tuple(name.replace("-", "_") for name in fields.get("depends", "").split(",") if name),
        release=vermagic[0] if vermagic else None,
        license=fields.get("license") or None,
        signer=fields.get("signer") or None,
        internal_name=fields.get("name") or None,
    )


def parse_sys_module(files: Mapping[str, str]) -> dict[str, LoadedModule]:
    """Modules from what /sys/module/<name>/{taint,version,srcversion} hold, path -> content.

    A module counts where its taint is among them: the file is there for each module that was loaded, and only for
    those (what is built into the kernel has at most a version). Content may be empty.
    """
    found = {}
    for path in sorted(files):
        place = re.fullmatch(r"/sys/module/([^/]+)/taint", path)
        if place:
            folder = path.rpartition("/")[0]
            found[place.group(1)] = LoadedModule(
                place.group(1),
                files.get(f"{folder}/version", "").strip() or None,
                files.get(f"{folder}/srcversion", "").strip() or None,
                "O" in files[path],
            )
    return found


def sys_module_paths(names: Iterable[str]) -> tuple[str, ...]:
    """The files that parse_sys_module reads, for a probe or a loop."""
    return tuple(f"/sys/module/{name}/{file}" for name in names for file in ("taint", "version", "srcversion"))


def parse_infiniband_devices(text: str) -> list[RdmaDevice]:
    """Lines "<name> <target of the link>" of INFINIBAND_ARGV, sorted by name; raises ValueError for another line."""
    devices = []
    for line in filter(None, (line.strip() for line in text.splitlines())):
        name, blank, target = line.partition(" ")
        if not blank or "/devices/" not in target:
            raise ValueError(f"{INFINIBAND_CLASS}: {line!r} is no device with the link it should have")
        # .../pci0000:15/0000:15:01.0/0000:1a:00.0/infiniband/mlx5_0: the device is the last address.
        addresses = _PCI_ADDRESS.findall(target.partition("/infiniband/")[0])
        devices.append(RdmaDevice(name, addresses[-1] if addresses else None))
    return sorted(devices, key=lambda device: natural(device.name))


def named_by(device: RdmaDevice) -> str:
    """Which rule of rdma-core's naming gave a device its name: "kernel", "pci", "guid" or "other".

    rdma_rename (rdma-core 44, kernel-boot/rdma_rename.c): by PCI address ibp26s0, rocep26s0f1, with a domain ibP1p26s0;
    by GUID ibx506b4b0300f5b1a6. The kernel's are <driver>_<number>.
    """
    if re.fullmatch(r"(mlx4|mlx5|bnxt_re|irdma|rdma|siw|rxe)(_bond)?_?\d+", device.name):
        return "kernel"
    if re.fullmatch(r"(ib|roce|iw|opa|rdma)(P\d+)?p\d+s\d+(f\d+)?", device.name):
        return "pci"
    if re.fullmatch(r"(ib|roce|iw|opa|rdma)x[0-9a-f]{16}", device.name):
        return "guid"
    return "other"


def misnamed(devices: Sequence[RdmaDevice], wanted: str) -> list[RdmaDevice]:
    """Devices with a PCI address whose name another rule gave than wanted (kernel or pci).

    With "kernel" a name that nobody knows passes: it is somebody's driver or own rule for a board.
    """
    real = [device for device in devices if device.pci_address is not None]
    if wanted == "pci":
        return [device for device in real if named_by(device) != "pci"]
    return [device for device in real if named_by(device) in ("pci", "guid")]


def parse_openibd(text: str) -> OpenibdReport:
    """Lines of openibd start, restart or status that end with a mark. For a message; never a proof that it worked."""
    ok: list[str] = []
    failed: list[str] = []
    # Colours come with a terminal only, and with SYSTEMD_COLORS.
    for line in re.sub(r"\x1b\[[0-9;]*[A-Za-z]", "", text).splitlines():
        mark = re.fullmatch(r"(.*?)\s*\[\s*(OK|FAILED)\s*\]\s*", line)
        if mark:
            (ok if mark.group(2) == "OK" else failed).append(mark.group(1).strip().rstrip(":"))
    return OpenibdReport(tuple(ok), tuple(failed))


def differs_from_file(loaded: LoadedModule, file: ModuleFile) -> str | None:
    """How the module in the kernel is another one than modprobe would load, or None.

    Compares what both sides state: origin first, then version and srcversion (a checksum of the sources).
    """
    if loaded.origin != file.origin:
        have, want = stack_name(loaded.origin), stack_name(file.origin)
        return (
            f"{loaded.name} is loaded from the {have}, {file.path or 'what the kernel has built in'} is of the {want}"
        )
    for what in ("version", "srcversion"):
        have, want = getattr(loaded, what), getattr(file, what)
        if have is not None and want is not None and have != want:
            return f"{loaded.name} {have} is loaded, {file.path} is {want}" + (
                "" if what == "version" else f" ({what})"
            )
    return None


def stack_name(origin: str) -> str:
    """ "inbox" and "ofed" in words."""
    return {"inbox": "kernel's own (inbox) stack", "ofed": "DOCA-OFED stack"}[origin]
