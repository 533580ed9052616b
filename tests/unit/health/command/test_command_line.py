# SPDX-License-Identifier: Apache-2.0
"""node-health: its sub-commands, what they print, and their exit status."""

import io
import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible.module_utils.gpufleet.health.capture import read_capture
from ansible.module_utils.gpufleet.health.command_line import Tables, main
from ansible.module_utils.gpufleet.health.fault_history import Entry, read_history, write_history

from .conftest import CHECKS, HEALTHY, PROBES, SICK, profile

TABLES = Tables(PROBES, CHECKS)


def call(*arguments: str, embedded: str | None = None, tables: Tables = TABLES) -> tuple[int, str]:
    """Exit status and what was printed."""
    out = io.StringIO()
    return main(arguments, embedded, tables, out), out.getvalue()


@pytest.mark.parametrize(
    ("fans", "code", "first"),
    [
        (HEALTHY, 0, "OK: may train"),
        (HEALTHY.replace("FAN3 4200\n", ""), 1, "WARN: may train, but somebody must look (1 warning)"),
        (SICK, 2, "FAIL: must not train (2 faults). Next: reseat"),
        (None, 3, "UNKNOWN: not known to be healthy"),
    ],
)
def test_replay_ends_as_monitoring_plug_ins_do(
    capture: Any, profile_file: Any, fans: str | None, code: int, first: str
) -> None:
    ended, text = call("replay", capture(fans), "--profile", profile_file())
    assert ended == code
    assert text.startswith(first)


def test_run_asks_the_node(profile_file: Any) -> None:
    code, text = call("run", "--profile", profile_file(), "--deadline", "5")
    assert code == 3
    assert "cat /nonexistent/fans" in text


def test_json_is_the_whole_report(capture: Any, profile_file: Any) -> None:
    code, text = call("replay", capture(SICK), "--profile", profile_file(), "--json")
    assert code == 2
    assert json.loads(text)["findings"][0]["advice"] == "pull the fan and push it in again"


def test_narrow_skip_and_list_all(capture: Any, profile_file: Any) -> None:
    options = ("--profile", profile_file(), "--check", "fan", "--skip", "fan.speed=ticket 1 = open", "--all")
    code, text = call("replay", capture(SICK), *options)
    assert code == 0
    assert "only 2 of 3 checks" in text
    assert "ticket 1 = open" in text


def test_a_profile_built_in_is_used_unless_another_is_given(capture: Any, profile_file: Any) -> None:
    built_in = json.dumps(profile(required_checks=["door"]))
    assert call("replay", capture(HEALTHY), embedded=built_in)[0] == 3
    assert call("replay", capture(HEALTHY, name="again"), "--profile", profile_file(), embedded=built_in)[0] == 0


def test_a_profile_may_be_yaml_where_pyyaml_is_there(capture: Any, tmp_path: Path) -> None:
    (tmp_path / "p.yml").write_text(yaml.safe_dump(profile()))
    assert call("replay", capture(HEALTHY), "--profile", str(tmp_path / "p.yml"))[0] == 0


def test_without_pyyaml_a_yaml_profile_is_refused_with_a_way_out(
    capture: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "yaml", None)
    (tmp_path / "p.yml").write_text(yaml.safe_dump(profile()))
    assert call("replay", capture(HEALTHY), "--profile", str(tmp_path / "p.yml"))[0] == 64
    assert "make node-health PROFILE=" in capsys.readouterr().err


USAGE = [
    ([], "COMMAND"),
    (["judge"], "invalid choice"),
    (["replay"], "DIR|TAR"),
    (["replay", "/nonexistent"], "no profile says"),
    (["replay", "/nonexistent", "--profile", "/nonexistent"], "/nonexistent cannot be read"),
    (["replay", "/nonexistent", "--profile", "{profile}"], "/nonexistent is not there"),
    (["run", "--profile", "{list}"], "must be a mapping"),
    (["run", "--profile", "{empty}"], "profile: schema: "),
    (["run", "--profile", "{profile}", "--check", "fan.sped"], "did you mean 'fan.speed'?"),
    (["run", "--profile", "{profile}", "--skip", "door"], "door needs a reason"),
    (["run", "--profile", "{profile}", "--deadline", "0"], "more than 0"),
    (["run", "--profile", "{profile}", "--deadline", "soon"], "invalid float"),
    (["run", "--profile", "{profile}", "--capture-to", "/tmp"], "/tmp is there already"),
    (["capture", "/tmp"], "/tmp is there already"),
    (["capture", "/tmp/x-new", "--deadline", "-1"], "more than 0"),
    (["capture", "/tmp/x-new", "--from", "/nonexistent"], "/nonexistent is not there"),
    (["explain", "fan.sped"], "did you mean 'fan.speed'?"),
    (["propose-profile", "/nonexistent"], "/nonexistent is not there"),
    (["history", "forget"], "invalid choice"),
    (["history", "show", "--history", "{list}"], "is no history"),
]


@pytest.mark.parametrize(
    ("arguments", "said"), USAGE, ids=lambda value: " ".join(value) if isinstance(value, list) else ""
)
def test_a_wrong_command_line_ends_with_64_and_says_why(
    arguments: list[str], said: str, profile_file: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, text in (("list", "[]"), ("empty", "{}")):
        (tmp_path / name).write_text(text)
    files = {"profile": profile_file(), "list": tmp_path / "list", "empty": tmp_path / "empty"}
    arguments = [one.format(**files) if one.startswith("{") else one for one in arguments]
    try:
        code = call(*arguments)[0]
    except SystemExit as ended:  # argparse
        code = int(str(ended.code))
    assert code == 64
    assert said in capsys.readouterr().err


def test_capture_keeps_what_the_node_says(tmp_path: Path) -> None:
    code, text = call("capture", str(tmp_path / "kept.tar.gz"))
    assert code == 0
    assert "2 probes" in text and "without an answer: fans" in text
    assert set(read_capture(str(tmp_path / "kept.tar.gz")).results) == {"fans", "door"}


def test_a_capture_that_cannot_be_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("")
    assert call("capture", str(tmp_path / "file" / "kept"))[0] == 74
    assert "node-health: " in capsys.readouterr().err


def test_a_copy_without_names(capture: Any, tmp_path: Path) -> None:
    code, _text = call("capture", str(tmp_path / "copy"), "--from", capture("10.0.0.7 4200\n"), "--anonymous")
    assert code == 0
    copy = read_capture(str(tmp_path / "copy"))
    assert copy.results["fans"].stdout == "198.18.0.1 4200\n"
    assert copy.created == 1_796_000_000.0


def test_probes_and_checks_are_listed() -> None:
    assert "cat /nonexistent/fans" in call("probes")[1]
    assert json.loads(call("probes", "--json")[1])[0]["id"] == "fans"
    assert "fan.speed" in call("checks")[1] and "Fans turn." in call("checks")[1]
    assert json.loads(call("checks", "--json")[1])[0]["needs"] == ["fans"]


def test_explain() -> None:
    assert "Fans turn." in call("explain", "fan.speed")[1]
    assert call("explain", "xid", "79") == call("explain", "xid 79")
    assert "Xid 79" in call("explain", "xid", "79")[1]


def test_history(tmp_path: Path) -> None:
    path = str(tmp_path / "history")
    assert call("history", "show", "--history", path) == (0, f"no faults are known ({path})\n")
    entry = Entry("fan.speed", "fan FAN2", "reseat", "0123456789abcdef", 1_796_000_000.0)
    write_history(path, [entry, entry._replace(component="fan FAN3")])
    assert "fan.speed  fan FAN2  reseat" in call("history", "show", "--history", path)[1]
    assert len(json.loads(call("history", "show", "--json", "--history", path)[1])) == 2
    assert call("history", "clear", "fan FAN2", "--history", path) == (0, "1 of 2 faults forgotten\n")
    assert [one.component for one in read_history(path)] == ["fan FAN3"]
    assert call("history", "clear", "--history", path) == (0, "1 of 1 faults forgotten\n")


def test_a_console_that_knows_ascii_only(capture: Any, profile_file: Any) -> None:
    raw = io.BytesIO()
    out = io.TextIOWrapper(raw, encoding="ascii")
    arguments = ("replay", capture("F\u00c4N1 40\n"), "--profile", profile_file())
    assert main(arguments, None, TABLES, out) == 2
    assert b"F?N1" in raw.getvalue()
