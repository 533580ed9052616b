# SPDX-License-Identifier: Apache-2.0
"""The command node-health: the health check on the node itself, or of a capture on any machine.

Exit status, as monitoring plug-ins have it: 0 ok, 1 warn, 2 fail, 3 unknown. 64: the command line, the profile or the
capture given cannot be right, and nothing was judged. 74: what was asked for could not be written.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn, TextIO

from .capture import CaptureError, read_capture, write_capture
from .check import Check
from .health_run import HealthInput, InputError, run_health
from .policy import EXIT_CODES
from .probe import Probe
from .profile_file import ProfileFileError, parse_profile, read_profile
from .registry import CHECKS, PROBES
from .report_gist import clean
from .report_text import report_lines

# sysexits.h
EXIT_USAGE, EXIT_CANNOT_WRITE = 64, 74
HISTORY = "/var/lib/gpufleet/health-history.json"
_EPILOG = "exit status: 0 ok, 1 warn, 2 fail, 3 unknown, 64 wrong command line or profile, 74 cannot write"


class _Parser(argparse.ArgumentParser):
    """argparse ends with 2, which means `fail` here."""

    def error(self, message: str) -> NoReturn:
        self.print_usage(sys.stderr)
        self.exit(EXIT_USAGE, f"{self.prog}: {message}\n")


class Tables:
    """What there is to run and to judge; other ones in tests."""

    def __init__(self, probes: Sequence[Probe] = PROBES, checks: Sequence[Check] = CHECKS) -> None:
        self.probes = probes
        self.checks = checks


def main(
    arguments: Sequence[str],
    embedded_profile: str | None = None,
    tables: Tables | None = None,
    out: TextIO | None = None,
) -> int:
    """Run one command line and return its exit status. embedded_profile: JSON that came with the program."""
    out = out or sys.stdout
    given = _parser().parse_args(arguments)
    try:
        return int(given.run(given, embedded_profile, tables or Tables(), out))
    except InputError as error:
        for problem in error.problems:
            print(f"node-health: {problem}", file=sys.stderr)
        return EXIT_USAGE
    except (CaptureError, ProfileFileError) as error:
        print(f"node-health: {error}", file=sys.stderr)
        return EXIT_USAGE
    except BrokenPipeError:
        # the reader has seen enough (| head); what is still buffered must not raise again at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_CANNOT_WRITE


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="node-health", description="Says whether this node may train, why not, and what to do.")
    parser.epilog = _EPILOG
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True, parser_class=_Parser)

    def command(name: str, run: Any, text: str) -> argparse.ArgumentParser:
        sub = commands.add_parser(name, help=text, description=text, epilog=_EPILOG)
        sub.set_defaults(run=run)
        return sub

    run = command("run", _run, "judge this node (as root: many answers need it)")
    replay = command("replay", _replay, "judge a capture instead of this node")
    replay.add_argument("capture", metavar="DIR|TAR")
    for one in (run, replay):
        one.add_argument("--profile", metavar="FILE", help="what the node must be: JSON, or YAML where PyYAML is there")
        one.add_argument("--check", action="append", default=[], metavar="ID", help="only this check or prefix (again)")
        one.add_argument(
            "--skip", action="append", default=[], metavar="ID=REASON", help="not this one; ID@PATTERN: components"
        )
        one.add_argument("--all", action="store_true", help="list what is ok and what is skipped as well")
        one.add_argument("--json", action="store_true", help="the whole report for programs")
    for one in (run, command("capture", _capture, "keep what this node says, to judge it later or elsewhere")):
        one.add_argument("--deadline", type=float, metavar="S", help="give each question up after S seconds")
    run.add_argument("--capture-to", metavar="PATH", help="keep what the node said: a new folder, or .tar.gz")
    run.add_argument("--history", nargs="?", const=HISTORY, metavar="FILE", help=f"mind earlier faults ({HISTORY})")
    capture = commands.choices["capture"]
    capture.add_argument("to", metavar="PATH", help="a new folder, or a file that ends with .tar.gz")
    capture.add_argument("--from", dest="source", metavar="DIR|TAR", help="copy this capture instead")
    capture.add_argument("--anonymous", action="store_true", help="replace serials, addresses, host names, UUIDs")
    capture.add_argument("--profile", metavar="FILE", help="with --anonymous: keep what this profile names")

    topic = command("explain", _explain, "tell what a check protects against, or what a kernel message means")
    topic.add_argument("topic", nargs="+", metavar="WORD", help="such as: gpu.ecc, or: xid 79")
    for name, text in (("probes", "list what is asked of a node"), ("checks", "list what is judged")):
        command(name, _probes if name == "probes" else _checks, text).add_argument("--json", action="store_true")
    propose = command("propose-profile", _propose, "write the profile of a node that is known to be good")
    propose.add_argument("capture", metavar="CAPTURE")
    propose.add_argument("--json", action="store_true", help="as node-health itself reads it; else YAML")
    history = command("history", _history, "show or clear the faults of earlier boots")
    history.add_argument("what", choices=["show", "clear"])
    history.add_argument("component", nargs="?", default="*", help="with clear: shell pattern of the mended parts")
    history.add_argument("--history", default=HISTORY, metavar="FILE", help=f"default: {HISTORY}")
    history.add_argument("--json", action="store_true")
    return parser


def _profile(given: argparse.Namespace, embedded: str | None) -> Mapping[str, Any]:
    if given.profile is not None:
        return read_profile(given.profile)
    if embedded is not None:
        return parse_profile(embedded, "the profile built into this program")
    raise ProfileFileError(
        "no profile says what the node must be: give --profile FILE. Without any, make one of a good node: "
        "node-health capture good && node-health propose-profile good --json > profile.json"
    )


def _asked(given: argparse.Namespace, embedded: str | None) -> HealthInput:
    skip = {}
    for text in given.skip:
        name, _equals, reason = text.partition("=")
        skip[name] = reason
    return HealthInput(_profile(given, embedded), tuple(given.check), skip)


def _run(given: argparse.Namespace, embedded: str | None, tables: Tables, out: TextIO) -> int:
    asked = _asked(given, embedded)._replace(
        deadline_s=given.deadline, capture_to=given.capture_to, history=given.history
    )
    return _judge(asked, given, tables, out)


def _replay(given: argparse.Namespace, embedded: str | None, tables: Tables, out: TextIO) -> int:
    return _judge(_asked(given, embedded)._replace(replay_from=given.capture), given, tables, out)


def _judge(asked: HealthInput, given: argparse.Namespace, tables: Tables, out: TextIO) -> int:
    report = run_health(asked, tables.probes, tables.checks)
    if given.json:
        _print_json(report, out)
    else:
        _print(report_lines(report, show_all=given.all), out)
    return EXIT_CODES[report["verdict"]]


def _capture(given: argparse.Namespace, embedded: str | None, tables: Tables, out: TextIO) -> int:
    if os.path.lexists(given.to):
        raise CaptureError(f"{given.to} is there already; name another place")
    if given.deadline is not None and not given.deadline > 0:
        raise InputError([f"--deadline must be more than 0 seconds, found {given.deadline:g}"])
    if given.source is None:
        from .probe_runner import run_probes  # each sub-command pays for its own code only

        created: float | None = time.time()
        results = run_probes([probe for probe in tables.probes if not probe.heavy], given.deadline)
    else:
        created, results = read_capture(given.source)
    if given.anonymous:
        from .capture_anonymous import anonymous

        own = (os.uname().nodename,) if given.source is None else ()
        profile = {} if given.profile is None and embedded is None else _profile(given, embedded)
        results = anonymous(results, profile, own)
    try:
        write_capture(given.to, results, tables.probes, created or 0.0)
    except CaptureError as error:
        print(f"node-health: {error}", file=sys.stderr)
        return EXIT_CANNOT_WRITE
    bad = [result for result in results.values() if result.outcome != "done"]
    told = f", {len(bad)} of them without an answer: {', '.join(result.probe for result in bad)}" if bad else ""
    _print([f"{given.to}: {len(results)} probes{told}"], out)
    return 0


def _explain(given: argparse.Namespace, embedded: str | None, tables: Tables, out: TextIO) -> int:
    from .explain import explain

    try:
        text = explain(" ".join(given.topic), tables.checks)
    except ValueError as error:
        raise InputError([str(error)]) from error
    _print(text.splitlines(), out)
    return 0


def _probes(given: argparse.Namespace, embedded: str | None, tables: Tables, out: TextIO) -> int:
    if given.json:
        fields = ("id", "source", "deadline_s", "root", "heavy")
        _print_json([{name: getattr(probe, name) for name in fields} for probe in tables.probes], out)
        return 0
    for probe in tables.probes:
        needs = " (root)" * probe.root + " (only if asked for)" * probe.heavy
        _print([f"{probe.id:<28} {probe.deadline_s:>4g} s  {clean(probe.source)}{needs}"], out)
    return 0


def _checks(given: argparse.Namespace, embedded: str | None, tables: Tables, out: TextIO) -> int:
    if given.json:
        listed = [{"id": one.id, "needs": one.needs, "documentation": one.documentation} for one in tables.checks]
        _print_json(listed, out)
        return 0
    _print((f"{check.id:<28} {(check.documentation.splitlines() or [''])[0]}" for check in tables.checks), out)
    return 0


def _propose(given: argparse.Namespace, embedded: str | None, tables: Tables, out: TextIO) -> int:
    from .profile_proposal import ProposalError, profile_text, propose_profile

    try:
        created, profile = propose_profile(given.capture, tables.probes, tables.checks)
    except ProposalError as error:
        raise InputError([str(error)]) from error
    if given.json:
        _print_json(profile, out)
    else:
        _print(profile_text(profile, created).splitlines(), out)
    return 0


def _history(given: argparse.Namespace, embedded: str | None, tables: Tables, out: TextIO) -> int:
    from . import fault_history

    try:
        entries = fault_history.read_history(given.history)
    except fault_history.HistoryError as error:
        raise InputError([str(error)]) from error
    if given.what == "clear":
        kept = fault_history.clear(entries, given.component)
        if kept != entries:
            try:
                fault_history.write_history(given.history, kept)
            except fault_history.HistoryError as error:
                print(f"node-health: {error}", file=sys.stderr)
                return EXIT_CANNOT_WRITE
        _print([f"{len(entries) - len(kept)} of {len(entries)} faults forgotten"], out)
    elif given.json:
        _print_json([entry._asdict() for entry in entries], out)
    else:
        for entry in entries:
            when = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(entry.last))
            _print([f"{when}  boot {entry.boot_id[:8]}  {entry.check}  {entry.component}  {entry.action}"], out)
        if not entries:
            _print([f"no faults are known ({given.history})"], out)
    return 0


def _print(lines: Any, out: TextIO) -> None:
    for line in lines:
        # a serial console may know ASCII only
        encoding = out.encoding or "utf-8"
        print(line.encode(encoding, "replace").decode(encoding), file=out)
    out.flush()


def _print_json(data: Any, out: TextIO) -> None:
    print(json.dumps(data, indent=1), file=out)
    out.flush()
