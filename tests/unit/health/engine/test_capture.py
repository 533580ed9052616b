# SPDX-License-Identifier: Apache-2.0
"""A capture brings back what was written; one that was cut says so, and a hostile archive does no harm."""

import io
import json
import tarfile
from pathlib import Path

import pytest
from ansible.module_utils.gpufleet.health import capture as capture_module
from ansible.module_utils.gpufleet.health.capture import CaptureError, read_capture, write_capture
from ansible.module_utils.gpufleet.health.probe import Probe, ProbeResult

PROBE = Probe("nvidia_smi.query", lambda result: result.stdout, argv=("nvidia-smi", "-q", "-x"))
RESULT = ProbeResult("nvidia_smi.query", "failed", 15, "GPU is lost ü\n", "", 1.5, 1000.25, True)
MISSING = ProbeResult("kernel.dmesg", "missing", None, "", "", 0.0, 1000.0, False, "dmesg is not there")
RESULTS = {RESULT.probe: RESULT, MISSING.probe: MISSING}


@pytest.mark.parametrize("name", ["capture", "capture.tar.gz"])
def test_what_was_written_is_read(tmp_path: Path, name: str) -> None:
    place = str(tmp_path / "deep" / name)
    write_capture(place, RESULTS, [PROBE], created=1001.0)
    assert read_capture(place) == (1001.0, RESULTS)
    assert Path(place).stat().st_mode & 0o077 == 0, "kernel logs and process names are nobody else's"
    assert [entry.name for entry in (tmp_path / "deep").iterdir()] == [name], "nothing else is left there"
    with pytest.raises(CaptureError, match="is there already"):
        write_capture(place, RESULTS, [PROBE], created=1.0)


def test_the_source_is_kept(tmp_path: Path) -> None:
    write_capture(str(tmp_path / "c"), RESULTS, [PROBE], created=1.0)
    assert json.loads((tmp_path / "c/nvidia_smi.query/meta.json").read_text())["source"] == ["nvidia-smi", "-q", "-x"]


def test_an_output_that_was_cut_is_truncated(tmp_path: Path) -> None:
    write_capture(str(tmp_path / "c"), RESULTS, [PROBE], created=1.0)
    stdout = tmp_path / "c/nvidia_smi.query/stdout"
    stdout.write_bytes(stdout.read_bytes()[:5])
    assert read_capture(str(tmp_path / "c")).results["nvidia_smi.query"].outcome == "truncated"
    stdout.unlink()
    assert read_capture(str(tmp_path / "c")).results["nvidia_smi.query"].outcome == "truncated"


@pytest.mark.parametrize("meta", ["", "[]", "{}", '{"outcome": "done"}', "\x00"])
def test_a_meta_json_that_is_none_makes_it_truncated(tmp_path: Path, meta: str) -> None:
    write_capture(str(tmp_path / "c"), RESULTS, [PROBE], created=1.0)
    (tmp_path / "c/nvidia_smi.query/meta.json").write_text(meta)
    read = read_capture(str(tmp_path / "c")).results["nvidia_smi.query"]
    assert read.outcome == "truncated"


def test_what_is_no_capture_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "text").write_text("hello")
    for name, says in (("empty", "is no capture"), ("text", "no readable archive"), ("none", "is not there")):
        with pytest.raises(CaptureError, match=says):
            read_capture(str(tmp_path / name))
    (tmp_path / "empty/capture.json").write_text('{"format": 2, "created": 1}')
    with pytest.raises(CaptureError, match="has format 2"):
        read_capture(str(tmp_path / "empty"))


def test_an_empty_capture_is_one(tmp_path: Path) -> None:
    write_capture(str(tmp_path / "c"), {}, [], created=7.0)
    assert read_capture(str(tmp_path / "c")) == (7.0, {})


def archive(path: Path, members: dict[str, bytes], links: dict[str, str] | None = None) -> str:
    with tarfile.open(path, "w:gz") as tar:
        for name, target in (links or {}).items():
            link = tarfile.TarInfo(name)
            link.type, link.linkname = tarfile.SYMTYPE, target
            tar.addfile(link)
        for name, data in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    return str(path)


def test_names_that_lead_elsewhere_and_links_are_passed_over(tmp_path: Path) -> None:
    place = archive(
        tmp_path / "a.tgz",
        {"../../etc/passwd": b"x", "/etc/shadow": b"x", "capture/../../a/stdout": b"x", "capture/capture.json": b"{}"},
        {"capture/kernel.dmesg/stdout": "/etc/passwd"},
    )
    assert read_capture(place).results == {}


def test_an_archive_that_is_too_big_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = archive(tmp_path / "a.tgz", {"capture/a/stdout": b"0" * 10_000})
    monkeypatch.setattr(capture_module, "MAX_TOTAL_BYTES", 9_999)
    with pytest.raises(CaptureError, match="it is no capture"):
        read_capture(place)


def test_an_archive_that_was_cut_gives_what_is_whole(tmp_path: Path) -> None:
    place = tmp_path / "c.tar.gz"
    noise = ProbeResult(
        "kernel.journal", "done", 0, "".join(chr(33 + i * i % 90) for i in range(200_000)), "", 1, 1, True
    )
    write_capture(str(place), {**RESULTS, noise.probe: noise}, [PROBE], created=1.0)
    whole = place.read_bytes()
    for size in range(0, len(whole), max(1, len(whole) // 40)):
        place.write_bytes(whole[:size])
        try:
            results = read_capture(str(place)).results
        except CaptureError:
            continue
        for name, result in results.items():
            assert result == {**RESULTS, noise.probe: noise}[name] or result.outcome == "truncated"
