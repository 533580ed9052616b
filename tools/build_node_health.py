# SPDX-License-Identifier: Apache-2.0
"""Build build/node-health: the health check as one file that runs on a node with nothing but Python 3.9 or later.

    tools/build_node_health.py [--profile profiles/x.yml] [--output build/node-health]

The file is a zip archive of plugins/module_utils/gpufleet, behind a line that names the interpreter. The same tree
gives the same bytes on any machine with the same Python: members are in order, stored with one time stamp and one mode.
Beside each module lies its compiled form, which the Python that built the file uses; others compile for themselves.
"""

from __future__ import annotations

import argparse
import io
import json
import marshal
import os
import sys
import zipfile
from importlib.util import MAGIC_NUMBER
from pathlib import Path

import yaml

REPOSITORY = Path(__file__).resolve().parents[1]
TREE = REPOSITORY / "plugins" / "module_utils" / "gpufleet"
INTERPRETER = b"#!/usr/bin/env python3\n"
PROFILE = "profile.json"
MAIN = f"""\
import sys

from gpufleet.health.command_line import main

try:
    profile = __loader__.get_data("{PROFILE}").decode()
except OSError:
    profile = None
sys.exit(main(sys.argv[1:], profile))
"""
# The first moment that a zip archive can express.
TIME_STAMP = (1980, 1, 1, 0, 0, 0)


def members(tree: Path) -> dict[str, bytes]:
    """Contents of the archive by name: the tree, without what Python left in it."""
    contents: dict[str, bytes] = {}
    for file in sorted(tree.rglob("*.py")):
        name, source = str(file.relative_to(tree.parent)), file.read_bytes()
        contents[name] = source
        # The header of a .pyc that is taken as it is (PEP 552): its source lies beside it and cannot change.
        code = compile(source, name, "exec", dont_inherit=True)
        # marshal's version 2: later ones note which objects happen to be shared at the time.
        contents[f"{name}c"] = MAGIC_NUMBER + (1).to_bytes(4, "little") + bytes(8) + marshal.dumps(code, 2)
    return contents


def archive(contents: dict[str, bytes]) -> bytes:
    """A zip archive whose bytes depend on its contents alone."""
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as zipped:
        for name in sorted(contents):
            member = zipfile.ZipInfo(name, TIME_STAMP)
            member.external_attr = 0o644 << 16
            member.create_system = 3  # Unix, on whatever it is built
            # not compressed: zlib and zlib-ng give different bytes, and Python starts faster
            zipped.writestr(member, contents[name])
    return data.getvalue()


def build(output: Path, profile: Path | None = None, tree: Path = TREE) -> None:
    """Write the program, whole or not at all. Raises OSError, and yaml.YAMLError for a profile that is none."""
    contents = members(tree)
    contents["__main__.py"] = MAIN.encode()
    if profile is not None:
        data = yaml.safe_load(profile.read_text(encoding="utf-8"))
        contents[PROFILE] = json.dumps(data, indent=1, ensure_ascii=True).encode()
    output.parent.mkdir(parents=True, exist_ok=True)
    work = output.with_name(f".{output.name}.{os.getpid()}")
    work.write_bytes(INTERPRETER + archive(contents))
    work.chmod(0o755)
    work.replace(output)


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--profile", type=Path, help="put this profile into the program, for run and replay")
    parser.add_argument("--output", type=Path, default=REPOSITORY / "build" / "node-health")
    arguments = parser.parse_args()
    try:
        build(arguments.output, arguments.profile)
    except (OSError, yaml.YAMLError) as error:
        print(f"build_node_health: {error}", file=sys.stderr)
        return 1
    print(f"{arguments.output}: {arguments.output.stat().st_size // 1000} kB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
