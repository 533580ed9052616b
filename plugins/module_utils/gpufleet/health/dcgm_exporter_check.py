# SPDX-License-Identifier: Apache-2.0
"""Whether DCGM's exporter answers as Prometheus asks it, with the metrics by which a GPU's faults are seen."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

from .check import Check, Profile
from .counted_output import counted, parts_of
from .docker_engine import is_version, not_judged
from .finding import Evidence, Finding
from .node_evidence import NodeEvidence
from .nvidia_smi_query import QUERY
from .probe import ParseError, Probe, ProbeResult

SCRAPE = "dcgm_exporter.scrape"
UNIT = "nvidia-dcgm-exporter.service"
# Each by a part of its name: releases spell them differently (clocks event reasons were throttle reasons).
PROMISED = {
    "Xids": "XID_ERRORS",
    "row remapping": "REMAP",
    "PCIe replays": "PCIE_REPLAY",
    "NVLink errors": "NVLINK_[A-Z_]*ERROR",
    "reasons for low clocks": "CLOCKS?_(EVENT|THROTTLE)",
}
# As in node_exporter_check: bash asks by itself. Of thousands of samples only these come back, with the GPU's number.
_SCRIPT = rf"""
echo '== started'
systemctl show {UNIT} nvidia-dcgm.service --property ActiveEnterTimestampMonotonic --value | grep .
echo '== version'
dpkg-query -W -f '${{db:Status-Status}} ${{Version}}\n' datacenter-gpu-manager-exporter 2>/dev/null
echo '== asked'
address=$(systemctl show {UNIT} --property ExecStart,Environment |
  grep -oE -e '(-a |--address[ =]|DCGM_EXPORTER_LISTEN=)[^ ;"]+' | tail -n 1 | sed 's/.*[ =]//')
address=${{address:-:9400}}
echo "$address"
host=${{address%:*}}
host=${{host#[}}
host=${{host%]}}
case $host in ''|0.0.0.0) host=127.0.0.1 ;; ::) host=::1 ;; esac
echo '== answer'
timeout 20 bash -c 'exec 3<>"/dev/tcp/$0/$1" || exit 1
printf "GET /metrics HTTP/1.0\r\n\r\n" >&3
grep -a -E "^(HTTP/|DCGM_(FI_DEV|EXP)_[A-Z_]*({"|".join(PROMISED.values())}))" <&3' "$host" "${{address##*:}}" 2>&1 |
  sed -E 's/\{{.*gpu="([0-9]+)".*\}} /{{\1}} /'
"""
_REFUSED = re.compile(r"connect: (Connection refused|No route to host|Network is unreachable)")
_SAMPLE = re.compile(r"(DCGM_[A-Z0-9_]+)\{(\d+)\} ([\d.e+-]+)")
# dcgm_structs.h, DCGM_INT32_BLANK and DCGM_INT64_BLANK: from here on a number says "no value" (bug 011).
_BLANK_32, _BLANK_64 = 0x7FFFFFF0, 0x7FFFFFFFFFFFFFF0


class Exporter(NamedTuple):
    """asked: address (":9400"). refused: why nobody answers, "" where somebody does. metrics: GPUs by metric.

    outlived: whether the host engine was started after it. version: of its package, None where there is none.
    """

    asked: str
    refused: str
    metrics: dict[str, frozenset[str]]
    outlived: bool
    version: str | None


def parse_exporter(result: ProbeResult) -> Exporter:
    """Raises ParseError for an answer that is not an exporter's."""
    parts = parts_of(result, ("started", "version", "asked", "answer"))
    asked, answer = " ".join(parts["asked"]), parts["answer"]
    starts = parts["started"]
    if not asked or len(starts) != 2 or not all(start.isdigit() for start in starts):
        raise ParseError(f"expected an address and two times, got {asked!r} and {starts}")
    # 0: it does not run as a unit
    outlived = 0 < int(starts[0]) < int(starts[1])
    version = next((line.split(" ")[1] for line in parts["version"] if line.startswith("installed ")), None)
    refused = _REFUSED.search(" ".join(answer))
    if refused:
        return Exporter(asked, refused[1], {}, outlived, version)
    status = answer[0].strip() if answer else "nothing within 20 s"
    if not re.match(r"HTTP/1\.[01] 200\b", status):
        raise ParseError(f"{asked} answered {status!r}, expected HTTP status 200")
    metrics: dict[str, set[str]] = {}
    for line in answer[1:]:
        sample = _SAMPLE.fullmatch(line.strip())
        if sample is None:
            raise ParseError(f"{asked}: no sample of a GPU: {line[:100]!r}")
        gpus, value = metrics.setdefault(sample[1], set()), float(sample[3])
        if not (_BLANK_32 <= value < 1 << 31 or value >= _BLANK_64):
            gpus.add(sample[2])
    return Exporter(asked, "", {name: frozenset(gpus) for name, gpus in metrics.items()}, outlived, version)


def check_exporter(evidence: NodeEvidence, profile: Profile) -> Iterable[Finding]:
    """DCGM's exporter answers, with a fresh value of every promised metric for every GPU.

    Promised are those by which faults are seen: Xids, row remapping, PCIe replays, NVLink errors, reasons for low
    clocks. An exporter may go on with the last values, or without any, after the host engine was started anew.

    Source: packages.dcgm_exporter of the profile; role dcgm_exporter; NVIDIA/gpu-monitoring-tools#188; bug 094
    """
    wanted = profile["packages"]["dcgm_exporter"]
    skipped = not_judged(profile, "dcgm_exporter")
    if skipped:
        yield skipped
        return
    found: Exporter = evidence.facts(SCRAPE)
    gpus = len(evidence.facts(QUERY).gpus)
    seen = (Evidence(SCRAPE), Evidence(QUERY))
    troubles = []
    if found.refused:
        troubles.append((f"nobody listens on {found.asked}: {found.refused}", "it answers"))
    else:
        without = []
        for what, part in PROMISED.items():
            most = max((len(have) for name, have in found.metrics.items() if re.search(part, name)), default=0)
            if most < gpus:
                without.append(f"{what} ({most} of {gpus} GPUs)")
        if not found.metrics:
            troubles.append((f"{found.asked} answers without a sample of a GPU", f"samples of {gpus} GPUs"))
        elif without:
            troubles.append((f"{found.asked} lacks {', '.join(without)}", "each for every GPU"))
    if found.outlived:
        troubles.append(("the host engine was started after it: its values may be old", "it is started last"))
    if wanted["run_as"] == "service" and not is_version(found.version or "not installed", wanted["version"]):
        troubles.append((f"version {found.version or 'not installed'}", f"version {wanted['version']}"))
    for observed, expected in troubles:
        advice = f"look at its log on the node: journalctl -u {UNIT}"
        yield Finding("node", "warn", observed, expected, "restart_service", advice, seen, "role dcgm_exporter")
    if not troubles:
        text = f"{found.asked} answers with {len(found.metrics)} metrics of faults for {gpus} GPUs"
        yield Finding("node", "ok", text, evidence=seen)


PROBES: tuple[Probe, ...] = (Probe(SCRAPE, parse_exporter, argv=counted(_SCRIPT), deadline_s=30),)
CHECKS: tuple[Check, ...] = (Check("dcgm_exporter", check_exporter, needs=(SCRAPE, QUERY)),)
