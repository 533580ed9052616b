# SPDX-License-Identifier: Apache-2.0
"""nvidia_driver_plan: packages for the node's distribution and kernels, and what is refused before anything is done."""

from types import SimpleNamespace

import pytest

from tests.modules.conftest import load_module

OLD, NEW = "6.1.0-25-amd64", "6.1.0-26-amd64"
QUERY = "dpkg-query --show --showformat=${Package}|${db:Status-Abbrev}|${Version}* *"
ARGUMENTS = {"source": "vendor", "branch": "580", "version": "580.105.08", "modules_from": "dkms"}
PREBUILT = {"source": "distro", "modules_from": "prebuilt", "module_package": "nvidia-modules-{kernel}"}


class Node:
    """A node below temporary roots; what dpkg, apt and mokutil say comes from a table."""

    def __init__(self, tmp_path, commands, monkeypatch):
        self.root, self.commands, self.monkeypatch = tmp_path, commands, monkeypatch
        self.module = load_module("nvidia_driver_plan")
        for name in ("modules", "boot", "efivars"):
            (tmp_path / name).mkdir()
        self.set(
            MODULES_ROOT=str(tmp_path / "modules"),
            BOOT_ROOT=str(tmp_path / "boot"),
            SYS_MODULE=str(tmp_path / "loaded"),
            SECURE_BOOT_VARIABLE=str(tmp_path / "efivars" / "SecureBoot"),
            SIGNING_KEYS=(str(tmp_path / "mok.pub"),),
            read_os_release=lambda: {"ID": "debian", "VERSION_ID": "12"},
        )
        monkeypatch.setattr(self.module.os, "uname", lambda: SimpleNamespace(release=NEW))
        for release in (OLD, NEW):
            (tmp_path / "modules" / release).mkdir()
            (tmp_path / "boot" / f"vmlinuz-{release}").touch()

    def set(self, **values):
        for name, value in values.items():
            self.monkeypatch.setattr(self.module, name, value)

    def installed(self, **versions):
        rows = "".join(f"{name.replace('_', '-')}|ii |{version}\n" for name, version in versions.items())
        self.commands.answer(QUERY, rows, rc=1, err="dpkg-query: no packages found matching cuda-drivers*")

    def offers(self, **versions):
        text = ""
        for name, listed in versions.items():
            rows = "".join(f"     {version} 500\n        500 mirror main\n" for version in listed)
            real = name.replace("_", "-").replace("OLD", OLD).replace("NEW", NEW)
            text += f"{real}:\n  Installed: (none)\n  Candidate: {listed[0]}\n  Version table:\n{rows}"
        self.commands.answer("apt-cache policy *", text)

    def secure_boot(self, on):
        (self.root / "efivars" / "SecureBoot").write_bytes(b"\6\0\0\0" + bytes([on]))


@pytest.fixture
def node(tmp_path, commands, monkeypatch):
    node = Node(tmp_path, commands, monkeypatch)
    node.installed()
    return node


@pytest.mark.parametrize("check", [False, True])
def test_the_plan_of_a_node_with_nvswitches(node, run_module, check):
    result = run_module(node.module, check=check, **ARGUMENTS, fabric_manager=True)
    assert not result.get("failed"), result
    assert result["changed"] is False and result["fabric_manager"] == "nvidia-fabricmanager"
    assert result["of_release"] == ["nvidia-open", "nvidia-fabricmanager"] and result["secure_boot"] is False
    assert result["apt"]["headers"] is True and result["apt"]["first"] == ["nvidia-driver-pinning-580.105.08"]


def test_debian_with_a_package_for_each_kernel_and_one_release_for_all(node, run_module):
    """nvidia-smi has a security update that the modules have not."""
    node.offers(
        nvidia_smi=["535.309.01-1~deb12u1", "535.261.03-1"],
        libcuda1=["535.309.01-1~deb12u1", "535.261.03-1"],
        nvidia_modules_OLD=["535.261.03-1"],
        nvidia_modules_NEW=["535.261.03-1"],
    )
    result = run_module(node.module, **PREBUILT)
    assert not result.get("failed"), result
    assert result["apt"]["packages"] == [
        {"name": "nvidia-smi", "upstream": "535.261.03"},
        {"name": "libcuda1", "upstream": "535.261.03"},
        {"name": "nvidia-persistenced"},
        {"name": f"nvidia-modules-{OLD}"},
        {"name": f"nvidia-modules-{NEW}"},
    ]
    assert result["module"] == "nvidia-current-open" and result["load_list"].endswith("current-open/nvidia-load.conf")


def test_a_converged_node_is_asked_once_and_no_package_list(node, run_module, commands, tmp_path, monkeypatch):
    commands.table.clear()
    node.installed(nvidia_smi="535.261.03-1", nvidia_container_toolkit="1.17-1")
    result = run_module(node.module, **PREBUILT)
    assert result["apt"]["packages"][0] == {"name": "nvidia-smi", "upstream": "535.261.03"}
    assert len(commands.calls("dpkg-query")) == 1 and commands.calls("apt-cache") == []


@pytest.mark.parametrize(
    ("key", "answer", "said", "step"),
    [
        (False, None, "no key that dkms could sign with", "generate_mok"),
        (True, ("mok.pub is not enrolled", 1), "is not enrolled", "mokutil --import"),
        (True, ("mok.pub is already in the enrollment request", 1), "is not enrolled", "boot menu"),
        (True, ("", 1), "may not be enrolled", "mokutil --import"),
    ],
)
def test_secure_boot_with_a_key_that_is_not_enrolled_is_refused_beforehand(
    node, run_module, commands, tmp_path, key, answer, said, step
):
    """Bug 105: such a role looks successful until the reboot."""
    node.secure_boot(True)
    if key:
        (tmp_path / "mok.pub").touch()
    if answer:
        commands.answer("mokutil --test-key *", answer[0], rc=answer[1])
    result = run_module(node.module, **ARGUMENTS)
    assert result["failed"] and said in result["msg"] and "Nothing was changed" in result["msg"]
    assert step in result["next_step"] and "prebuilt" in result["next_step"]


def test_secure_boot_with_an_enrolled_key_a_loaded_module_or_signed_modules_goes_on(
    node, run_module, commands, tmp_path
):
    node.secure_boot(True)
    (tmp_path / "mok.pub").touch()
    commands.answer("mokutil --test-key *", "mok.pub is already enrolled")
    assert run_module(node.module, **ARGUMENTS)["secure_boot"] is True
    node.offers(nvidia_smi=["535.261.03-1"])
    assert run_module(node.module, **PREBUILT)["secure_boot"] is True
    (tmp_path / "loaded").mkdir()
    (tmp_path / "mok.pub").unlink()
    assert not run_module(node.module, **ARGUMENTS).get("failed")


@pytest.mark.parametrize(
    ("said", "expected"), [("SecureBoot disabled", False), ("EFI variables are not supported on this system", False)]
)
def test_without_the_firmwares_variables_mokutil_is_asked(node, run_module, commands, tmp_path, said, expected):
    (tmp_path / "efivars").rmdir()
    commands.answer("mokutil --sb-state", said)
    assert run_module(node.module, **ARGUMENTS)["secure_boot"] is expected


def test_a_downgrade_needs_the_version_of_the_profile(node, run_module):
    result = run_module(node.module, **ARGUMENTS, downgrade_to="580.95.05")
    assert result["failed"] and "580.95.05" in result["msg"] and "580.105.08" in result["msg"]
    result = run_module(node.module, **ARGUMENTS, downgrade_to="580.105.08")
    assert "nvidia-*" in result["apt"]["downgrade"]


def test_what_must_stop_it(node, run_module, commands, tmp_path):
    result = run_module(node.module, **ARGUMENTS, supported_os=["debian 13"])
    assert result["failed"] and "debian 12 is not supported" in result["msg"]
    result = run_module(node.module, **{**ARGUMENTS, "source": "distro"}, fabric_manager=True)
    assert result["failed"] and "no fabric manager" in result["msg"] and result["next_step"]
    commands.table.clear()
    commands.answer(QUERY, rc=2, err="dpkg-query: error: parsing file '/var/lib/dpkg/status'")
    result = run_module(node.module, **ARGUMENTS)
    assert result["failed"] and "exit status 2" in result["msg"] and "/var/lib/dpkg" in result["next_step"]
    for release in (OLD, NEW):
        (tmp_path / "boot" / f"vmlinuz-{release}").unlink()
    result = run_module(node.module, **PREBUILT)
    assert result["failed"] and "no installed kernel" in result["msg"]
