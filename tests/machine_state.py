# SPDX-License-Identifier: Apache-2.0
"""Prove that a test run left this machine's clock, kernel modules, sysctls and name alone.

    python -m tests.machine_state record FILE      before the suite
    python -m tests.machine_state compare FILE     after it; prints every difference and exits 1 if there is one

The clock is compared by the distance between the wall clock and CLOCK_BOOTTIME: a step moves it by the step, while time
that passes does not. A time daemon slews it by 500 ppm at most, so that much drift is allowed (0.5 s in 1,000 s).
"""

import ctypes
import json
import platform
import subprocess
import sys
import time
from pathlib import Path
from typing import TypedDict

# Kernel counters and what the kernel or other programs renew all the time, not settings. A name ending in "." stands
# for all below it.
VOLATILE_SYSCTLS = (
    "fs.dentry-state",
    "fs.file-nr",
    "fs.inode-nr",
    "fs.inode-state",
    "fs.quota.",
    "fs.aio-nr",
    "fs.epoll.",
    "kernel.ns_last_pid",
    "kernel.pty.nr",
    "kernel.random.",
    "kernel.sched_domain.",
    "kernel.perf_event_max_sample_rate",  # the kernel lowers it by itself under load
    "kernel.perf_cpu_time_max_percent",
    "kernel.tainted",  # shown by the module list where it matters
    "net.netfilter.nf_conntrack_count",
    "net.ipv4.tcp_fastopen_key",
    "net.ipv6.conf.all.stable_secret",
    "vm.stat_refresh",
)
# Settings below these exist once for each network interface; podman's bridge and veth pairs come and go.
INTERFACE_SYSCTLS = ("net.ipv4.conf.", "net.ipv4.neigh.", "net.ipv6.conf.", "net.ipv6.neigh.", "net.mpls.conf.")
# podman's bridged network switches forwarding on for the whole machine, by design; no role does.
# net.ipv4.ip_forward is one setting with net.ipv4.conf.all.forwarding and the default of new interfaces.
PODMAN_SYSCTLS = (
    "net.ipv4.ip_forward",
    "net.ipv4.conf.all.forwarding",
    "net.ipv4.conf.default.forwarding",
    "net.ipv6.conf.all.forwarding",
    "net.ipv6.conf.default.forwarding",
    # bridge and conntrack settings appear when their modules are loaded
    "net.bridge.",
    "net.netfilter.",
    "net.nf_conntrack_max",
)
# Modules that the kernel loads on its own for a container's filesystem and bridged network, and for QEMU's. None of
# them is something a role could load.
CONTAINER_MODULES = (
    "bridge", "br_netfilter", "llc", "stp", "veth", "overlay", "dummy", "fuse", "tun", "tap", "vhost", "vhost_net",
    "kvm", "kvm_intel", "kvm_amd", "irqbypass", "loop",
    "ip_tables", "ip6_tables", "iptable_filter", "iptable_nat", "ip6table_filter", "ip6table_nat", "x_tables",
    "xt_comment", "xt_conntrack", "xt_addrtype", "xt_mark", "xt_MASQUERADE", "xt_multiport", "xt_nat", "xt_tcpudp",
    "nf_conntrack", "nf_nat", "nf_tables", "nfnetlink", "nf_defrag_ipv4", "nf_defrag_ipv6", "nf_reject_ipv4",
    "nft_chain_nat", "nft_compat", "nft_fib", "nft_ct", "nft_masq", "nft_nat", "libcrc32c",
)  # fmt: skip
# adjtimex status bits that say how the clock is steered; the rest are measurements. STA_PLL, STA_PPSFREQ, STA_PPSTIME,
# STA_FLL, STA_INS, STA_DEL (linux/timex.h).
CLOCK_STEERING_BITS = 0x1 | 0x2 | 0x4 | 0x8 | 0x10 | 0x20
MAXIMUM_SLEW = 500e-6
CLOCK_READING_NOISE_S = 0.01


class State(TypedDict):
    """What is recorded; `boot_distance_s` is wall clock minus time since boot."""

    boot_id: str
    boottime_s: float
    boot_distance_s: float
    clock_steering: int
    hostname: str
    modules: list[str]
    sysctls: dict[str, str]


class _Timex(ctypes.Structure):
    """The start of struct timex, up to the status word; the rest is room for the kernel to write to."""

    _fields_ = (
        ("modes", ctypes.c_uint),
        ("offset", ctypes.c_long),
        ("freq", ctypes.c_long),
        ("maxerror", ctypes.c_long),
        ("esterror", ctypes.c_long),
        ("status", ctypes.c_int),
        ("rest", ctypes.c_long * 32),
    )


def clock_steering() -> int:
    """How the kernel steers the clock: the status bits of adjtimex(2) that are settings. Reading needs no privilege."""
    timex = _Timex(modes=0)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.adjtimex(ctypes.byref(timex)) < 0:
        raise OSError(ctypes.get_errno(), "adjtimex")
    return int(timex.status) & CLOCK_STEERING_BITS


def clock_reading() -> tuple[float, float]:
    """Time since boot, and how far the wall clock is from it, in seconds; the closest of several pairs of readings."""
    pairs = []
    for _ in range(20):
        before = time.clock_gettime(time.CLOCK_BOOTTIME)
        wall = time.time()
        after = time.clock_gettime(time.CLOCK_BOOTTIME)
        pairs.append((after - before, after, wall - (before + after) / 2))
    _, boottime, distance = min(pairs)
    return boottime, distance


def is_volatile(name: str) -> bool:
    """True for a sysctl that changes while nobody sets anything, or that podman's network sets."""
    if name.startswith(INTERFACE_SYSCTLS) and name.split(".")[3] not in ("all", "default"):
        return True
    return any(
        name.startswith(entry) if entry.endswith(".") else name == entry for entry in VOLATILE_SYSCTLS + PODMAN_SYSCTLS
    )


def parse_sysctls(text: str) -> dict[str, str]:
    """The settings in the output of `sysctl -a`, without the volatile ones."""
    settings = {}
    for line in text.splitlines():
        name, separator, value = line.partition(" = ")
        if not separator:
            name, separator, value = line.partition(" =")
        if separator and not is_volatile(name):
            settings[name] = value
    return settings


def parse_modules(text: str) -> list[str]:
    """Names of the loaded modules in /proc/modules, without those that containers bring."""
    return sorted({line.split()[0] for line in text.splitlines() if line.strip()} - set(CONTAINER_MODULES))


def read_state() -> State:
    """This machine's state now."""
    boottime, distance = clock_reading()
    listing = subprocess.run(
        ["sysctl", "-a"],
        capture_output=True,
        text=True,
        check=False,
        env={"LC_ALL": "C", "PATH": "/usr/sbin:/sbin:/usr/bin:/bin"},
    )
    sysctls = parse_sysctls(listing.stdout)
    if not sysctls:
        raise SystemExit(f"machine_state: sysctl -a listed nothing (rc {listing.returncode}): {listing.stderr.strip()}")
    return {
        "boot_id": Path("/proc/sys/kernel/random/boot_id").read_text().strip(),
        "boottime_s": boottime,
        "boot_distance_s": distance,
        "clock_steering": clock_steering(),
        "hostname": platform.node(),
        # a kernel without loadable modules has no such file, and then nothing can be loaded either
        "modules": parse_modules(Path("/proc/modules").read_text()) if Path("/proc/modules").exists() else [],
        "sysctls": sysctls,
    }


def differences(before: State, after: State) -> list[str]:
    """One line for each thing that is not as it was; empty when the machine is unchanged."""
    if before["boot_id"] != after["boot_id"]:
        return ["the machine was rebooted between the two records, so nothing can be compared: record again"]
    lines = []
    moved = after["boot_distance_s"] - before["boot_distance_s"]
    allowed = CLOCK_READING_NOISE_S + MAXIMUM_SLEW * (after["boottime_s"] - before["boottime_s"])
    if abs(moved) > allowed:
        lines.append(f"clock: stepped by {moved:+.3f} s (a time daemon may move it by {allowed:.3f} s in this time)")
    for key in ("clock_steering", "hostname"):
        if before[key] != after[key]:
            lines.append(f"{key}: was {before[key]}, is {after[key]}")
    lines += [f"module loaded: {name}" for name in sorted(set(after["modules"]) - set(before["modules"]))]
    lines += [f"module unloaded: {name}" for name in sorted(set(before["modules"]) - set(after["modules"]))]
    for name in sorted(before["sysctls"].keys() | after["sysctls"].keys()):
        was, now = before["sysctls"].get(name), after["sysctls"].get(name)
        if was != now:
            lines.append(
                f"sysctl {name}: was {'absent' if was is None else was}, is {'absent' if now is None else now}"
            )
    return lines


def main(arguments: list[str]) -> int:
    """Command line: record FILE, or compare FILE."""
    if len(arguments) != 2 or arguments[0] not in ("record", "compare"):
        print(__doc__, file=sys.stderr)
        return 2
    file = Path(arguments[1])
    if arguments[0] == "record":
        state = read_state()
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(state, indent=1))
        print(f"recorded clock, {len(state['modules'])} modules and {len(state['sysctls'])} sysctls in {file}")
        return 0
    if not file.exists():
        print(f"machine_state: {file} does not exist: run `record` before the suite", file=sys.stderr)
        return 2
    before: State = json.loads(file.read_text())
    found = differences(before, read_state())
    for line in found:
        print(f"CHANGED {line}")
    print("the machine is unchanged" if not found else f"{len(found)} changes: a test touched this machine")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
