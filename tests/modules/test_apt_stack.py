# SPDX-License-Identifier: Apache-2.0
"""apt_stack through main(), with a temporary /etc/apt and commands that answer from a table.

What apt itself does is tested with the real one: tests/integration/gpu_stack.
"""

import hashlib
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.gpufleet import apt_stack_apt, apt_stack_files
from ansible.module_utils.gpufleet.apt_sources_trial import Roots

from tests.modules.conftest import Commands, RunModule, load_module

KEY = b"-----BEGIN PGP PUBLIC KEY BLOCK-----\n\nnone\n"
QUERY = "dpkg-query --show --showformat=${Package}|${db:Status-Abbrev}|${Version}*"
HELD = "nvidia-open|hi |580.95.05-1\nlibnvidia-ml1|hi |580.95.05-1\nvim|ii |9\n"
UNHELD = HELD.replace("hi", "ii")
KERNEL = "6.1.0-26-amd64"
POLICY = """\
nvidia-open:
  Installed: (none)
  Candidate: 580.95.05-1
  Version table:
     580.95.05-1 1000
        500 file:/srv/cuda  Packages
"""


class Node:
    """A node with one kernel; `arguments` are those of a converged one."""

    def __init__(self, root: Path, commands: Commands, monkeypatch: pytest.MonkeyPatch) -> None:
        self.root, self.commands = root, commands
        self.module = load_module("apt_stack")
        self.etc = root / "etc"
        (self.etc / "sources.list.d").mkdir(parents=True)
        for name in ("lists", "tmp", f"modules/{KERNEL}", "boot"):
            (root / name).mkdir(parents=True)
        (root / "boot" / f"vmlinuz-{KERNEL}").touch()
        (root / "status").write_text(
            "Package: nvidia-open\nStatus: hold ok installed\n\nPackage: vim\nStatus: hold ok installed\n"
        )
        (root / "key").write_bytes(KEY)
        monkeypatch.setattr(Roots, "etc", str(self.etc))
        monkeypatch.setattr(Roots, "lists", str(root / "lists"))
        monkeypatch.setattr(Roots, "dpkg_status", str(root / "status"))
        monkeypatch.setattr(apt_stack_apt, "DPKG_UPDATES", str(root / "updates"))
        monkeypatch.setattr(apt_stack_apt, "wait_for_locks", lambda *_arguments: None)
        monkeypatch.setattr(self.module, "TRIAL_FOLDERS", str(root / "tmp"))
        monkeypatch.setattr(self.module, "MODULES_ROOT", str(root / "modules"))
        monkeypatch.setattr(self.module, "BOOT_ROOT", str(root / "boot"))
        self.arguments: dict[str, Any] = {
            "name": "nvidia-driver",
            "repository": {
                "uri": "file:/srv/cuda",
                "suites": ["/"],
                "key_url": f"file:{root}/key",
                "key_sha256": hashlib.sha256(KEY).hexdigest(),
            },
            "packages": [{"name": "nvidia-open", "upstream": "580.95.05"}],
            "never_upgraded": ["libnvidia-"],
        }

    def write_files(self) -> None:
        """The files of a converged node."""
        asked = {"pins": [], "keep_out": [], **self.arguments}
        asked["packages"] = [{"version": None, "upstream": None, **package} for package in asked["packages"]]
        asked["repository"] = {"components": [], **asked["repository"]}
        for path, content in apt_stack_files.StackFiles(asked).changed().items():
            apt_stack_files.write(path, content)

    def calls(self) -> list[str]:
        """Command lines so far; dpkg-query's ends in a line feed."""
        return [line for line in (self.commands.folder / "calls").read_text().splitlines() if line]

    def marks(self) -> list[str]:
        """What apt-mark was told."""
        return [line for line in self.calls() if line.startswith("apt-mark ")]

    def files(self) -> list[str]:
        return sorted(str(path.relative_to(self.etc)) for path in self.etc.rglob("*") if path.is_file())


@pytest.fixture
def node(tmp_path: Path, commands: Commands, monkeypatch: pytest.MonkeyPatch) -> Node:
    return Node(tmp_path, commands, monkeypatch)


@pytest.mark.parametrize("check", [False, True])
def test_a_converged_node_is_asked_once_and_no_mirror(node: Node, run_module: RunModule, check: bool) -> None:
    node.commands.answer(QUERY, HELD)
    node.write_files()
    (node.root / "key").unlink()
    result = run_module(node.module, check=check, **node.arguments)
    assert not result.get("failed"), result
    assert (result["changed"], result["plan"]) == (False, [])
    assert result["installed"] == result["before"] == {"nvidia-open": "580.95.05-1"}
    assert result["kernels_before"] == result["kernels_after"] == [KERNEL]
    assert len(node.calls()) == 1


def test_a_second_stack_of_the_same_repository_uses_the_source_of_the_first(node: Node, run_module: RunModule) -> None:
    """As the driver and DCGM do: each taking out the other's source would change the node in every run."""
    node.commands.answer(QUERY, HELD)
    first, second = node.arguments, {**node.arguments, "name": "dcgm"}
    for node.arguments in (first, second):
        node.write_files()
    keyring = node.etc / "keyrings" / "gpufleet-nvidia-driver.asc"
    assert [name for name in node.files() if "dcgm" in name] == [
        "apt.conf.d/52gpufleet-dcgm",
        "preferences.d/gpufleet-dcgm",
    ]
    for arguments in (first, second, first):
        result = run_module(node.module, **arguments)
        assert not result.get("failed") and not result["changed"], result

    # Where the first one's key is gone its source is of no use, and the second one takes over.
    keyring.unlink()
    node.write_files()
    sources = [name for name in node.files() if name.startswith("sources.list.d/")]
    assert sources == ["sources.list.d/gpufleet-dcgm.sources"]
    assert run_module(node.module, **second)["changed"] is False


@pytest.mark.parametrize("check", [False, True])
def test_a_lost_hold_is_set_again_companions_included(node: Node, run_module: RunModule, check: bool) -> None:
    node.commands.answer(QUERY, UNHELD)
    node.commands.answer(QUERY, HELD)
    node.commands.answer("apt-mark hold *")
    node.write_files()
    result = run_module(node.module, check=check, **node.arguments)
    assert result["changed"] and result["plan"] == ["hold nvidia-open", "hold libnvidia-ml1"], result
    assert result["diff"][-1]["before"] == "nvidia-open: 580.95.05-1\n"
    assert result["diff"][-1]["after"] == "nvidia-open: 580.95.05-1, held\n"
    assert node.marks() == ([] if check else ["apt-mark hold libnvidia-ml1 nvidia-open"])


def test_a_package_that_only_has_to_be_there_is_not_held(node: Node, run_module: RunModule) -> None:
    node.commands.answer(QUERY, HELD + "apparmor|ii |3.0.8\n")
    node.arguments["packages"].append({"name": "apparmor", "hold": False})
    node.write_files()
    result = run_module(node.module, **node.arguments)
    assert not result.get("failed"), result
    assert (result["changed"], node.marks()) == (False, [])


def prepare_installation(node: Node, *states: str, refused: str = "") -> None:
    """Answers of all commands; `states` are those of dpkg-query in turn, `refused` why apt takes no lists."""
    for state in states or ("vim|ii |9\n", UNHELD, HELD):
        node.commands.answer(QUERY, state)
    node.commands.answer("apt-get --yes * update", err=refused, rc=100 if refused else 0)
    node.commands.answer("apt-cache policy *", "" if refused else POLICY)
    node.commands.answer("apt-cache show *", "Package: nvidia-open\nVersion: 580.95.05-1\n")
    simulated = "Inst nvidia-open (580.95.05-1 x [all])\nInst libnvidia-ml1 (580.95.05-1 x [all])\n"
    node.commands.answer("apt-get --yes * --simulate install *", simulated)
    node.commands.answer("apt-get --yes * --download-only install *")
    node.commands.answer("apt-get --yes * install *")
    node.commands.answer("apt-mark *")


def test_check_mode_on_a_fresh_node_writes_nothing(node: Node, run_module: RunModule) -> None:
    prepare_installation(node)
    result = run_module(node.module, check=True, **node.arguments)
    assert not result.get("failed"), result
    assert result["changed"] and result["installed"] == {"nvidia-open": "580.95.05-1"}
    assert result["before"] == {"nvidia-open": None}
    assert "install nvidia-open 580.95.05-1" in result["plan"] and "hold libnvidia-ml1" in result["plan"]
    headers = [entry.get("before_header", "") for entry in result["diff"]]
    assert f"{node.etc}/sources.list.d/gpufleet-nvidia-driver.sources" in headers
    assert node.files() == [] and list((node.root / "tmp").iterdir()) == []
    assert not any("download-only" in line or line.startswith("apt-mark") for line in node.calls())


NOT_YET = (
    "E: Release file for file:/srv/cuda/Release is not valid yet (invalid for another 216d). Updates for this "
    "repository will not be applied.\n"
)


@pytest.mark.parametrize("own", [True, False])
def test_check_mode_with_a_clock_that_is_behind_foresees_without_versions(
    node: Node, run_module: RunModule, own: bool
) -> None:
    prepare_installation(node, refused=NOT_YET if own else NOT_YET.replace("/srv/cuda", "/srv/others"))
    arguments = node.arguments if own else {**node.arguments, "repository": None}
    result = run_module(node.module, check=True, **arguments)
    assert not result.get("failed"), result
    assert result["changed"] and result["installed"] == {"nvidia-open": None}
    assert result["plan"] == ["install nvidia-open, of a version that the package lists will tell"]
    assert node.files() == [] and list((node.root / "tmp").iterdir()) == []


@pytest.mark.parametrize("check", [False, True])
def test_a_changed_list_for_unattended_upgrades_asks_no_mirror(node: Node, run_module: RunModule, check: bool) -> None:
    node.commands.answer(QUERY, HELD)
    node.write_files()
    path = node.etc / "apt.conf.d" / "52gpufleet-nvidia-driver"
    wanted = path.read_text()
    path.write_text("// by hand\n")
    result = run_module(node.module, check=check, **node.arguments)
    assert result["changed"] and result["plan"] == [f"write {path}"], result
    assert path.read_text() == ("// by hand\n" if check else wanted)
    assert len(node.calls()) == 1


def test_check_mode_with_a_clock_before_the_key_servers_certificate(
    node: Node, run_module: RunModule, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_arguments: Any, **_options: Any) -> None:
        raise urllib.error.URLError("certificate verify failed: certificate is not yet valid (_ssl.c:992)")

    monkeypatch.setattr(urllib.request, "urlopen", refused)
    node.commands.answer(QUERY, "vim|ii |9\n")
    result = run_module(node.module, check=True, **node.arguments)
    assert not result.get("failed") and result["changed"], result
    assert result["plan"] == ["install nvidia-open, of a version that the package lists will tell"]
    result = run_module(node.module, **node.arguments)
    assert "certificate is not yet valid" in result["msg"], result


def test_a_clock_that_is_behind_is_an_error_in_a_real_run(node: Node, run_module: RunModule) -> None:
    prepare_installation(node, refused=NOT_YET)
    result = run_module(node.module, **node.arguments)
    assert "is not valid yet by this node's clock" in result["msg"], result
    assert "clock is behind" in result["next_step"] and node.files() == []


def test_download_comes_before_anything_is_written(node: Node, run_module: RunModule) -> None:
    prepare_installation(node)
    node.commands.table.insert(
        0, {"line": "*--download-only*", "out": "", "rc": 100, "err": "E: Failed to fetch x  404"}
    )
    node.commands.answer("true")
    result = run_module(node.module, **node.arguments)
    assert result["failed"] and "packages could not be fetched: E: Failed to fetch x  404" in result["msg"], result
    assert node.files() == [] and list((node.root / "tmp").iterdir()) == []


def test_holds_are_set_again_where_the_transaction_fails(node: Node, run_module: RunModule) -> None:
    prepare_installation(node, HELD.replace("580.95.05", "580.90.07"))
    failing = {"line": "apt-get*force-confold install*", "out": "dpkg: error processing package nvidia-open", "rc": 100}
    node.commands.table.insert(0, {**failing, "err": "E: Sub-process"})
    simulated = "Inst nvidia-open [580.90.07-1] (580.95.05-1 x [all])\n"
    node.commands.table.insert(0, {"line": "*--simulate*", "out": simulated, "rc": 0, "err": ""})
    node.commands.answer("true")
    result = run_module(node.module, upgrade=True, **node.arguments)
    assert result["failed"] and "dpkg: error processing package nvidia-open" in result["msg"], result
    assert node.marks() == ["apt-mark unhold libnvidia-ml1 nvidia-open", "apt-mark hold libnvidia-ml1 nvidia-open"]


def test_a_kernel_that_came_all_the_same_is_an_error(
    node: Node, run_module: RunModule, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.commands.answer(QUERY, HELD)
    node.write_files()
    answers = iter([[KERNEL], [KERNEL, "6.9"]])
    monkeypatch.setattr(node.module, "installed_kernels", lambda *_roots: next(answers))
    result = run_module(node.module, **node.arguments)
    assert result["failed"] and f"the installed kernels changed from {KERNEL} to {KERNEL}, 6.9" in result["msg"]


def test_headers_of_every_kernel_are_asked_for(node: Node, run_module: RunModule) -> None:
    prepare_installation(node)
    result = run_module(node.module, headers=True, **node.arguments)
    assert result["failed"] and f"linux-headers-{KERNEL} is not known" in result["msg"], result
    assert node.files() == []


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"packages": []}, "packages is empty"),
        ({"supported_os": ["plan9 4"]}, "is not supported; supported are: plan9 4"),
        ({"packages": [{"name": "a", "version": "1", "upstream": "1"}]}, "mutually exclusive"),
        ({"pins": [{"packages": ["a"]}]}, "one of the following is required: version, origin"),
        ({"name": "Driver"}, "expected small letters"),
    ],
)
def test_bad_input_is_refused_before_a_command_runs(
    node: Node, run_module: RunModule, change: dict[str, Any], expected: str
) -> None:
    result = run_module(node.module, **{**node.arguments, **change})
    assert result["failed"] and expected in result["msg"], result
    assert node.calls() == [] and node.files() == []


@pytest.mark.parametrize(
    ("content", "sha256", "expected"),
    [
        (b"other", None, "has SHA-256 d9298a10d1b0735837dc4bd85dac641b0f3cef27a47e5d53a54f2f3f5b2fcffa, expected"),
        (b"<html>moved</html>", "own", "is no OpenPGP public key (it begins with b'<html>"),
        (None, None, "cannot be fetched from file:"),
    ],
)
def test_a_key_that_is_not_the_pinned_one_is_refused(
    node: Node, run_module: RunModule, content: bytes | None, sha256: str | None, expected: str
) -> None:
    node.commands.answer(QUERY, "vim|ii |9\n")
    if content is None:
        (node.root / "key").unlink()
    else:
        (node.root / "key").write_bytes(content)
    if sha256 and content:
        node.arguments["repository"]["key_sha256"] = hashlib.sha256(content).hexdigest()
    result = run_module(node.module, **node.arguments)
    assert result["failed"] and expected in result["msg"] and result["next_step"], result
    assert node.files() == []


def test_without_a_repository_the_stacks_own_source_goes(node: Node, run_module: RunModule) -> None:
    node.write_files()
    (node.etc / "sources.list.d" / "debian.list").write_text("deb http://d stable main\n")
    prepare_installation(node)
    result = run_module(node.module, **{**node.arguments, "repository": None})
    assert not result.get("failed"), result
    assert node.files() == [
        "apt.conf.d/52gpufleet-nvidia-driver",
        "preferences.d/gpufleet-nvidia-driver",
        "sources.list.d/debian.list",
    ]
    assert f"remove {node.etc}/sources.list.d/gpufleet-nvidia-driver.sources" in result["plan"]


def test_half_done_packages_are_told_in_check_mode(node: Node, run_module: RunModule) -> None:
    node.write_files()
    node.commands.answer(QUERY, HELD + "zfs-dkms|iF |2\nlibc6|it |2\n")
    result = run_module(node.module, check=True, **node.arguments)
    assert result["plan"] == ["dpkg --configure -a, since an earlier run was interrupted (zfs-dkms, libc6)"], result


def test_the_trial_lifts_the_stacks_holds_alone(node: Node) -> None:
    from ansible.module_utils.gpufleet.apt_sources_trial import Trial

    (node.root / "lists" / "mirror_Packages").write_text("old")
    (node.etc / "sources.list").write_text("deb http://d stable main\n")
    folder = node.root / "trial"
    folder.mkdir()
    new = f"{node.etc}/preferences.d/x"
    trial = Trial(str(folder), {new: b"pins\n", f"{node.etc}/sources.list": None}, ["nvidia-open"])
    status = (folder / "status").read_text()
    assert "Package: nvidia-open\nStatus: install ok" in status and "Package: vim\nStatus: hold ok" in status
    assert (folder / "preferences.d/x").read_text() == "pins\n" and not (folder / "sources.list").exists()
    assert (node.etc / "sources.list").exists() and not Path(new).exists()
    # as apt does: a new file in place of the old one
    (folder / "lists" / "new").write_text("new")
    (folder / "lists" / "new").rename(folder / "lists" / "mirror_Packages")
    assert (node.root / "lists" / "mirror_Packages").read_text() == "old"
    trial.take_over_lists()
    assert (node.root / "lists" / "mirror_Packages").read_text() == "new"
    assert sorted(path.name for path in (node.root / "lists").iterdir()) == ["lock", "mirror_Packages"]
