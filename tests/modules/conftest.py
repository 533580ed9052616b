# SPDX-License-Identifier: Apache-2.0
"""Run a module of library/ through its main() with real arguments; commands it starts answer from a table."""

import importlib.util
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.testing import patch_module_args

LIBRARY = Path(__file__).resolve().parents[2] / "library"

# Stands in for each command: takes the first unused answer for its command line; the last one is given again.
ANSWER = """\
import fnmatch, json, os, sys
folder = os.path.dirname(os.path.abspath(__file__))
line = " ".join([os.path.basename(sys.argv[1])] + sys.argv[2:])
with open(os.path.join(folder, "calls"), "a") as file:
    file.write(line + "\\n")
with open(os.path.join(folder, "table.json")) as file:
    table = json.load(file)
mine = [entry for entry in table if fnmatch.fnmatchcase(line, entry["line"])]
if not mine:
    sys.exit("the test's table has no answer for: " + line)
entry = next((entry for entry in mine if not entry.get("used")), mine[-1])
entry["used"] = True
with open(os.path.join(folder, "table.json"), "w") as file:
    json.dump(table, file)
sys.stdout.write(entry["out"])
sys.stderr.write(entry["err"])
sys.exit(entry["rc"])
"""


class Commands:
    """Commands that answer from a table, on PATH before the real ones."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        (folder / "answer.py").write_text(ANSWER)
        (folder / "calls").write_text("")
        self.table: list[dict[str, Any]] = []
        monkeypatch.setenv("PATH", str(folder), prepend=":")

    def answer(self, line: str, out: str = "", rc: int = 0, err: str = "") -> None:
        """Add an answer to a command line; fnmatch patterns are allowed, several answers are given in turn."""
        self.table.append({"line": line, "out": out, "rc": rc, "err": err})
        (self.folder / "table.json").write_text(json.dumps(self.table))
        command = self.folder / line.split()[0]
        command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -S "{self.folder}/answer.py" "$0" "$@"\n')
        command.chmod(0o755)

    def calls(self, command: str) -> list[str]:
        """Command lines of this command so far."""
        return [line for line in (self.folder / "calls").read_text().splitlines() if line.split()[0] == command]


@pytest.fixture
def commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Commands:
    folder = tmp_path / "bin"
    folder.mkdir()
    return Commands(folder, monkeypatch)


def load_module(name: str) -> Any:
    """The module of library/ as a Python module, fresh."""
    spec = importlib.util.spec_from_file_location(f"gpufleet_library_{name}", LIBRARY / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


RunModule = Callable[..., dict[str, Any]]


@pytest.fixture
def run_module(capsys: pytest.CaptureFixture[str]) -> RunModule:
    """run_module(name or loaded module, check=False, **arguments) -> what the module printed, as a dict."""

    def run(module: Any, check: bool = False, **arguments: Any) -> dict[str, Any]:
        if isinstance(module, str):
            module = load_module(module)
        with patch_module_args({**arguments, "_ansible_check_mode": check}), pytest.raises(SystemExit):
            module.main()
        result: dict[str, Any] = json.loads(capsys.readouterr().out)
        return result

    return run
