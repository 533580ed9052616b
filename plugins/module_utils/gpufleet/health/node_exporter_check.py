# SPDX-License-Identifier: Apache-2.0
"""Whether the node exporter answers as Prometheus asks it (what the role node_exporter sets)."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

from ..node_exporter import ExporterParseError, Scrape, parse_scrape
from .check import Check, Profile
from .finding import Evidence, Finding
from .node_evidence import NodeEvidence
from .probe import ParseError, Probe, ProbeResult

SCRAPE = "node_exporter.scrape"

# Bash asks by itself (/dev/tcp): curl is on no node for sure. Where it listens is a variable of the role, so the unit
# says it; without one the exporter's own default is tried. Of some thousand metrics only those that are read come back.
_ASK = r"""
address=$(systemctl show -p ExecStart --value node_exporter.service 2>&1 | grep -o -e '--web.listen-address=[^ ]*')
address=${address#*=}
address=${address:-:9100}
echo "asked: $address"
host=${address%:*}
host=${host#[}
host=${host%]}
case $host in ''|0.0.0.0) host=127.0.0.1 ;; ::) host=::1 ;; esac
exec 3<>"/dev/tcp/$host/${address##*:}" || exit 1
printf 'GET /metrics HTTP/1.0\r\n\r\n' >&3
grep -a -E '^(HTTP/|node_exporter_build_info|node_textfile_scrape_error)' <&3
"""
# bash in front of the words of strerror(3)
_REFUSED = re.compile(r"connect: (Connection refused|No route to host|Network is unreachable)")


class Exporter(NamedTuple):
    """asked: address as systemd has it (":9100"). answer: None where nobody listens there. said: what decided."""

    asked: str
    answer: Scrape | None
    said: str


def parse_exporter(result: ProbeResult) -> Exporter:
    """Raises ParseError for an answer that is not a node exporter's."""
    asked, __, rest = result.stdout.partition("\n")
    if not asked.startswith("asked: "):
        raise ParseError(f"expected the address that was asked, got {asked!r}")
    asked = asked[len("asked: ") :]
    if result.outcome == "failed":
        refused = _REFUSED.search(result.stderr)
        if refused and not rest.strip():
            return Exporter(asked, None, refused[1])
        raise ParseError(f"asking {asked} {result.says()}")
    status = rest.partition("\n")[0].strip()
    if not re.match(r"HTTP/1\.[01] 200\b", status):
        raise ParseError(f"{asked} answered {status or 'nothing'!r}, expected HTTP status 200")
    try:
        return Exporter(asked, parse_scrape(rest), rest.strip())
    except (ExporterParseError, ValueError) as error:
        raise ParseError(f"{asked}: {error}") from error


def check_exporter(evidence: NodeEvidence, profile: Profile) -> Iterable[Finding]:
    """The node exporter answers with the profile's version, and reads the files that other tools leave for it.

    Without it the node is blind to monitoring.

    Source: packages.node_exporter of the profile; role node_exporter
    """
    wanted = profile["packages"]["node_exporter"]
    # A package of the distribution carries the exporter's version in front of its own revision.
    version = wanted["distro_version"] if wanted["source"] == "distro" else wanted["version"]
    found: Exporter = evidence.facts(SCRAPE)
    seen = (Evidence(SCRAPE, found.said),)
    advice = "look at its log on the node: journalctl -u node_exporter"
    if found.answer is None:
        observed = f"nobody listens on {found.asked}: {found.said}"
        yield Finding("node", "warn", observed, "it answers", "restart_service", advice, seen, "role node_exporter")
        return
    problems = []
    if version is not None and not _same_version(found.answer.version, version):
        problems.append((f"version {found.answer.version}", f"version {version}"))
    if found.answer.textfile_error is None:
        problems.append(("the textfile collector is off", "it is on"))
    elif found.answer.textfile_error:
        problems.append(("not all files of its textfile directory can be read", "they can"))
    for observed, expected in problems:
        where = f"{found.asked}: {observed}"
        yield Finding("node", "warn", where, expected, "restart_service", advice, seen, "role node_exporter")
    if not problems:
        text = f"{found.asked} answers, version {found.answer.version}, textfile collector without errors"
        yield Finding("node", "ok", text, evidence=seen)


def _same_version(running: str, wanted: str) -> bool:
    return re.match(rf"{re.escape(running)}(?:$|[-+~])", wanted) is not None


PROBES = (Probe(SCRAPE, parse_exporter, argv=("bash", "-c", _ASK), deadline_s=20, parses=("done", "failed")),)
CHECKS = (Check("node_exporter", check_exporter, (SCRAPE,)),)
