# SPDX-License-Identifier: Apache-2.0
"""What a node says about its NVIDIA kernel module, as text: each form that was seen, and what must not be guessed."""

import pytest
from ansible.module_utils.gpufleet.nvidia_loaded_driver import LoadedDriver, flavour_of, parse_proc_version
from ansible.module_utils.gpufleet.nvidia_module_facts import (
    WHAT,
    parse_nv_fabricmanager_version,
    parse_parameters,
    parse_sb_state,
    parse_secure_boot_variable,
    parse_test_key,
    read_reasons,
    since_last_load,
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        # recordings of tests/fixtures/nvidia-smi (535), bugs 098 (520)
        (
            "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.183.01  Sun May 12 19:39:15 UTC 2024\nGCC",
            ("535.183.01", "proprietary"),
        ),
        (
            "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  550.163.01  Release Build  (dvs-builder@U16)",
            ("550.163.01", "open"),
        ),
        ("NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54\n", ("550.54", "proprietary")),
    ],
)
def test_the_loaded_module_tells_version_and_flavour(text: str, expected: "tuple[str, str]") -> None:
    assert parse_proc_version(text) == LoadedDriver(*expected)


@pytest.mark.parametrize("text", ["", "GCC version: gcc 12", "NVRM version: NVIDIA UNIX x86_64 Kernel Module"])
def test_another_text_is_no_loaded_module(text: str) -> None:
    with pytest.raises(ValueError, match="/proc/driver/nvidia/version"):
        parse_proc_version(text)


def test_the_flavour_is_told_by_the_license() -> None:
    assert [flavour_of(text) for text in ("Dual MIT/GPL", "NVIDIA", "GPL", "")] == ["open", "proprietary", None, None]


def test_parameters() -> None:
    text = 'RmProfilingAdminOnly: 1\nResmanDebugLevel: 4294967295\nRegistryDwords: ""\nRegistryDwordsPerDevice: ""\n'
    found = parse_parameters(text)
    assert (found["RmProfilingAdminOnly"], found["RegistryDwords"], len(found)) == ("1", "", 4)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("SecureBoot enabled\n", True),
        ("SecureBoot disabled\nPlatform is in Setup Mode\n", False),
        ("EFI variables are not supported on this system\n", False),
        ("This system doesn't support Secure Boot\n", False),
        ("mokutil: command failed", None),
        ("", None),
    ],
)
def test_secure_boot_by_mokutil(text: str, expected: "bool | None") -> None:
    assert parse_sb_state(text) is expected


@pytest.mark.parametrize(
    ("content", "expected"), [(b"\6\0\0\0\1", True), (b"\6\0\0\0\0", False), (b"\1", None), (b"", None)]
)
def test_secure_boot_by_the_firmware_variable(content: bytes, expected: "bool | None") -> None:
    assert parse_secure_boot_variable(content) is expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("/var/lib/dkms/mok.pub is already enrolled\n", True),
        ("/var/lib/dkms/mok.pub is not enrolled\n", False),
        ("/var/lib/dkms/mok.pub is already in the enrollment request\n", False),
        ("Failed to open /var/lib/dkms/mok.pub", None),
    ],
)
def test_an_enrolled_key(text: str, expected: "bool | None") -> None:
    assert parse_test_key(text) is expected


MISMATCHES = [
    # bug 099: rsyslog writes the breaks of one record as #012
    "Jun 30 11:07:05 gpu-0 kernel: NVRM: API mismatch: the client has the version 535.54.03, but#012NVRM: this kernel "
    "module has the version 530.30.02.  Please#012NVRM: make sure that this kernel module and all NVIDIA driver#012"
    "NVRM: components have the same version.",
    "[82.939792] NVRM: API mismatch: the client has the version 535.54.03, but\n"
    "               NVRM: this kernel module has the version 530.30.02.  Please\n"
    "               NVRM: make sure that this kernel module and all NVIDIA driver\n",
    "[Sat Apr 13 23:38:47 2024] NVRM: API mismatch: the client 'nvidia-smi' (pid 4711)\n"
    "                           NVRM: has the version 535.54.03, but this kernel module has\n"
    "                           NVRM: the version 530.30.02.  Please make sure that this\n",
    "NVRM: API mismatch: the client 'gnome-shell' has the version 535.54.03,\n"
    "NVRM: but this kernel module has the version 530.30.02",
]


@pytest.mark.parametrize("log", MISMATCHES)
def test_a_version_mismatch_is_read_in_each_form(log: str) -> None:
    (reason,) = read_reasons(log)
    assert (reason.kind, reason.client, reason.module) == ("api_mismatch", "535.54.03", "530.30.02")


REJECTED = "Loading of module with unavailable key is rejected"
BOUND = (
    "[1.0] NVRM: GPU 0000:01:00.0 is already bound to nouveau.\n[1.0] NVRM: The NVIDIA probe routine was not called "
    "for 1 device(s).\n[1.0] NVRM: This can occur when another driver was loaded and\n"
    "[1.0] NVRM: No NVIDIA devices probed.\n"
)
CASES = [
    ("[    9.1] NVRM: No NVIDIA GPU found.\n", ["no_gpu"]),
    (f"[   12.345678] {REJECTED}\n[   13.0] NVRM: No NVIDIA GPU found.\n", ["key_rejected", "no_gpu"]),
    ("kernel: Lockdown: modprobe: unsigned module loading is restricted; see man", ["key_rejected"]),
    (
        "nvidia: version magic '6.1.0-25-amd64 SMP preempt' should be '6.1.0-26-amd64 SMP preempt'",
        ["other_kernel"],
    ),
    ("[3.1] nvidia: Unknown symbol drm_gem_object_free (err -2)", ["unknown_symbol"]),
    (BOUND, ["other_driver", "no_gpu"]),
    (
        "[1.1] NVRM: The NVIDIA GPU 0000:02:00.0 (PCI ID: 10de:2c58)\n       NVRM: installed in this system requires "
        "use of the NVIDIA open kernel modules.\n[1.1] NVRM: GPU 0000:02:00.0: RmInitAdapter failed! (0x22:0x56:884)",
        ["needs_open", "init_failed"],
    ),
    (
        "NVRM: The NVIDIA NVIDIA GeForce GTX 1050 Ti GPU installed in this system is\nNVRM: supported through the "
        "NVIDIA 580.xx Legacy drivers.\nNVRM: No NVIDIA GPU found.",
        ["not_supported", "no_gpu"],
    ),
    ("nvidia 0000:1b:00.0: Direct firmware load for nvidia/580.1/gsp_ga10x.bin failed with error -2", ["no_firmware"]),
    ("NVRM: This PCI I/O region assigned to your NVIDIA device is invalid:\nNVRM: BAR1 is 0M @ 0x0", ["bar"]),
    ("NVRM: Xid (PCI:0000:1b:00): 79, GPU has fallen off the bus.", ["off_the_bus"]),
    ("usb 1-1: new high-speed USB device number 2\neth0: is already bound to br0\n", []),
    ("", []),
]


@pytest.mark.parametrize(("log", "kinds"), CASES)
def test_reasons_are_told_apart_the_most_telling_first(log: str, kinds: "list[str]") -> None:
    assert [reason.kind for reason in read_reasons(log)] == kinds


def test_every_kind_has_words_and_an_example() -> None:
    assert {kind for _log, kinds in CASES for kind in kinds} | {"api_mismatch"} == set(WHAT)


def test_a_reason_of_an_earlier_load_does_not_count() -> None:
    log = f"[1.0] {REJECTED}\n[9.0] nvidia-nvlink: Nvlink Core is being initialized, major\n[9.1] NVRM: "
    assert [reason.kind for reason in read_reasons(since_last_load(log + "No NVIDIA GPU found.\n"))] == ["no_gpu"]
    assert since_last_load("no load at all") == "no load at all"


def test_the_fabric_managers_version() -> None:
    # as nv-fabricmanager 450 printed it
    assert parse_nv_fabricmanager_version("Fabric Manager version is : 450.102.04\n") == "450.102.04"
    assert parse_nv_fabricmanager_version("command not found") is None
