# SPDX-License-Identifier: Apache-2.0
"""file_set: several files in one task, written whole, never through a link, and exact in check mode."""

import grp
import os
import pwd
import stat

import pytest

from tests.modules.conftest import load_module

ME = {"owner": pwd.getpwuid(os.geteuid()).pw_name, "group": grp.getgrgid(os.getegid()).gr_name}


@pytest.fixture
def folder(tmp_path):
    made = tmp_path / "etc"
    made.mkdir()
    return made


def entry(path, content="a\n", **more):
    return {"path": str(path), "content": content, **ME, **more}


def tree(folder):
    """Everything about a folder that a run could change."""
    found = {}
    for path in sorted(folder.rglob("*")):
        status = path.lstat()
        content = path.read_bytes() if stat.S_ISREG(status.st_mode) else None
        found[str(path)] = (status.st_mode, status.st_ino, status.st_mtime_ns, content)
    return found


def test_files_are_written_once(folder, run_module):
    arguments = {
        "files": [entry(folder / "a"), entry(folder / "d" / "b", "ä\n", mode="0600")],
        "directories": [{"path": str(folder / "d"), "mode": "0750", **ME}],
        "absent": [str(folder / "gone")],
    }
    (folder / "gone").write_text("old\n")
    before = tree(folder)
    checked = run_module("file_set", check=True, **arguments)
    assert tree(folder) == before

    result = run_module("file_set", **arguments)
    expected = [str(folder / name) for name in ("d", "a", "d/b", "gone")]
    assert result["changed_paths"] == checked["changed_paths"] == expected
    assert result["created_paths"] == checked["created_paths"] == expected[:3]
    assert result["diff"] == checked["diff"] and result["changed"] and checked["changed"]
    assert (folder / "a").read_text() == "a\n" and stat.S_IMODE((folder / "a").stat().st_mode) == 0o644
    assert (folder / "d" / "b").read_text() == "ä\n" and stat.S_IMODE((folder / "d" / "b").stat().st_mode) == 0o600
    assert stat.S_IMODE((folder / "d").stat().st_mode) == 0o750
    assert sorted(os.listdir(folder)) == ["a", "d"] and os.listdir(folder / "d") == ["b"]

    after = tree(folder)
    again = run_module("file_set", **arguments)
    assert (again["changed"], again["changed_paths"], again["created_paths"]) == (False, [], [])
    assert again["diff"] == []
    assert tree(folder) == after


def test_only_what_differs_is_in_the_diff(folder, run_module):
    run_module("file_set", files=[entry(folder / "a"), entry(folder / "b"), entry(folder / "c")])
    (folder / "a").write_text("by hand\n")
    (folder / "b").chmod(0o666)
    result = run_module("file_set", files=[entry(folder / "a"), entry(folder / "b"), entry(folder / "c")])
    assert result["diff"] == [
        {
            "before": "by hand\n",
            "after": "a\n",
            "before_header": str(folder / "a"),
            "after_header": str(folder / "a"),
        },
        {
            "before": "mode: 0666\n",
            "after": "mode: 0644\n",
            "before_header": f"{folder / 'b'} (attributes)",
            "after_header": f"{folder / 'b'} (attributes)",
        },
    ]
    assert stat.S_IMODE((folder / "b").stat().st_mode) == 0o644


def test_the_mode_of_a_directory_is_put_back(folder, run_module):
    arguments = {"directories": [{"path": str(folder / "d"), "mode": "0750", **ME}]}
    run_module("file_set", **arguments)
    (folder / "d").chmod(0o777)
    assert run_module("file_set", check=True, **arguments)["changed_paths"] == [str(folder / "d")]
    assert stat.S_IMODE((folder / "d").stat().st_mode) == 0o777
    assert run_module("file_set", **arguments)["changed"] is True
    assert stat.S_IMODE((folder / "d").stat().st_mode) == 0o750
    assert run_module("file_set", **arguments)["changed"] is False


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give files away")
def test_an_owner_is_put_back(folder, run_module):
    arguments = {"files": [{"path": str(folder / "a"), "content": "a\n"}]}
    run_module("file_set", **arguments)
    os.chown(folder / "a", 65534, 65534)
    result = run_module("file_set", **arguments)
    assert result["changed_paths"] == [str(folder / "a")]
    assert (os.stat(folder / "a").st_uid, os.stat(folder / "a").st_gid) == (0, 0)


def obstacles(folder):
    (folder / "target").write_text("not mine\n")
    (folder / "link").symlink_to("target")
    (folder / "masked").symlink_to("/dev/null")
    (folder / "dangling").symlink_to("nowhere")
    (folder / "dir").mkdir()
    os.mkfifo(folder / "fifo")


@pytest.mark.parametrize("where", ["files", "absent"])
@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("link", "is a symbolic link to target (links are not followed), expected a file or nothing. Remove the link"),
        ("masked", "is a symbolic link to /dev/null (a masked unit; systemctl unmask removes the link)"),
        ("dangling", "is a symbolic link to nowhere"),
        ("dir", "is a directory, expected a file or nothing"),
        ("fifo", "is there and is no file"),
    ],
)
@pytest.mark.parametrize("check", [False, True])
def test_what_is_no_file_is_refused_before_anything_is_written(folder, run_module, where, name, expected, check):
    obstacles(folder)
    before = tree(folder)
    path = folder / name
    more = {"absent": [str(path)]} if where == "absent" else {}
    files = [entry(folder / "first"), *([] if more else [entry(path)])]
    result = run_module("file_set", check=check, files=files, **more)
    assert result["failed"] and f"{path} {expected}" in result["msg"] and "Nothing was changed" in result["msg"]
    assert tree(folder) == before


def test_a_link_or_file_in_the_place_of_a_directory_is_refused(folder, run_module):
    obstacles(folder)
    (folder / "dirlink").symlink_to("dir")
    for name, expected in (("dirlink", "symbolic link"), ("target", "is there and is no directory")):
        result = run_module("file_set", directories=[{"path": str(folder / name), **ME}])
        assert result["failed"] and expected in result["msg"]


def test_a_link_that_appears_late_is_replaced_and_not_followed(folder, run_module, monkeypatch):
    """Between the look and the rename another process may put a link there; what it points to must stay."""
    (folder / "target").write_text("not mine\n")
    module = load_module("file_set")
    monkeypatch.setattr(module, "obstacle", lambda path, wanted: None)
    monkeypatch.setattr(module, "read_bytes", lambda path: None)
    (folder / "a").symlink_to("target")
    run_module(module, files=[entry(folder / "a")])
    assert (folder / "target").read_text() == "not mine\n"
    assert not (folder / "a").is_symlink() and (folder / "a").read_text() == "a\n"


def test_a_link_that_appears_late_is_not_read_through(folder, run_module, monkeypatch):
    (folder / "target").write_text("secret\n")
    (folder / "a").symlink_to("target")
    module = load_module("file_set")
    monkeypatch.setattr(module, "obstacle", lambda path, wanted: None)
    result = run_module(module, check=True, files=[entry(folder / "a")])
    assert result["failed"] and "secret" not in str(result)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({"files": [entry("etc/x")]}, "files: 'etc/x' is no path that can be used, expected an absolute one"),
        ({"files": [entry("/etc/../x")]}, "'/etc/../x' is no path"),
        ({"absent": ["/etc/x/"]}, "absent: '/etc/x/' is no path"),
        ({"absent": ["/"]}, "absent: '/' is no path"),
        ({"files": [entry("/etc/x"), entry("/etc/x")]}, "/etc/x is named twice (in files and in files)"),
        ({"files": [entry("/etc/x")], "absent": ["/etc/x"]}, "/etc/x is named twice (in files and in absent)"),
        # what YAML makes of 0644 without quotes
        ({"files": [entry("/etc/x", mode=420)]}, "mode is '420', expected four octal digits in quotes"),
        ({"files": [entry("/etc/x", mode="u=rw")]}, "mode is 'u=rw'"),
    ],
)
def test_bad_arguments_are_refused(run_module, arguments, expected):
    result = run_module("file_set", check=True, **arguments)
    assert result["failed"] and expected in result["msg"]


def test_a_missing_folder_is_refused_unless_check_mode_may_expect_it(folder, run_module):
    files = [entry(folder / "first"), entry(folder / "no" / "a")]
    result = run_module("file_set", files=files)
    assert result["failed"] and f"folder {folder / 'no'} does not exist" in result["msg"]
    assert os.listdir(folder) == []
    assert run_module("file_set", check=True, files=files)["changed"]


def test_a_write_that_fails_leaves_the_old_file_and_no_scraps(folder, run_module, monkeypatch):
    (folder / "a").write_text("old\n")

    def full(dummy):
        raise OSError(28, "No space left on device")

    module = load_module("file_set")
    monkeypatch.setattr(module.os, "fsync", full)
    result = run_module(module, files=[entry(folder / "a")])
    assert result["failed"] and "No space left on device" in result["msg"] and "df -h" in result["msg"]
    assert os.listdir(folder) == ["a"] and (folder / "a").read_text() == "old\n"


def test_what_is_no_small_text_file_is_replaced_without_being_shown(folder, run_module):
    (folder / "a").write_bytes(b"x" * ((1 << 20) + 1))
    (folder / "b").write_bytes(b"\xff\n")
    result = run_module("file_set", files=[entry(folder / "a"), entry(folder / "b")])
    assert [item["before"] for item in result["diff"]] == ["(1048577 bytes, not shown)\n", "\ufffd\n"]
    assert (folder / "a").read_text() == (folder / "b").read_text() == "a\n"


@pytest.mark.parametrize(
    ("path", "needed"),
    [
        ("/etc/systemd/system/x-of-no-one.service", True),
        ("/etc/systemd/system/x-of-no-one.service.d/a.conf", True),
        ("/etc/systemd/system-x-of-no-one", False),
        ("/etc/x-of-no-one", False),
    ],
)
def test_systemd_has_to_reload_after_a_changed_unit_only(run_module, path, needed):
    assert run_module("file_set", check=True, files=[entry(path)])["daemon_reload_needed"] is needed
