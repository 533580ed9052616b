# SPDX-License-Identifier: Apache-2.0
"""Pins: what a stack writes, what apt-cache policy says, and who pins a package out (bug 101)."""

import pytest
from ansible.module_utils.gpufleet.apt_stack_pins import blockers, fits, parse_policy, render_pins

# NVIDIA/apt-packaging-fabric-manager#3
NEGATIVE = """\
cuda-drivers-fabricmanager:
  Installed: (none)
  Candidate: (none)
  Version table:
     550.54.14-1 -1
        580 https://developer.download.nvidia.com/compute/cuda/repos/ubuntu2204/x86_64  Packages
     535.161.07-1 -1
        580 https://developer.download.nvidia.com/compute/cuda/repos/ubuntu2204/x86_64  Packages
"""
INSTALLED = """\
nvidia-open:
  Installed: 580.95.05-1
  Candidate: 580.105.08-1
  Version table:
     610.43.02-1 500
        500 http://mirror  Packages
     580.105.08-1 1000
        500 http://mirror  Packages
 *** 580.95.05-1 100
        100 /var/lib/dpkg/status
N: Unable to locate package nvidia-opne
"""


def test_policy() -> None:
    found = parse_policy(NEGATIVE + INSTALLED)
    assert found["cuda-drivers-fabricmanager"].candidate is None
    assert found["cuda-drivers-fabricmanager"].offered == {"550.54.14-1": -1, "535.161.07-1": -1}
    # what only dpkg knows cannot be installed again
    assert found["nvidia-open"].offered == {"610.43.02-1": 500, "580.105.08-1": 1000}
    assert found["nvidia-open"].candidate == "580.105.08-1"
    assert set(found) == {"cuda-drivers-fabricmanager", "nvidia-open"}


@pytest.mark.parametrize(
    ("pattern", "package", "expected"),
    [
        ("nvidia-open", "nvidia-open", True),
        ("nvidia-open", "nvidia-open-570", False),
        ("*fabricmanager*", "nvidia-fabricmanager", True),
        ("/fabric.*r$/", "nvidia-fabricmanager", True),
        ("/fabric.*x$/", "nvidia-fabricmanager", False),
        ("/(/", "nvidia-fabricmanager", False),
        ("nvidia-open:any", "nvidia-open", True),
        ("*", "anything", True),
    ],
)
def test_patterns(pattern: str, package: str, expected: bool) -> None:
    assert fits(pattern, package) == expected


def test_names_the_stanza_that_pins_out() -> None:
    files = {
        "/etc/apt/preferences.d/b": "# c\nPackage: x\nPin: version *\nPin-Priority: 900\n\n"
        "Package: y nvidia-*\nPin: release *\nPin-Priority: -1\n",
        "/etc/apt/preferences.d/a": "Package: nvidia-open\nPin: origin x\nPin-Priority: -10",
        "/etc/apt/preferences.d/c": "Package: nvidia-open\nPin: origin x\nPin-Priority: none\n",
    }
    found = blockers("nvidia-open", files)
    assert [(blocker.path[-1], blocker.line, blocker.pin) for blocker in found] == [
        ("a", 1, "origin x"),
        ("b", 6, "release *"),
    ]
    assert str(found[1]) == "/etc/apt/preferences.d/b, line 6 (Package: y nvidia-*, Pin: release *)"
    assert blockers("x", files) == []


def test_what_is_written() -> None:
    packages = [
        {"name": "a", "version": "1.0-1", "upstream": None},
        {"name": "b", "version": None, "upstream": "2.0"},
        {"name": "c", "version": None, "upstream": None},
    ]
    pins = [
        {"packages": ["d*", "e"], "version": None, "origin": "mirror", "priority": 600},
        {"packages": ["f"], "version": None, "origin": "", "priority": 1},
    ]
    text = render_pins(packages, pins, ["dkms", "mft*"], "x")
    assert "Package: a\nPin: version 1.0-1\nPin-Priority: 1000\n" in text
    assert "Package: b\nPin: version *:2.0-*\n" in text and "Package: b\nPin: version 2.0-*\n" in text
    assert 'Package: d* e\nPin: origin "mirror"\nPin-Priority: 600\n' in text and 'Pin: origin ""\n' in text
    assert text.endswith("Package: dkms mft*\nPin: version *\nPin-Priority: -1\n")
    assert "Package: c\n" not in text
    assert [blocker.packages for blocker in blockers("mft-autocomplete", {"/x": text})] == ["dkms mft*"]
    assert render_pins([packages[2]], [], [], "x") == ""
