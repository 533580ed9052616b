# SPDX-License-Identifier: Apache-2.0
"""Which kernel messages are about what: a kind for those that a check reads, and forms that look bad but are not.

The forms come from the kernel's and the drivers' sources, as recorded in public test data: leptonai/gpud (kmsg matchers
of cpu, disk, memory, infiniband), scitix/sichek (event rules), imbue-ai/cluster-health (dmesg_whitelist.py of a healthy
XE9680 fleet), and the numbered cases of this project.
"""

from __future__ import annotations

import functools
import re

ORDINARY = "ordinary"
ERROR_LIKE = "error_like"

# Kind, words of which one must be there (to look for them is fast, where ordinary messages have none), regular
# expression. The first that is found in a message decides, so the narrower form stands before the wider one.
_KINDS = (
    ("xid", ("Xid",), r"NVRM:.*\bXid\b|\bXid \((?:PCI:)?[0-9a-fA-F]{4}:"),
    ("sxid", ("SXid",), r"\bSXid\b"),
    ("gpu_bus", ("fallen off the bus",), r"fallen off the bus"),
    ("gpu_init", ("dapter failed",), r"NVRM: .*(?:RmInitAdapter|rm_init_adapter) failed"),
    (
        "driver_load",
        ("NVRM: loading", "nvidia-nvlink"),
        r"NVRM: loading NVIDIA UNIX|nvidia-nvlink: Nvlink Core is being initialized",
    ),
    ("peermem", ("nvidia-peermem",), r"nvidia-peermem.*invalid context"),
    # memory and processor
    ("edac_uncorrected", ("EDAC",), r"EDAC .*\b\d+ UE\b"),
    ("edac_corrected", ("EDAC",), r"EDAC .*\b\d+ CE\b"),
    (
        "memory_failure",
        ("Memory failure", "ncorrected"),
        r"Memory failure: 0x|mce: Uncorrected hardware memory error|\[Hardware Error\]: Uncorrected, ",
    ),
    (
        "mce",
        ("Machine Check", "Machine check"),
        r"mce: \[Hardware Error\]: CPU \d+: Machine Check|Machine check events logged",
    ),
    ("firmware_error", ("event severity",), r"\[Hardware Error\]: +event severity: "),
    # out of memory
    ("oom_kill", ("out of memory: Kill", "Out of memory: Kill"), r"[Oo]ut of memory: Kill"),
    ("oom_constraint", ("oom-kill",), r"oom-kill:constraint="),
    ("oom_invoked", ("oom-killer",), r"invoked oom-killer"),
    # processors and tasks that stand still
    ("hung_task", ("blocked for more",), r"task .+ blocked for more than \d+ seconds"),
    ("soft_lockup", ("soft lockup",), r"soft lockup - CPU#"),
    ("hard_lockup", ("hard LOCKUP",), r"hard LOCKUP"),
    ("rcu_stall", ("detected stall", "starved"), r"rcu.*detected stall|rcu.*kthread starved"),
    ("segfault", ("segfault", "traps: "), r"\]: segfault at |^traps: .*(?:general protection|trap )"),
    (
        "oops",
        ("BUG", "Oops", "general protection", "panic", "Unable to handle", "Internal error", "corruption"),
        r"^(?:BUG: |kernel BUG at |Oops|general protection fault|Kernel panic|Unable to handle kernel"
        r"|Internal error: |(?:list_add|list_del) corruption|watchdog: BUG: )|\bOops: ",
    ),
    # PCIe
    ("pcie_limited", ("limited by",), r"available PCIe bandwidth, limited by"),
    ("pcie_recovery", ("AER",), r"AER: (?:can't recover|.*device recovery failed)|AER: Device recovery failed"),
    (
        "pcie_fatal",
        ("Fatal", "DPC"),
        r"severity=(?:Uncorrected|Uncorrectable) \(Fatal\)|AER: .*Uncorrect(?:ed|able) \(Fatal\)|DPC: containment",
    ),
    (
        "pcie_uncorrected",
        ("Non-Fatal",),
        r"severity=(?:Uncorrected|Uncorrectable) \(Non-Fatal\)|AER: .*Uncorrect(?:ed|able) \(Non-Fatal\)",
    ),
    ("pcie_corrected", ("severity=Corr",), r"severity=(?:Corrected|Correctable)\b"),
    ("pcie_link_down", ("pciehp",), r"pciehp: Slot\(.*\): (?:Link Down|Card not present)"),
    # NVM Express
    ("nvme_function", ("pci function",), r"^nvme nvme\d+: pci function "),
    (
        "nvme_lost",
        (
            "after reset failure",
            "after probe failure",
            "controller is down",
            "frozen state",
            "Device not ready",
            "failed to set",
            "available path",
            "usable path",
        ),
        r"nvme.*(?:Disabling device after reset failure|[Rr]emoving after probe failure"
        r"|controller is down; will reset|frozen state error detected|Device not ready|failed to set .*; removing)"
        r"|no (?:available|usable) path",
    ),
    (
        "nvme_media",
        ("error, dev nvme", "I/O error on dev"),
        r"(?:critical (?:medium|target|space allocation)|I/O) error, dev nvme|Buffer I/O error on dev(?:ice)? nvme",
    ),
    ("nvme_timeout", ("timeout",), r"nvme nvme\d+: .*timeout"),
    # ConnectX
    ("mlx5_power", ("insufficient power",), r"Detected insufficient power on the PCIe slot"),
    ("mlx5_hot", ("emperature",), r"Port module event\[error\].*High [Tt]emperature|mlx5.*[Hh]igh temperature"),
    ("mlx5_module", ("Port module event",), r"Port module event\[error\]"),
    (
        "mlx5_health",
        (
            "firmware fatal",
            "health compromised",
            "device's health",
            "Fatal error",
            "enter_error_state",
            "unrecoverable",
            "health recovery",
            "firmware internal error",
        ),
        r"mlx5.*(?:firmware fatal|health compromised|device's health|Fatal error|enter_error_state|unrecoverable"
        r"|health recovery (?:failed|flow aborted)|firmware internal error)",
    ),
    ("mlx5_timeout", ("imeout", "timed out"), r"mlx5.*(?:[Tt]imeout\. Will cause a leak|timed out|timeout)"),
    # file systems and the disks below them
    (
        "file_system_failed",
        ("md/", "EXT4", "emounting", "XFS", "BTRFS", "JBD2", "journal", "uncorrectable"),
        r"^md/.*(?:[Dd]isk failure|failing array)|EXT4-fs error|EXT4-fs .*I/O error while writing superblock"
        r"|Remounting filesystem read-only|XFS .*(?:[Cc]orruption|I/O error|shut ?down)|BTRFS (?:critical|error)"
        r"|JBD2.*I/?O error|Aborting journal|has encountered an uncorrectable I/O failure",
    ),
    ("disk_error", ("I/O error", "async page write"), r"Buffer I/O error on dev|I/O error, dev |lost async page write"),
    ("server_silent", ("not responding",), r"server \S+ not responding"),
    # limits of the operating system
    (
        "system_limit",
        ("file-max limit", "table full", "fork rejected", "table overflow"),
        r"file-max limit \d+ reached|table full, dropping packet|fork rejected by pids controller"
        r"|neighbou?r.*table overflow",
    ),
)
_WORDS = tuple(word for _kind, words, _pattern in _KINDS for word in words)
KINDS = tuple(kind for kind, _words, _pattern in _KINDS)

# Forms with an alarming word, or printed at priority err or worse, that healthy nodes print too, and the lines that
# belong to a message counted above (tables, registers, call traces).
_HARMLESS = (
    # NVIDIA driver: detail of Xid 119 and 120, names of GPUs
    r"NVRM: +(?:-?\d+ +\d+ |entry function)|NVRM: GPU\d+ (?:GSP RPC buffer|RPC (?:event )?history)",
    r"NVRM: (?:GPU at PCI:|GPU Board Serial Number|Rate limiting GSP RPC error prints|Dumping|krcWatchdog)",
    r"NVRM: The NVIDIA probe routine (?:failed|was not called)|NVRM: None of the NVIDIA devices were initialized",
    r"module license .* taints kernel|module verification failed|loading out-of-tree module taints kernel",
    r"Disabling lock debugging due to kernel taint",
    # ConnectX: reading counters on a function that may not (GPUd issue 1164)
    r"ACCESS_REG\(0x[0-9a-f]+\).* failed",
    # lines of a message that is counted by its first line
    r"^(?:CPU: \d+ |Hardware name: |Call Trace:|Code: |R[A-Z]{2}: |R\d\d: |[CDEFG]S: |CR\d|Stack:|RIP|RSP|PGD |IP: )",
    r"^ *(?:\? )?\S+\+0x[0-9a-f]+/0x[0-9a-f]+|^ *</?(?:TASK|IRQ|NMI)>|^ *\[<[0-9a-f]+>\]|^---\[ (?:end|cut)",
    r"^Modules linked in: |^ *Tainted: |Not tainted|unwind stack type|kernel stack frame pointer at|^Sending NMI ",
    r"hung_task_timeout_secs|^task:|^oom_reaper: |Mem-Info:|\[ *pid *\] *uid|^Tasks state",
    r": +device \[[0-9a-f]{4}:[0-9a-f]{4}\] error status/mask|: +\[ ?\d+\] [A-Z]|AER: Root Port link has been reset",
    r"AER: (?:Multiple )?(?:Corrected|Correctable) error|AER:? +enabled|aer_(?:status|mask|layer)|Error of this Agent",
    r"\[Hardware Error\]",
    # start-up of hardware and firmware
    r"RAS: Correctable Errors collector|Error Record Serialization Table|GHES: |HEST: |EDAC .*(?:Ver:|No hbm)",
    r"^Giving out device",
    r"ACPI (?:BIOS )?(?:Error|Warning)|ACPI: .*(?:_OSC|OSC evaluation|Unable to|failed)|acpi .*_OSC",
    r"\[Firmware (?:Bug|Warn)",
    r"Unable to turn on user SVA|Cannot allocate resource for (?:EISA|mainboard)|control method not found",
    r"probe of spi\S* failed|EISA: |PCI: CLS|nocrs|BAR \d+: (?:no space|failed to assign|can't assign)",
    r"bridge window .*failed",
    r"can't find IRQ|can't claim; no compatible bridge window|can't assign; no space|This is not a bug",
    r"Interrupt Throttling Rate|regulatory|Unable to calibrate against PIT|calibrate_delay_direct",
    r"pnp .*disabled|i8042: |\bPEBS\b|Perf(?:ormance)? Events: |platform .*failed to (?:claim|assign)",
    r"split lock detection|Mitigation:|[Vv]ulnerab|Spectre|MDS CPU bug|TAA CPU bug|MMIO Stale Data|x86/bugs",
    r"pid_max: default|Shutdown timeout set|domain TLB invalidation|Default domain type",
    r"ata\d.*(?:link down|failed to IDENTIFY)|sr\d: |device descriptor read|usb .*(?:disabled by hub|over-current)",
    r"Unable to register .*ipmi|ipmi_si .*(?:Unable to find|probing failed|Interface detection failed)|ERST: ",
    r"failed to (?:register|evaluate) .*(?:rapl|cpufreq)|intel_rapl|cpufreq: ",
    r"Could not retrieve perf counters|Fast TSC calibration failed|TSC .*[Uu]nstable|clocksource: ",
    r"NetLabel: |bridge: filtering via arp|NFSD: (?:Unable to|Using)|memfd_create\(\) called",
    r"DMI not present|Cannot map memory with base addr",
    r"missing firmware|FAT-fs .*not properly unmounted|ignoring tunable zfs_arc_min ",
    r"random: .*uninitialized|Warning: unable to open an initial console|Kernel command line: |Command line: ",
    r"Unknown kernel command line parameters|printk: .*disabled|efi: |EFI .*(?:failed|warning)|Dropping .*signed",
    r"integrity: |Problem loading (?:in-kernel )?X\.509|blacklist: |Loading compiled-in|LSM: |Lockdown: ",
    # load, not a fault
    r"NMI handler .* took too long|perf: interrupt took too long|hrtimer: interrupt took|hogged CPU",
    r"callbacks suppressed|over core_pipe_limit|ptrace attach of",
    # programs of the operating system that write to the kernel log
    r"^audit: |^systemd(?:-\w+)?\[\d+\]: (?!.*(?:[Ff]reezing|[Ee]mergency))|system\.journal corrupted or uncleanly",
    r"systemd-fstab-generator|Failed to create unit file|^cloud-init|^apparmor|AppArmor|^evm: |^ima: ",
    r"re-mounted|mounted filesystem .*errors=|errors=remount-ro|EXT4-fs .*(?:recovery complete|orphan cleanup)",
)
_IS_HARMLESS = re.compile("|".join(f"(?:{pattern})" for pattern in _HARMLESS))

_ALARMING = re.compile(
    r"\b(?:errors?|fail(?:ed|ure|ures|s|ing)?|faults?|fatal|time[d ]? ?out|corrupt\w*|panic|bug|oops|warning|critical"
    r"|unrecover\w*|uncorrect\w*|lock-?up|stall(?:ed|s)?|abort(?:ed|ing)?|unable to|cannot|can't|could not|refused"
    r"|overheat\w*|over-?temp\w*|throttl\w*|emergency|denied|unreachable|not responding|lost|dropped|dead|invalid)\b",
    re.IGNORECASE,
)
# Parts of the words above: to look for them is faster than the expression, which then decides.
# fmt: off
_ALARMING_PARTS = (
    "error", "fail", "fault", "fatal", "time", "corrupt", "panic", "bug", "oops", "warning", "critical", "recover",
    "correct", "lock", "stall", "abort", "unable", "cannot", "can't", "could", "refused", "over", "throttl",
    "emergency", "denied", "unreach", "respond", "lost", "dropped", "dead", "invalid",
)
# fmt: on


def is_alarming(text: str) -> bool:
    """Whether a message has a word that a person would stop at."""
    lower = text.lower()
    return any(map(lower.__contains__, _ALARMING_PARTS)) and _ALARMING.search(text) is not None


# The journal and the ring buffer hold the same messages: the second source finds them judged.
@functools.lru_cache(maxsize=8192)
def kind_of(text: str) -> str:
    """The kind of a message: one of KINDS, ERROR_LIKE (an alarming word, in no catalog) or ORDINARY."""
    if any(map(text.__contains__, _WORDS)):
        for kind, words, pattern in _KINDS:
            # by its text: Python keeps what it has compiled, and a healthy node needs few of these
            if any(map(text.__contains__, words)) and re.search(pattern, text):
                return kind
    return ERROR_LIKE if is_alarming(text) and not is_harmless(text) else ORDINARY


def is_harmless(text: str) -> bool:
    """Whether a message is of a form that healthy nodes print too, whatever its words and its priority."""
    return _IS_HARMLESS.search(text) is not None
