# SPDX-License-Identifier: Apache-2.0
"""zfs_packages: three sources, every installed kernel, a change of source, and what must stop it."""

import os
from types import SimpleNamespace

import pytest

from tests.modules.conftest import load_module

OLD, NEW = "6.1.0-25-amd64", "6.1.0-26-amd64"
V = "2.3.2-2"
QUERY = "dpkg-query --show --showformat=${Package}|${db:Status-Abbrev}|${Version}* *"
UNKNOWN = "dpkg-query: no packages found matching zfs-dkms"


class Node:
    """Two kernels below temporary roots; what dpkg, apt, modinfo, dkms and modprobe say comes from a table."""

    def __init__(self, tmp_path, commands, monkeypatch):
        self.root, self.commands = tmp_path, commands
        self.module = load_module("zfs_packages")
        for name in ("modules", "boot", "dkms"):
            (tmp_path / name).mkdir()
        monkeypatch.setattr(self.module, "MODULES_ROOT", str(tmp_path / "modules"))
        monkeypatch.setattr(self.module, "BOOT_ROOT", str(tmp_path / "boot"))
        monkeypatch.setattr(self.module, "DKMS_ROOT", str(tmp_path / "dkms"))
        monkeypatch.setattr(self.module, "LOADED_VERSION", str(tmp_path / "version"))
        self.uname = SimpleNamespace(release=NEW)
        monkeypatch.setattr(self.module.os, "uname", lambda: self.uname)
        for release in (OLD, NEW):
            self.add_kernel(release)

    def add_kernel(self, release):
        (self.root / "modules" / release).mkdir()
        (self.root / "boot" / f"vmlinuz-{release}").touch()

    def loaded(self, version):
        (self.root / "version").write_text(f"{version}\n")

    def packages(self, _held=True, _unheld=(), _failed=(), **versions):
        """One answer of dpkg-query; '_' in a name stands for '-', OLD and NEW for the kernels."""
        lines = ""
        for name, version in versions.items():
            real = name.replace("_", "-").replace("OLD", OLD).replace("NEW", NEW)
            status = "iF" if real in _failed else "hi" if _held and real not in _unheld else "ii"
            lines += f"{real}|{status} |{version}\n"
        self.commands.answer(QUERY, lines, rc=1, err=UNKNOWN)

    def modinfo(self, release, version, folder="updates/dkms"):
        """The next answer of modinfo for a kernel; None = it has none."""
        line = f"modinfo -k {release} zfs"
        if version is None:
            self.commands.answer(line, rc=1, err="modinfo: ERROR: Module zfs not found.")
        else:
            path = f"{self.root}/modules/{release}/{folder}/zfs.ko"
            self.commands.answer(line, f"filename:       {path}\nversion:        {version}\n")

    def spell(self, folder, as_if):
        """Have the module take paths in a temporary folder for paths in another one."""
        spellings = self.module.both_spellings
        self.module.both_spellings = lambda paths: spellings([path.replace(folder, as_if) for path in paths])

    def file(self, release, folder):
        path = self.root / "modules" / release / folder / "zfs.ko"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()

    def offers(self, *packages):
        """apt-cache policy: name or (name, candidate, other versions...)."""
        text = ""
        for package in packages:
            name, candidate, *others = (package, V) if isinstance(package, str) else package
            rows = "".join(f"     {version} 500\n        500 mirror main\n" for version in (candidate, *others))
            text += f"{name}:\n  Installed: (none)\n  Candidate: {candidate}\n  Version table:\n{rows}"
        self.commands.answer("apt-cache policy *", text)

    def apt(self, update="", simulate=""):
        self.commands.answer("apt-get --yes * update", err=update)
        self.commands.answer("apt-get --yes * --simulate *", simulate)
        self.commands.answer("apt-get --yes * install *")
        self.commands.answer("apt-get --yes * purge *")
        self.commands.answer("apt-mark hold *")

    def apt_calls(self):
        """What apt-get was told to do, without options and simulations."""
        calls = []
        for line in self.commands.calls("apt-get"):
            tail = line.partition("DPkg::Lock::Timeout=300 ")[2]
            calls += [] if tail.startswith("--simulate") else [tail]
        return calls

    def wrote_nothing(self):
        return self.apt_calls() == [] and not any(map(self.commands.calls, ("apt-mark", "dkms", "modprobe")))


@pytest.fixture
def node(tmp_path, commands, monkeypatch):
    return Node(tmp_path, commands, monkeypatch)


USER = {"zfsutils_linux": V, "zfs_zed": V}
HEADERS = {"linux_headers_OLD": "6.1.106-3", "linux_headers_NEW": "6.1.112-1"}
DKMS = {**USER, "zfs_dkms": V, **HEADERS}
PREBUILT = {**USER, "zfs_modules_OLD": "7", "zfs_modules_NEW": "7"}
PREBUILT_ARGUMENTS = {"source": "prebuilt", "module_package": "zfs-modules-{kernel}"}
OFFERS = ["zfsutils-linux", "zfs-zed", "zfs-dkms", f"linux-headers-{OLD}", f"linux-headers-{NEW}"]
PREBUILT_OFFERS = ["zfsutils-linux", "zfs-zed", "zfs-dkms", f"zfs-modules-{OLD}", f"zfs-modules-{NEW}"]


@pytest.mark.parametrize(
    ("arguments", "packages", "folder"),
    [
        ({"source": "dkms"}, DKMS, "updates/dkms"),
        ({"source": "dkms", "version": V}, DKMS, "updates/dkms"),
        (PREBUILT_ARGUMENTS, PREBUILT, "extra"),
        ({"source": "distro"}, USER, "kernel/zfs"),
        ({"source": "distro", "module_package": "zfs-modules-{kernel}"}, USER, "kernel/zfs"),
    ],
)
@pytest.mark.parametrize("check", [False, True])
def test_a_converged_node_is_asked_once_and_no_mirror(node, run_module, commands, arguments, packages, folder, check):
    node.packages(**packages)
    node.loaded(V)
    for release in (OLD, NEW):
        node.modinfo(release, V, folder)
    result = run_module(node.module, check=check, **arguments)
    assert not result.get("failed"), result
    assert (result["changed"], result["installed"], result["loaded_version"]) == (False, True, V)
    assert result["kernels"] == {OLD: V, NEW: V} and result["running_kernel"] == NEW
    assert (result["reboot_reason"], result["reboot_still_needed"]) == (None, None)
    assert result["versions"]["zfsutils-linux"] == result["versions"]["zfs-zed"] == V
    commands_run = [len(commands.calls(name)) for name in ("dpkg-query", "modinfo", "apt-get", "apt-cache", "dkms")]
    assert commands_run == [1, 2, 0, 0, 0] and node.wrote_nothing()


@pytest.mark.parametrize("spelling", ["", "/usr"])
def test_a_packages_module_in_the_folder_of_dkms_is_not_taken_for_one_that_dkms_built(node, run_module, spelling):
    """As packages of `dkms mkbmdeb` have it; dpkg knows the path below /lib or below /usr/lib."""
    node.packages(**PREBUILT)
    node.loaded(V)
    paths = ""
    for release in (OLD, NEW):
        node.modinfo(release, V)
        node.file(release, "updates/dkms")
        paths += f"zfs-modules-{release}: {spelling}/lib/modules/{release}/updates/dkms/zfs.ko\n"
    node.commands.answer("dpkg-query --search *", paths)
    node.spell(f"{node.root}/modules", "/lib/modules")
    result = run_module(node.module, **PREBUILT_ARGUMENTS)
    assert not result.get("failed"), result
    assert not result["changed"] and node.wrote_nothing()


def test_a_fresh_node_in_check_mode_with_empty_lists(node, run_module):
    node.packages()
    node.commands.answer("apt-cache policy *", "")
    for release in (OLD, NEW):
        node.modinfo(release, None)
    result = run_module(node.module, check=True, source="dkms")
    assert (result["changed"], result["installed"]) == (True, False)
    assert result["kernels"] == {OLD: None, NEW: None} and result["loaded_version"] is None
    assert result["versions"]["zfsutils-linux"] == "the candidate of the package lists"
    assert f"module of kernel {OLD}: none" in result["diff"]["before"]
    assert f"module of kernel {OLD}: new, from source dkms" in result["diff"]["after"]
    assert "zfs-dkms: the candidate of the package lists, held" in result["diff"]["after"]
    assert "loaded module: newly loaded" in result["diff"]["after"]
    assert node.wrote_nothing()


def test_dkms_on_a_fresh_node_installs_headers_first_and_builds_what_is_missing(node, run_module):
    node.packages()
    node.packages(_held=False, **DKMS)
    node.packages(**DKMS)
    node.modinfo(OLD, None)
    node.modinfo(OLD, None)  # older releases of dkms build for the running and the newest kernel only
    node.modinfo(OLD, V)
    node.modinfo(NEW, None)
    node.modinfo(NEW, V)
    node.offers(*OFFERS)
    node.apt()
    node.commands.answer("dkms uninstall *", rc=1)
    node.commands.answer("dkms install *")
    result = run_module(node.module, source="dkms", load=False)
    assert not result.get("failed"), result
    assert (result["changed"], result["installed"], result["kernels"]) == (True, True, {OLD: V, NEW: V})
    assert node.apt_calls() == [
        "update",
        f"install linux-headers-{OLD} linux-headers-{NEW}",
        f"install zfsutils-linux={V} zfs-zed={V} zfs-dkms={V}",
    ]
    assert node.commands.calls("dkms")[-1] == f"dkms install --force -m zfs -v 2.3.2 -k {OLD}"
    assert len([line for line in node.commands.calls("dkms") if "install --force" in line]) == 1
    held = f"apt-mark hold zfsutils-linux zfs-zed zfs-dkms linux-headers-{OLD} linux-headers-{NEW}"
    assert node.commands.calls("apt-mark") == [held]
    assert node.commands.calls("modprobe") == []


def test_prebuilt_on_a_fresh_node_keeps_zfs_dkms_out_and_loads(node, run_module, monkeypatch):
    node.packages()
    node.packages(_held=False, **PREBUILT)
    node.packages(**PREBUILT)
    for release in (OLD, NEW):
        node.modinfo(release, None)
        node.modinfo(release, V, "extra")
    node.offers(*PREBUILT_OFFERS)
    node.apt()
    node.commands.answer("modprobe zfs")
    (node.root / "bin" / "modprobe").write_text(
        f'#!/bin/sh\necho modprobe "$@" >> {node.root}/bin/calls\necho {V} > {node.root}/version\n'
    )
    result = run_module(node.module, **PREBUILT_ARGUMENTS)
    assert not result.get("failed"), result
    assert (result["changed"], result["loaded_version"]) == (True, V)
    assert node.apt_calls() == [
        "update",
        f"install zfsutils-linux={V} zfs-zed={V} zfs-modules-{OLD} zfs-modules-{NEW} zfs-dkms-",
    ]
    assert node.commands.calls("modprobe") == ["modprobe zfs"]
    assert "loaded module: none" in result["diff"]["before"] and f"loaded module: {V}" in result["diff"]["after"]


def test_a_lost_hold_alone_is_set_again(node, run_module):
    for unheld in (("zfs-zed",), ()):
        node.packages(_unheld=unheld, **DKMS)
    node.loaded(V)
    for release in (OLD, NEW):
        node.modinfo(release, V)
    node.apt()
    result = run_module(node.module, source="dkms")
    assert result["changed"] is True and node.apt_calls() == []
    assert node.commands.calls("apt-mark") == ["apt-mark hold zfs-zed"]
    changed = set(result["diff"]["before"].splitlines()) ^ set(result["diff"]["after"].splitlines())
    assert changed == {f"zfs-zed: {V}", f"zfs-zed: {V}, held"}


def test_a_lost_hold_is_seen_in_check_mode(node, run_module):
    node.packages(_unheld=("zfs-zed",), **DKMS)
    node.loaded(V)
    for release in (OLD, NEW):
        node.modinfo(release, V)
    result = run_module(node.module, check=True, source="dkms")
    assert result["changed"] is True and node.wrote_nothing()


@pytest.mark.parametrize("have", [None, "2.1.11-1", (V, "extra")])
@pytest.mark.parametrize("check", [True, False])
def test_dkms_builds_for_a_kernel_without_its_module(node, run_module, have, check):
    """None at all, one of an older zfs-dkms, and one that something else put there."""
    node.packages(**DKMS)
    node.loaded(V)
    node.uname.release = OLD
    node.modinfo(NEW, V)
    node.modinfo(OLD, *(have if isinstance(have, tuple) else (have,)))
    node.modinfo(OLD, V)
    node.commands.answer("dkms *")
    node.file(OLD, "updates/dkms")  # what dkms does not take out, since it is not what it has put there
    (node.root / "modules" / OLD / "updates" / "dkms" / "other.ko").touch()
    result = run_module(node.module, check=check, source="dkms")
    left = sorted(path.name for path in (node.root / "modules" / OLD / "updates" / "dkms").iterdir())
    assert left == (["other.ko", "zfs.ko"] if check else ["other.ko"])
    assert (result["changed"], result["reboot_reason"]) == (True, None)
    if check:
        assert node.wrote_nothing()
    else:
        assert result["kernels"] == {OLD: V, NEW: V} and node.apt_calls() == []
        # Out first, lest dkms keeps the broken file as an original.
        which = f"-m zfs -v 2.3.2 -k {OLD}"
        assert node.commands.calls("dkms") == [f"dkms uninstall {which}", f"dkms install --force {which}"]


def test_a_failed_build_names_kernel_and_log(node, run_module):
    node.packages(**DKMS)
    node.modinfo(NEW, V)
    node.modinfo(OLD, None)
    node.commands.answer("dkms uninstall *", rc=3)
    node.commands.answer("dkms install *", rc=10, err="Error! Bad return status for module build\n")
    log = node.root / "dkms" / "zfs" / "2.3.2" / "build" / "make.log"
    log.parent.mkdir(parents=True)
    log.write_text(f"DKMS make.log for zfs-2.3.2 for kernel {OLD} (x86_64)\n*** highest supported kernel\n")
    result = run_module(node.module, source="dkms")
    assert result["failed"] and f"zfs 2.3.2 was not built for kernel {OLD}. End of {log}" in result["msg"]
    assert "*** highest supported kernel" in result["msg"] and "read the log" in result["next_step"]
    # A log of some other day says nothing about this failure.
    os.utime(log, (1, 1))
    result = run_module(node.module, source="dkms")
    assert "Bad return status" in result["msg"] and "End of" not in result["msg"]
    assert "run on the node: dkms install" in result["next_step"]


def test_a_build_that_fails_within_apt_shows_its_log(node, run_module):
    node.packages(**USER, **HEADERS)
    for release in (OLD, NEW):
        node.modinfo(release, None)
    node.offers(*OFFERS)
    node.commands.answer("apt-get --yes * update")
    node.commands.answer("apt-get --yes * --simulate *")
    node.commands.answer("apt-get --yes * install *", rc=100, err="E: Sub-process dpkg returned an error code (1)\n")
    log = node.root / "dkms" / "zfs" / "2.3.2" / "build" / "make.log"
    log.parent.mkdir(parents=True)
    log.write_text(f"DKMS make.log for zfs-2.3.2 for kernel {NEW} (x86_64)\nno space\n")
    result = run_module(node.module, source="dkms")
    assert result["failed"] and "Sub-process dpkg" in result["msg"]
    assert f"(kernel {NEW}):\nDKMS make.log" in result["msg"] and result["msg"].endswith("no space")


@pytest.mark.parametrize("check", [True, False])
def test_distro_refuses_a_kernel_that_has_no_module_before_anything_is_changed(node, run_module, check):
    node.packages()
    node.modinfo(NEW, V, "kernel/zfs")
    node.modinfo(OLD, None)
    result = run_module(node.module, check=check, source="distro")
    assert result["failed"] and f"the packages of kernel {OLD} hold no zfs module" in result["msg"]
    assert "dkms or prebuilt" in result["next_step"] and node.wrote_nothing()


@pytest.mark.parametrize("check", [True, False])
def test_a_module_of_another_release_than_the_user_land_is_an_error(node, run_module, check):
    """A kernel that Ubuntu's upgrade from 22.04 to 24.04 left behind: ZFS 2.1 below a user land of 2.2."""
    node.packages(**{name: "2.2.2-0ubuntu9" for name in USER})
    node.loaded("2.2.2-0ubuntu9")
    node.modinfo(NEW, "2.2.2-0ubuntu9", "kernel/zfs")
    node.modinfo(OLD, "2.1.5-1ubuntu6", "kernel/zfs")
    result = run_module(node.module, check=check, source="distro")
    assert result["failed"] and f"kernel {OLD} has 2.1.5-1ubuntu6" in result["msg"]
    assert "zfsutils-linux 2.2.2-0ubuntu9" in result["msg"] and "one release for both" in result["next_step"]
    assert node.wrote_nothing()


@pytest.mark.parametrize("have", [None, "2.1.11-1"])
def test_a_prebuilt_package_whose_module_is_gone_or_old_is_installed_anew(node, run_module, have):
    node.packages(**PREBUILT)
    node.loaded(V)
    node.modinfo(NEW, V, "extra")
    node.modinfo(OLD, have, "extra")
    node.modinfo(OLD, V, "extra")
    node.offers(*PREBUILT_OFFERS)
    node.apt()
    result = run_module(node.module, **PREBUILT_ARGUMENTS)
    assert result["changed"] is True, result
    assert node.apt_calls() == ["update", f"install --reinstall zfs-modules-{OLD} zfs-dkms-"]


def test_a_prebuilt_package_without_a_module_is_an_error_that_names_the_kernel(node, run_module):
    node.packages(**PREBUILT)
    node.modinfo(NEW, V, "extra")
    node.modinfo(OLD, None)
    node.offers(*PREBUILT_OFFERS)
    node.apt()
    result = run_module(node.module, **PREBUILT_ARGUMENTS)
    assert result["failed"] and f"no zfs module for kernel {OLD} (source prebuilt)" in result["msg"]


def change_to_prebuilt(node, **after):
    node.packages(**DKMS)
    node.packages(**{**DKMS, **PREBUILT})
    node.packages(**PREBUILT)
    for release in (OLD, NEW):
        node.modinfo(release, V)
        node.modinfo(release, V)
        node.modinfo(release, V, "extra")
    node.loaded(V)
    node.offers(*PREBUILT_OFFERS)


def test_from_dkms_to_prebuilt_the_old_source_goes_last(node, run_module):
    change_to_prebuilt(node)
    for release in (OLD, NEW):
        node.file(release, "extra")
    node.apt()
    result = run_module(node.module, **PREBUILT_ARGUMENTS)
    assert not result.get("failed"), result
    assert node.apt_calls() == ["update", f"install zfs-modules-{OLD} zfs-modules-{NEW}", "purge zfs-dkms"]
    assert "zfs-dkms: not installed" in result["diff"]["after"] and result["exchanged"] == []


@pytest.mark.parametrize("there", [False, True])
def test_from_a_build_that_failed_to_prebuilt(node, run_module, there):
    """dpkg is not to configure zfs-dkms once more, which would build for minutes and fail again."""
    before = PREBUILT if there else USER
    node.packages(_failed=("zfs-dkms",), zfs_dkms=V, **before)
    node.packages(**PREBUILT)
    node.loaded(V)
    for release in (OLD, NEW):
        for version in [V] if there else [None, V]:
            node.modinfo(release, version, "extra")
    node.offers(*PREBUILT_OFFERS)
    node.apt(simulate="Remv zfs-dkms [2.3.2-2]\n")
    result = run_module(node.module, **PREBUILT_ARGUMENTS)
    assert not result.get("failed"), result
    assert "zfs-dkms: installation unfinished" in result["diff"]["before"]
    assert "zfs-dkms: not installed" in result["diff"]["after"]
    assert node.apt_calls()[-1] == (
        "purge zfs-dkms" if there else f"install zfs-modules-{OLD} zfs-modules-{NEW} zfs-dkms-"
    )


def test_a_change_of_source_in_check_mode(node, run_module):
    change_to_prebuilt(node)
    result = run_module(node.module, check=True, **PREBUILT_ARGUMENTS)
    assert result["changed"] is True and node.wrote_nothing()
    assert "zfs-dkms: not installed" in result["diff"]["after"]
    assert f"module of kernel {OLD}: new, from source prebuilt" in result["diff"]["after"]


def test_the_old_source_stays_while_a_kernel_would_be_without_module(node, run_module):
    change_to_prebuilt(node)
    node.file(NEW, "extra")
    node.apt()
    result = run_module(node.module, **PREBUILT_ARGUMENTS)
    assert result["failed"] and f"zfs-dkms was not removed, since kernel {OLD} would be" in result["msg"]
    assert not any("purge" in call for call in node.apt_calls())


def test_a_module_package_that_zfs_zed_does_not_accept_is_found_before_the_purge(node, run_module):
    change_to_prebuilt(node)
    for release in (OLD, NEW):
        node.file(release, "extra")
    node.commands.answer("apt-get --yes * --simulate purge *", "Purg zfs-zed [2.3.2-2]\nPurg zfs-dkms [2.3.2-2]\n")
    node.apt()
    result = run_module(node.module, **PREBUILT_ARGUMENTS)
    assert result["failed"] and "to purge zfs-dkms, apt-get would remove zfs-zed" in result["msg"]
    assert "must provide zfs-modules" in result["next_step"]
    assert not any("purge" in call for call in node.apt_calls())


def test_sources_that_conflict_are_exchanged_at_once_with_a_warning(node, run_module):
    node.packages(**DKMS)
    node.packages(**PREBUILT)
    for release in (OLD, NEW):
        node.modinfo(release, V)
        node.modinfo(release, V, "extra")
    node.loaded(V)
    node.offers(*PREBUILT_OFFERS)
    node.apt(simulate="Remv zfs-dkms [2.3.2-2]\nInst zfs-modules\n")
    result = run_module(node.module, **PREBUILT_ARGUMENTS)
    assert not result.get("failed"), result
    assert result["exchanged"] == ["zfs-dkms"]


@pytest.mark.parametrize("other", ["zfs-fuse", "zfs-zed"])
def test_an_installation_that_would_remove_something_else_is_refused(node, run_module, other):
    node.packages(**USER, **HEADERS)
    for release in (OLD, NEW):
        node.modinfo(release, None)
    node.offers(*OFFERS)
    node.apt(simulate=f"Remv {other} [0.7]\n")
    result = run_module(node.module, source="dkms")
    assert result["failed"] and f"apt-get would remove {other}" in result["msg"]
    assert node.apt_calls() == ["update"]


def test_from_prebuilt_to_dkms_the_packages_go_once_all_kernels_are_built(node, run_module):
    node.packages(**PREBUILT)
    node.packages(**{**PREBUILT, **DKMS})
    node.packages(**DKMS)
    node.loaded(V)
    for release in (OLD, NEW):
        node.modinfo(release, V, "extra")
        node.modinfo(release, V)
    node.offers(*OFFERS)
    node.apt()
    result = run_module(node.module, source="dkms", module_package="zfs-modules-{kernel}")
    assert not result.get("failed"), result
    assert node.apt_calls()[-2:] == [f"install zfs-dkms={V}", f"purge zfs-modules-{OLD} zfs-modules-{NEW}"]
    assert f"zfs-modules-{OLD}: not installed" in result["diff"]["after"]


def test_a_package_that_lost_its_module_is_mended_before_what_shadows_it_goes(node, run_module):
    """As after a run that was cut off between the two."""
    node.packages(**{**DKMS, **PREBUILT})
    node.packages(**{**DKMS, **PREBUILT})
    node.packages(**PREBUILT)
    node.loaded(V)
    for release in (OLD, NEW):
        node.modinfo(release, V)
        node.modinfo(release, V)
        node.modinfo(release, V, "extra")
    node.file(NEW, "extra")
    node.offers(*PREBUILT_OFFERS)
    node.apt()
    result = run_module(node.module, **PREBUILT_ARGUMENTS)
    assert node.apt_calls() == ["update", f"install --reinstall zfs-modules-{OLD}"]
    # The stand-in for apt unpacks nothing.
    assert result["failed"] and f"kernel {OLD} would be without" in result["msg"]


def test_dependencies_that_cannot_be_met_are_shown_before_anything_is_changed(node, run_module):
    node.packages()
    for release in (OLD, NEW):
        node.modinfo(release, None)
    node.offers(*PREBUILT_OFFERS)
    node.commands.answer("apt-get --yes * update")
    unmet = (
        "The following packages have unmet dependencies:\n zfs-zed : Depends: zfs-modules or\n"
        "                    zfs-dkms but it is not going to be installed\n"
    )
    broken = "E: Unable to correct problems, you have held broken packages.\n"
    node.commands.answer("apt-get --yes * --simulate *", unmet, rc=100, err=broken)
    result = run_module(node.module, **PREBUILT_ARGUMENTS)
    assert result["failed"] and "zfs-zed : Depends: zfs-modules or zfs-dkms but it is not going" in result["msg"]
    assert node.apt_calls() == ["update"]


def test_a_module_that_dkms_left_behind_is_named(node, run_module):
    node.packages(**PREBUILT)
    node.loaded(V)
    for release in (OLD, NEW):
        node.modinfo(release, V)
        node.file(release, "extra")
    result = run_module(node.module, **PREBUILT_ARGUMENTS)
    assert result["failed"] and "would be loaded in place of the module of source prebuilt" in result["msg"]


@pytest.mark.parametrize(
    ("offers", "expected", "step"),
    [
        (OFFERS[3:], "packages zfsutils-linux, zfs-zed, zfs-dkms are not known", "component contrib"),
        ([*OFFERS[:2], *OFFERS[3:]], "package zfs-dkms is not known", "component contrib"),
        (OFFERS[:4], f"package linux-headers-{NEW} is not known", f"headers of kernel {NEW} are not offered"),
    ],
)
def test_packages_that_no_source_knows(node, run_module, offers, expected, step):
    node.packages()
    for release in (OLD, NEW):
        node.modinfo(release, None)
    node.offers(*offers)
    node.apt()
    result = run_module(node.module, source="dkms")
    assert result["failed"] and expected in result["msg"] and step in result["next_step"]
    assert node.apt_calls() == ["update"]


def test_a_kernel_without_prebuilt_package_is_named(node, run_module):
    node.packages()
    for release in (OLD, NEW):
        node.modinfo(release, None)
    node.offers(*PREBUILT_OFFERS[:4])
    node.apt(update="W: Failed to fetch mirror/InRelease\n")
    result = run_module(node.module, **PREBUILT_ARGUMENTS)
    assert result["failed"] and "Failed to fetch mirror/InRelease" in result["msg"]
    assert f"build the module package for kernel {NEW}" in result["next_step"]


def test_a_version_that_no_source_offers_is_refused(node, run_module):
    node.packages()
    for release in (OLD, NEW):
        node.modinfo(release, None)
    node.offers(*OFFERS)
    node.apt()
    result = run_module(node.module, source="dkms", version="9.9-9")
    assert (
        result["failed"]
        and f"zfsutils-linux=9.9-9 is not offered by the node's package sources (offered: {V})" in (result["msg"])
    )
    assert node.apt_calls() == ["update"]


def test_a_version_that_is_not_the_candidate_brings_its_own_libraries(node, run_module):
    node.packages()
    node.packages(**DKMS)
    for release in (OLD, NEW):
        node.modinfo(release, None)
        node.modinfo(release, V)
    newer = "2.3.9-1"
    node.offers(*[(name, newer, V) for name in OFFERS[:3]], *OFFERS[3:])
    node.commands.answer(
        f"apt-cache show zfsutils-linux={V} zfs-zed={V} zfs-dkms={V}",
        f"Package: zfsutils-linux\nVersion: {V}\n"
        f"Depends: libzfs6linux (= {V}), libc6 (= 2.38), libnvpair3linux (= {V})\n\n"
        f"Package: zfs-zed\nVersion: {V}\nDepends: zfs-modules | zfs-dkms, zfsutils-linux (= {V})\n\n",
    )
    node.apt()
    result = run_module(node.module, source="dkms", version=V, load=False)
    assert not result.get("failed"), result
    assert node.apt_calls()[-1] == (
        f"install zfsutils-linux={V} zfs-zed={V} zfs-dkms={V} libzfs6linux={V} libnvpair3linux={V}"
    )


@pytest.mark.parametrize("version", [V, None])
def test_an_installation_that_brings_another_version_is_no_success(node, run_module, version):
    node.packages()
    node.packages(**{**DKMS, "zfs_zed": "2.3.1-1"})
    for release in (OLD, NEW):
        node.modinfo(release, None)
    node.offers(*OFFERS)
    node.apt()
    result = run_module(node.module, source="dkms", version=version)
    assert result["failed"] and "zfs-zed is 2.3.1-1" in result["msg"], result
    assert "after an installation that reported success" in result["msg"]


@pytest.mark.parametrize("check", [True, False])
def test_another_loaded_module_asks_for_a_reboot_and_is_not_unloaded(node, run_module, check):
    node.packages(**DKMS)
    node.loaded("2.3.0-1")
    for release in (OLD, NEW):
        node.modinfo(release, V)
    result = run_module(node.module, check=check, source="dkms")
    assert result["changed"] is False and node.wrote_nothing()
    assert result["reboot_reason"] == f"zfs module 2.3.0-1 is loaded, {V} is installed for the running kernel {NEW}"
    assert result["reboot_still_needed"][0] == "/bin/sh"


def test_check_mode_foresees_the_reboot_of_an_upgrade(node, run_module):
    node.packages(**DKMS)
    node.loaded(V)
    node.offers(*[(name, "2.3.9-1", V) for name in OFFERS[:3]], *OFFERS[3:])
    for release in (OLD, NEW):
        node.modinfo(release, V)
    result = run_module(node.module, check=True, source="dkms", version="2.3.9-1")
    assert result["changed"] is True and node.wrote_nothing()
    assert result["reboot_reason"] == f"zfs module {V} is loaded, 2.3.9 is installed for the running kernel {NEW}"


def test_a_running_kernel_that_was_removed(node, run_module):
    node.packages(**DKMS)
    for release in (OLD, NEW):
        node.modinfo(release, V)
    node.uname.release = "6.1.0-20-amd64"
    result = run_module(node.module, source="dkms")
    assert result["failed"] and "running kernel 6.1.0-20-amd64 is no longer installed" in result["msg"]
    assert "reboot" in result["next_step"]
    node.loaded(V)
    result = run_module(node.module, source="dkms")
    assert result["changed"] is False and "6.1.0-20-amd64 is no longer installed" in result["reboot_reason"]
    assert "uname -r" in result["reboot_still_needed"][-1]


def test_a_rejected_key(node, run_module):
    node.packages(**DKMS)
    for release in (OLD, NEW):
        node.modinfo(release, V)
    said = "modprobe: ERROR: could not insert 'zfs': Key was rejected by service"
    node.commands.answer("modprobe zfs", rc=1, err=said)
    result = run_module(node.module, source="dkms")
    assert result["failed"] and said in result["msg"] and "Secure Boot is on" in result["msg"]
    assert "mokutil --import" in result["next_step"]


def test_no_kernel_no_packages(node, run_module):
    for release in (OLD, NEW):
        (node.root / "boot" / f"vmlinuz-{release}").unlink()
    result = run_module(node.module, source="dkms")
    assert result["failed"] and "no installed kernel was found" in result["msg"]


def test_a_dpkg_that_cannot_answer_is_not_taken_for_a_fresh_node(node, run_module):
    node.commands.answer(QUERY, rc=2, err="dpkg-query: error: failed to open package info file")
    result = run_module(node.module, source="dkms")
    assert result["failed"] and "failed to open package info file" in result["msg"] and node.wrote_nothing()


def test_a_package_on_record_for_a_second_architecture_is_still_installed(node, run_module):
    lines = "".join(f"{name}|hi |{V}\n{name}|rc |2.1.11-1\n" for name in ("zfsutils-linux", "zfs-zed"))
    node.commands.answer(QUERY, lines, rc=1, err=UNKNOWN)
    node.loaded(V)
    for release in (OLD, NEW):
        node.modinfo(release, V, "kernel/zfs")
    result = run_module(node.module, source="distro")
    assert result["changed"] is False, result


def test_another_operating_system_and_a_missing_pattern_are_refused(node, run_module):
    result = run_module(node.module, source="dkms", supported_os=["plan9 4"])
    assert result["failed"] and "supported are: plan9 4" in result["msg"]
    result = run_module(node.module, source="prebuilt")
    assert result["failed"] and "{kernel}" in result["msg"] and "packages.zfs.module_package" in result["next_step"]
    assert node.commands.calls("dpkg-query") == []
