# SPDX-License-Identifier: Apache-2.0
"""What apt-get would do, and what a stack may not have done."""

from typing import Any

import pytest
from ansible.module_utils.gpufleet.apt_plan import (
    Permission,
    Step,
    is_kernel,
    parse_simulation,
    refuse,
    unmet_dependencies,
    unsolvable,
)
from ansible.module_utils.gpufleet.apt_stack_error import AptStackError
from ansible.module_utils.gpufleet.apt_stack_pins import Blocker

# apt 2.6 on Debian 12, stand-ins of the vendor's packages and a package of Debian's
SIMULATED = """\
Reading package lists...
The following packages will be REMOVED:
  nvidia-open-570
Remv nvidia-open-570 [570.195.03-1]
Remv libnvidia-compute-570:i386 [570.195.03-1] [nvidia-open-570:i386 ]
Inst libcuda1 (580.95.05-1 NVIDIA stand-in:127.0.0.1 [all])
Inst libc6 [2.36-9+deb12u7] (2.36-9+deb12u10 Debian:12.10/stable [amd64]) []
Inst nvidia-open [580.105.08-1] (580.95.05-1 NVIDIA stand-in:127.0.0.1 [all])
Inst nvidia-persistenced [580.95.05-1] (580.95.05-1 NVIDIA stand-in:127.0.0.1 [all])
Conf libcuda1 (580.95.05-1 NVIDIA stand-in:127.0.0.1 [all])
Purg mft [4.33.0-169]
"""
KERNEL = "6.1.0-26-amd64"


def may(**other: Any) -> Permission:
    given: dict[str, Any] = {"stack": ["nvidia-open"], "upgrade": False, "downgrade": [], "may_remove": []}
    return Permission(**{**given, "kernels": [KERNEL], **other})


def test_steps() -> None:
    assert [str(step) for step in parse_simulation(SIMULATED)] == [
        "remove nvidia-open-570 570.195.03-1",
        "remove libnvidia-compute-570 570.195.03-1",
        "install libcuda1 580.95.05-1",
        "upgrade libc6 2.36-9+deb12u7 -> 2.36-9+deb12u10",
        "downgrade nvidia-open 580.105.08-1 -> 580.95.05-1",
        "reinstall nvidia-persistenced 580.95.05-1 -> 580.95.05-1",
        "remove mft 4.33.0-169",
    ]
    assert parse_simulation("0 upgraded, 0 newly installed.\n") == []


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        (f"linux-image-{KERNEL}", True),
        ("linux-image-amd64", True),
        ("linux-image-generic", True),
        ("linux-modules-extra-6.8.0-99-generic", True),
        ("proxmox-kernel-6.8", True),
        (f"linux-headers-{KERNEL}", False),
        ("linux-libc-dev", False),
        # Ubuntu's signed driver modules: of an installed kernel, and of one that is not there
        (f"linux-modules-nvidia-580-open-{KERNEL}", False),
        ("linux-modules-nvidia-580-open-6.8.0-99-generic", True),
        ("linux-modules-nvidia-580-open-generic", True),
    ],
)
def test_what_is_a_kernel(name: str, expected: bool) -> None:
    assert is_kernel(name, [KERNEL]) == expected


@pytest.mark.parametrize(
    ("step", "allowed", "expected"),
    [
        (Step("linux-image-6.9-amd64", None, "6.9-1"), {"upgrade": True}, "another kernel (installed: 6.1.0-26"),
        (Step(f"linux-image-{KERNEL}", "6.1.1-1", "6.1.2-1"), {"upgrade": True}, "another kernel"),
        (Step(f"linux-image-{KERNEL}", "6.1.1-1", None), {"may_remove": ["*"]}, "another kernel"),
        (Step("nvidia-open", "2-1", "1-1"), {"upgrade": True}, "a downgrade: downgrade nvidia-open 2-1 -> 1-1"),
        (Step("libc6", "2-1", "1-1"), {"downgrade": ["nvidia-*"]}, "downgrade libc6"),
        (Step("nvidia-open", "1-1", "2-1"), {}, "has to be asked for"),
        (Step("rdma-core", "1-1", None), {"may_remove": ["mft*"]}, "other packages: remove rdma-core 1-1"),
    ],
)  # fmt: skip
def test_what_is_refused(step: Step, allowed: dict[str, Any], expected: str) -> None:
    with pytest.raises(AptStackError) as caught:
        refuse([Step("other", None, "1"), step], may(**allowed))
    assert expected in str(caught.value) and "Nothing was changed" in str(caught.value) and caught.value.next_step


@pytest.mark.parametrize(
    ("step", "allowed"),
    [
        (Step("nvidia-open", "1-1", "2-1"), {"upgrade": True}),
        (Step("nvidia-open", "2-1", "1-1"), {"downgrade": ["nvidia-*"]}),
        (Step("nvidia-open", "1-1", "1-1"), {}),
        (Step("nvidia-open", None, "1-1"), {}),
        # a library of the system that the packages want newer is no upgrade of the stack
        (Step("libc6", "1-1", "2-1"), {}),
        (Step("mft", "1-1", None), {"may_remove": ["mft*"]}),
        (Step(f"linux-headers-{KERNEL}", None, "6.1.1-1"), {}),
    ],
)
def test_what_is_allowed(step: Step, allowed: dict[str, Any]) -> None:
    refuse([step], may(**allowed))


# NVIDIA/ansible-role-nvidia-driver#11, and apt 2.6 on stand-ins
BROKEN = """\
The following packages have unmet dependencies:
 cuda-drivers : Depends: nvidia-driver-440 (>= 440.33.01) but it is not going to be installed
                Depends: libcuda1 but it is not installable
"""
HELD = "E: Unable to correct problems, you have held broken packages.\n"


def test_unmet_dependencies() -> None:
    assert unmet_dependencies(BROKEN) == [
        "cuda-drivers : Depends: nvidia-driver-440 (>= 440.33.01) but it is not going to be installed",
        "Depends: libcuda1 but it is not installable",
    ]
    assert unmet_dependencies(HELD) == []


def test_no_way_names_foreign_holds_and_pins() -> None:
    pinned = {"libcuda1": [Blocker("/etc/apt/preferences.d/x", 3, "libcuda1", "version *")], "other": []}
    error = unsolvable(BROKEN, HELD, ["nvidia-driver-440", "vim"], pinned, " Doubts.")
    text = str(error)
    assert "cuda-drivers : Depends: nvidia-driver-440" in text and text.endswith("Nothing was changed. Doubts.")
    assert "nvidia-driver-440 is on hold and not part of this stack" in text and "vim" not in text
    assert "libcuda1 is pinned out by /etc/apt/preferences.d/x, line 3" in text
    assert error.next_step == (
        "if nobody needs that hold, lift it (apt-mark unhold nvidia-driver-440); correct /etc/apt/preferences.d/x"
    )
    assert "you have held broken packages" in str(unsolvable("", HELD, [], {}, ""))
