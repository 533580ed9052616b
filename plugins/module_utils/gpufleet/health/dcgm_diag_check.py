# SPDX-License-Identifier: Apache-2.0
"""`dcgmi diag` in the JSON of DCGM 3 and of DCGM 4: only what ran and passed has passed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from .check import Check, Profile
from .dcgm_checks import ENGINE, components, document_of
from .docker_engine import not_judged
from .finding import Evidence, Finding
from .node_evidence import NodeEvidence
from .nvidia_smi_query import QUERY
from .probe import NoEvidence, ParseError, Probe, ProbeResult

DIAG = "dcgm.diag"
# DCGM 4, DCGM 2 and 3 (NVIDIA/DCGM#215, facebookresearch/gcm#38)
_TOP = ("DCGM Diagnostic", "DCGM GPU Diagnostic")
_STATUSES = {"Pass": "ok", "Skip": "skipped", "Not Run": "skipped", "Warn": "warn", "Fail": "fail"}


class TestResult(NamedTuple):
    """entity: "GPU 3" by DCGM's number, "" for the node as a whole. status: as printed. warnings: in words."""

    test: str
    entity: str
    status: str
    warnings: tuple[str, ...]


class Diag(NamedTuple):
    """version: DCGM's, "" where it does not say."""

    version: str
    results: tuple[TestResult, ...]


def parse_diag(result: ProbeResult) -> Diag:
    """Raises ParseError, also where no test is in it: nothing has passed then."""
    document = document_of(result.stdout.splitlines())
    top = next((document[name] for name in _TOP if name in document), None)
    try:
        if top is None or "runtime_error" in top:
            raise ParseError(f"dcgmi diag did not run: {(top or document).get('runtime_error', sorted(document))}")
        results = tuple(found for part in top["test_categories"] for test in part["tests"] for found in _results(test))
        version = document.get("metadata", document).get("version", "")
    except (KeyError, TypeError, AttributeError) as error:
        raise ParseError(f"dcgmi diag printed another JSON than DCGM 3 and 4: {error!r}") from error
    if not results:
        raise ParseError("dcgmi diag names no test that ran")
    odd = {one.status for one in results} - set(_STATUSES)
    if odd:
        raise ParseError(f"dcgmi diag: no result of a test: {', '.join(sorted(odd))}")
    return Diag(str(version), results)


def _results(test: dict[str, Any]) -> Iterator[TestResult]:
    name, status = str(test["name"]), ""
    for one in test.get("results", []):
        # DCGM 3 adds further warnings of a test as entries with nothing else.
        status = str(one["status"]) if "status" in one or "entity_id" in one or "warnings" not in one else status
        numbers = one.get("gpu_id", one.get("gpu_ids"))
        entity = "" if numbers is None else f"GPU {numbers}"
        if "entity_id" in one:
            entity = f"{one['entity_group']} {one['entity_id']}"
        yield TestResult(name, entity, status, _warnings(one))
    summary = test.get("test_summary")
    if summary is not None:
        # It repeats what the entities say; it is alone where a test has no entity, or none of them tells why.
        told = {one.get("status") for one in test.get("results", [])}
        if not told or (summary["status"] in ("Fail", "Warn") and summary["status"] not in told):
            yield TestResult(name, "", str(summary["status"]), _warnings(summary))


def _warnings(told: dict[str, Any]) -> tuple[str, ...]:
    found = told.get("warnings", [])
    texts = [found] if isinstance(found, str) else [one if isinstance(one, str) else one["warning"] for one in found]
    return tuple(" ".join(str(text).split()) for text in texts)


def check_diag(evidence: NodeEvidence, profile: Profile) -> Iterable[Finding]:
    """DCGM's own tests of the first level pass on every GPU. Half a minute; runs only where it is asked for by name.

    What DCGM skipped has not passed, and a test that passed with a warning is told of: the memory test passes although
    it could not allocate memory. An output without a test is no pass.

    Source: DCGM user guide, diagnostics; NVIDIA/DCGM#215, #284; bugs 088, 089
    """
    skipped = not_judged(profile, "dcgm")
    if skipped:
        yield skipped
        return
    diag: Diag = evidence.facts(DIAG)
    gpus = len(evidence.facts(QUERY).gpus)
    where = {f"GPU {number}": name for number, name in components(evidence).items()}
    for one in diag.results:
        status = _STATUSES[one.status]
        if status == "ok" and one.warnings:
            status = "warn"
        if status == "ok":
            continue
        words = "; ".join(one.warnings) or "without a reason"
        yield Finding(
            where.get(one.entity, one.entity) or "node",
            status,
            f"test {one.test}: {one.status}, {words}"[:280],
            "Pass",
            {"fail": "inspect", "warn": "observe"}.get(status, "none"),
            ""
            if status == "skipped"
            else "drain the node and run dcgmi diag -r 3; the NVIDIA number of the error is in it",
            (Evidence(DIAG, words),),
            f"dcgmi diag {diag.version}".strip(),
        )
    passed = [one for one in diag.results if one.status == "Pass"]
    if not passed:
        raise NoEvidence(DIAG, "no test passed or failed: all were skipped")
    tested = {one.entity for one in passed if one.entity.startswith("GPU ")}
    if tested and len(tested) < gpus and not any(one.status in ("Fail", "Warn") for one in diag.results):
        raise NoEvidence(DIAG, f"{len(tested)} GPUs of {gpus} were tested")
    if all(one.status in ("Pass", "Skip", "Not Run") and not one.warnings for one in diag.results):
        tests = sorted({one.test for one in passed})
        text = f"{len(tests)} tests passed" + (f" on {len(tested)} GPUs" if tested else "")
        yield Finding("node", "ok", f"{text}: {', '.join(tests)}"[:280], evidence=(Evidence(DIAG), Evidence(QUERY)))


PROBES: tuple[Probe, ...] = (
    # It ends with another status than 0 where a test fails.
    Probe(DIAG, parse_diag, argv=("dcgmi", "diag", "-r", "1", "-j"), deadline_s=300, parses=("done", "failed"),
          heavy=True),
)  # fmt: skip
CHECKS: tuple[Check, ...] = (Check("dcgm.diag", check_diag, needs=(DIAG, QUERY), also=(ENGINE,)),)
