# SPDX-License-Identifier: Apache-2.0
"""A check: from the facts of its probes and the profile to findings."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from .finding import Finding
from .node_evidence import NodeEvidence

Profile = Mapping[str, Any]


class Check(NamedTuple):
    """id: stable, dotted, such as gpu.ecc. needs: the probes without whose answer it cannot pass.

    also: probes that it reads where they answered, such as a second witness; without them it may still pass. It can
    read no others.

    The function's docstring is the documentation: what it protects against, then "Source:" and where that comes from.
    It yields one finding for each component that is not as it should be, or one `ok` finding that says what was seen.
    It yields `skipped` with the reason where the profile or the hardware gives nothing to judge. It lets NoEvidence
    pass (the engine makes `unknown` of it), or catches it for one component and goes on with the others.
    """

    id: str
    function: Callable[[NodeEvidence, Profile], Iterable[Finding]]
    needs: tuple[str, ...]
    also: tuple[str, ...] = ()

    @property
    def reads(self) -> tuple[str, ...]:
        """All probes that the function may ask for."""
        return self.needs + self.also

    @property
    def documentation(self) -> str:
        """The function's docstring, without the indentation of the code."""
        lines = (self.function.__doc__ or "").strip().splitlines()
        return "\n".join(line.strip() for line in lines)
