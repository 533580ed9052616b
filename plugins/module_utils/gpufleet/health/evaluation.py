# SPDX-License-Identifier: Apache-2.0
"""From evidence to findings: each check once, skips with their reasons, and no pass without evidence."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable, Mapping, Sequence

from .check import Check, Profile
from .finding import EXCERPT_CHARACTERS, Evidence, Finding
from .node_evidence import NodeEvidence
from .probe import NoEvidence, Probe, ProbeResult

READ_ERROR_ADVICE = "run the probe by hand on the node (node-health probes shows its command) and look at what it says"


class UnknownCheckError(ValueError):
    """A check or prefix was named that does not exist."""


def matches(check: str, name: str) -> bool:
    """Whether a name chooses a check: its id, or a prefix of whole words (`gpu` chooses gpu.ecc, not gpus.x)."""
    return check == name or check.startswith(name + ".")


def choose(checks: Sequence[Check], names: Iterable[str]) -> list[Check]:
    """The checks that the names (ids or prefixes) choose, all for no names. Raises UnknownCheckError."""
    names = list(names)
    for name in names:
        if not any(matches(check.id, name) for check in checks):
            known = ", ".join(check.id for check in checks)
            raise UnknownCheckError(f"no check is named {name!r}; there are {known}")
    return [check for check in checks if not names or any(matches(check.id, name) for name in names)]


def probes_for(checks: Iterable[Check], probes: Sequence[Probe]) -> list[Probe]:
    """The probes that these checks read, in the order of the table."""
    needed = {probe for check in checks for probe in check.reads}
    return [probe for probe in probes if probe.id in needed]


def evaluate(
    checks: Sequence[Check],
    probes: Sequence[Probe],
    results: Mapping[str, ProbeResult],
    profile: Profile,
    skip: Mapping[str, str],
) -> list[Finding]:
    """All findings, in the order of the checks.

    skip: reason by what is skipped: a check's id or prefix ("gpu", "gpu.ecc"), or that and the components by a shell
    pattern behind "@" ("pcie.link@*0000:9b:00.0*").
    """
    evidence = NodeEvidence(probes, results)
    required = [str(name) for name in profile.get("required_checks", [])]
    findings = []
    for check in checks:
        reason = next((text for name, text in skip.items() if "@" not in name and matches(check.id, name)), None)
        if reason is not None:
            found = [Finding("node", "skipped", f"skipped: {reason}")]
        else:
            found = [_skip_component(check.id, finding, skip) for finding in _run(check, evidence, profile)]
        is_required = any(matches(check.id, name) for name in required)
        findings += [_required(finding) if is_required else finding for finding in found]
        findings[-len(found) :] = [finding._replace(check=check.id) for finding in findings[-len(found) :]]
    return findings


def _skip_component(check: str, finding: Finding, skip: Mapping[str, str]) -> Finding:
    for name, reason in skip.items():
        chosen, at, pattern = name.partition("@")
        if at and matches(check, chosen) and fnmatch.fnmatchcase(finding.component, pattern):
            observed = f"skipped: {reason} ({finding.status}: {finding.observed})"
            return finding._replace(status="skipped", observed=observed, action="none", advice="")
    return finding


def _required(finding: Finding) -> Finding:
    """A required check that was not assessed has shown nothing: unknown."""
    if finding.status != "skipped":
        return finding
    return finding._replace(
        status="unknown",
        expected="an assessment, since the profile requires this check (required_checks)",
        advice="remove the reason for the skip, or the check from required_checks in the profile",
    )


def _run(check: Check, evidence: NodeEvidence, profile: Profile) -> list[Finding]:
    found: list[Finding] = []
    try:
        for finding in check.function(evidence.only(check.reads), profile):
            found.append(_checked(finding))
    except NoEvidence as error:
        found.append(unknown("node", error))
    except Exception:  # one faulty check must not hide what the others found
        import traceback

        last = traceback.format_exc().strip().splitlines()
        found.append(
            Finding(
                "node",
                "unknown",
                f"the check itself failed: {last[-1]}",
                action="none",
                advice="this is a fault of gpufleet: report it with a capture of the node (node-health capture)",
                evidence=tuple(Evidence(probe) for probe in check.reads) + (Evidence("", " | ".join(last[-5:-1])),),
            )
        )
    return found or [Finding("node", "unknown", "the check said nothing, which is a fault of gpufleet")]


def unknown(component: str, error: NoEvidence, expected: str = "") -> Finding:
    """The finding of a component about which a probe says nothing usable."""
    return Finding(
        component,
        "unknown",
        str(error),
        expected,
        advice=READ_ERROR_ADVICE,
        evidence=(Evidence(error.probe),),
    )


def _checked(finding: Finding) -> Finding:
    """The finding with short excerpts; an `ok` that names no evidence is none."""
    if finding.status == "ok" and not finding.evidence:
        return finding._replace(status="unknown", observed=f"the check names no evidence for: {finding.observed}")
    evidence = tuple(item._replace(excerpt=item.excerpt[:EXCERPT_CHARACTERS]) for item in finding.evidence)
    return finding._replace(evidence=evidence)
