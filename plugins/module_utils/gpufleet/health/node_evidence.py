# SPDX-License-Identifier: Apache-2.0
"""All that the probes brought, parsed when a check asks for it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from .probe import NoEvidence, ParseError, Probe, ProbeResult


class NodeEvidence:
    """Results by probe id. Parsed once each; a check sees only the probes that it declares."""

    def __init__(self, probes: Iterable[Probe], results: Mapping[str, ProbeResult]) -> None:
        self._probes = {probe.id: probe for probe in probes}
        self._results = results
        self._parsed: dict[str, Any] = {}

    def raw(self, probe: str) -> ProbeResult:
        """The result as it came; `missing` where the probe was not run. Raises KeyError for an unknown probe."""
        known = self._probes[probe]
        nothing = ProbeResult(known.id, "missing", None, "", "", 0.0, 0.0, False, "is not in the capture")
        return self._results.get(probe, nothing)

    def facts(self, probe: str) -> Any:
        """What the probe's parser makes of it. Raises NoEvidence where there is nothing to rely on."""
        if probe not in self._parsed:
            self._parsed[probe] = self._parse(probe)
        facts = self._parsed[probe]
        if isinstance(facts, NoEvidence):
            raise NoEvidence(facts.probe, facts.reason)
        return facts

    def _parse(self, probe: str) -> Any:
        result = self.raw(probe)
        if result.outcome not in self._probes[probe].parses:
            return NoEvidence(probe, f"{self._probes[probe].title} {result.says()}")
        try:
            return self._probes[probe].parse(result)
        except ParseError as error:
            return NoEvidence(probe, str(error))

    def only(self, needs: Iterable[str]) -> NodeEvidence:
        """A view for one check: the same results and parsed facts, but no probe beside these."""
        view = NodeEvidence([self._probes[probe] for probe in needs], self._results)
        view._parsed = self._parsed
        return view
