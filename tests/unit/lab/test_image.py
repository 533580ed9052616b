# SPDX-License-Identifier: Apache-2.0
"""The image cache: its key follows the content, and only a finished build looks finished."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from lab import host_tools, image
from lab.errors import LabError
from lab.process import ProcessId

REPOSITORY = Path(__file__).resolve().parents[3]


@pytest.fixture
def guest(tmp_path: Path) -> Path:
    """A copy of the guest directory that a test may change."""
    return Path(shutil.copytree(image.GUEST, tmp_path / "guest"))


def fake_builder(directory: Path, seconds: float) -> str:
    """Stands in for mmdebstrap: takes its time, then fails. Returns a PATH that finds it first."""
    directory.mkdir()
    script = directory / "mmdebstrap"
    script.write_text(
        f"#!/bin/sh\necho $$ > {directory}/pid\necho installing; sleep {seconds}; echo E: mirror is gone; exit 7\n"
    )
    script.chmod(0o755)
    return f"{directory}{os.pathsep}{host_tools.SEARCH_PATH}"


def test_the_key_is_stable_and_follows_every_file(guest: Path) -> None:
    keys = {image.image_key(guest)}
    assert image.image_key(guest) in keys
    for name in ("packages.txt", "first_boot.py", "configure_root.sh", "make_disk_image.sh"):
        with (guest / name).open("a") as stream:
            stream.write("\nextra-package\n" if name == "packages.txt" else "\n# changed\n")
        key = image.image_key(guest)
        assert key not in keys, f"a change of {name} must make a new image"
        keys.add(key)


def test_a_comment_in_the_package_list_does_not_change_the_key(guest: Path) -> None:
    before = image.image_key(guest)
    with (guest / "packages.txt").open("a") as stream:
        stream.write("# why\n")
    assert image.image_key(guest) == before


def test_a_directory_without_manifest_is_no_image(tmp_path: Path) -> None:
    directory = tmp_path / "images" / image.image_key()
    directory.mkdir(parents=True)
    (directory / "node.raw").write_text("half")
    assert image.find_image(tmp_path) is None
    (directory / "manifest.json").write_text("{}")
    assert image.find_image(tmp_path) is not None


def test_a_failing_build_says_why_and_leaves_no_image(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUFLEET_APT_MIRROR", "http://mirror.invalid/debian")
    monkeypatch.setattr(image, "SEARCH_PATH", fake_builder(tmp_path / "bin", 0))
    with pytest.raises(LabError) as caught:
        image.ensure_image(lambda _: None, cache=tmp_path / "cache")
    assert "installing packages failed (exit 7)" in str(caught.value)
    assert "E: mirror is gone" in str(caught.value)
    assert image.find_image(tmp_path / "cache") is None


def test_a_killed_build_leaves_nothing_finished_and_the_next_one_cleans_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = fake_builder(tmp_path / "bin", 60)
    cache = tmp_path / "cache"
    program = (
        "import sys, pathlib; from lab import image; image.SEARCH_PATH = sys.argv[2]\n"
        "image.ensure_image(print, cache=pathlib.Path(sys.argv[1]))"
    )
    build = subprocess.Popen(
        [sys.executable, "-c", program, str(cache), path], cwd=REPOSITORY, stdout=subprocess.DEVNULL,
        env={**os.environ, "GPUFLEET_APT_MIRROR": "http://mirror.invalid/debian"},
    )  # fmt: skip
    deadline = time.monotonic() + 60
    pid_file = tmp_path / "bin" / "pid"
    while not (pid_file.exists() and pid_file.read_text().strip()) and time.monotonic() < deadline:
        time.sleep(0.05)
    builder = ProcessId.of(int(pid_file.read_text()))
    assert builder is not None
    os.kill(build.pid, signal.SIGKILL)
    build.wait(30)
    while builder.alive():
        assert time.monotonic() < deadline, "what the build had started goes on without it"
        time.sleep(0.05)
    left = [path for path in (cache / "images").glob("building-*") if path.is_dir()]
    assert left, "the build was killed in its middle"
    assert image.find_image(cache) is None

    said: list[str] = []
    monkeypatch.setenv("GPUFLEET_APT_MIRROR", "http://mirror.invalid/debian")
    monkeypatch.setattr(image, "SEARCH_PATH", fake_builder(tmp_path / "bin2", 0))
    with pytest.raises(LabError, match="exit 7"):
        image.ensure_image(said.append, cache=cache)
    assert any("interrupted build left" in text for text in said)


def test_too_little_space_is_said_before_the_build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil.disk_usage(tmp_path)._replace(free=100 * 2**20)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    with pytest.raises(LabError, match=r"no space for the image build: .* 100 MiB free, 7000 MiB are needed"):
        image.ensure_image(lambda _: None, cache=tmp_path)
    assert not list((tmp_path / "images").glob("building-*"))


def test_an_image_is_in_use_while_an_overlay_exists(tmp_path: Path) -> None:
    for key in ("new", "old"):
        directory = tmp_path / "images" / key
        directory.mkdir(parents=True)
        (directory / "manifest.json").write_text(json.dumps({}))
    found, old = image.list_images(tmp_path)
    overlay = tmp_path / "os.qcow2"
    overlay.touch()
    old.note_user(overlay)
    found.note_user(overlay)
    assert found.users() == [overlay]
    assert old.users() == [], "the node was reset onto the new image"
    overlay.unlink()
    assert found.users() == []
