# SPDX-License-Identifier: Apache-2.0
"""Take nodes out of service and give them back, by whatever does that here: nothing, Slurm, or a command.

The modules act once; what waits for jobs is here, on the controller, so that a run that ends leaves nothing behind that
still acts.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from .campaign_history import MARK
from .screen_text import duration

# A module by its name with its arguments; returns its result. Raises DrainError where it failed.
RunModule = Callable[[str, dict[str, Any]], dict[str, Any]]

PROVIDERS = ("none", "slurm", "command")
# Seconds between two lines that say whom everybody waits for.
SAY_EVERY_S = 60.0


class DrainError(Exception):
    """Nothing is known of any node; next_step says what to do."""

    def __init__(self, message: str, next_step: str) -> None:
        super().__init__(message)
        self.next_step = next_step


@dataclass(frozen=True)
class DrainSettings:
    """Variables of role drain. Times in seconds."""

    provider: str
    timeout_s: float
    poll_s: float
    release_timeout_s: float
    command: Sequence[str] = ()
    release_command: Sequence[str] = ()
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass
class DrainOutcome:
    """Names as in the inventory. done: out of service and free of jobs (or back in service). left: somebody else's.
    refused: could not be freed, or not given back. acted_on: what this call altered. before: states of nodes before it,
    where the provider can tell.
    """

    done: list[str] = field(default_factory=list)
    left: dict[str, str] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)
    acted_on: list[str] = field(default_factory=list)
    before: dict[str, str] = field(default_factory=dict)


class Drain:
    """One provider, for nodes that may have other names there: `names` is {name in the inventory: name there}."""

    def __init__(
        self,
        settings: DrainSettings,
        names: Mapping[str, str],
        run_module: RunModule,
        say: Callable[[str], None] = lambda line: None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._settings = settings
        self._names = names
        self._run = run_module
        self._say = say
        self._clock = clock
        self._sleep = sleep

    # -- reading ------------------------------------------------------------------------------

    def owners(self, nodes: Sequence[str], marks: Sequence[str]) -> dict[str, tuple[str, str]]:
        """{node: (ours, other or free; the reason)}; empty where the provider cannot tell."""
        if self._settings.provider != "slurm" or not nodes:
            return {}
        found = self._look(nodes, marks)
        return {node: (str(state["owner"]), _words(state)) for node, state in found.items()}

    def _states(self, found: Mapping[str, Any], nodes: Sequence[str]) -> dict[str, Any]:
        """{node: its state}, from the names that Slurm has."""
        return {node: found[self._names[node]] for node in nodes}

    def _call_slurm(self, arguments: dict[str, Any], nodes: Sequence[str], marks: Sequence[str]) -> dict[str, Any]:
        """Result of the module. Nodes that Slurm does not know are an error of the inventory."""
        wanted = {**arguments, "nodes": [self._names[node] for node in nodes], "marks": list(marks)}
        result = self._run("drain_slurm", wanted)
        if result["unknown"]:
            raise DrainError(
                f"Slurm does not know {', '.join(result['unknown'][:10])}",
                "set drain_node_name to the node's name in Slurm, or leave these nodes out with --limit",
            )
        return result

    # -- draining -----------------------------------------------------------------------------

    def drain(self, nodes: Sequence[str], campaign: str, marks: Sequence[str], *, check: bool = False) -> DrainOutcome:
        """Take nodes out of service and wait until nothing runs there, for timeout_s at most. Never ends a job."""
        if not nodes or self._settings.provider == "none":
            return DrainOutcome(done=list(nodes))
        if self._settings.provider == "command":
            return self._command(self._settings.command, nodes, campaign, self._settings.timeout_s)
        reason = MARK + campaign
        result = self._call_slurm({"state": "drained", "reason": reason}, nodes, [*marks, reason])
        outcome = self._outcome(result, nodes)
        if check:
            outcome.done = list(nodes)
            return outcome
        self._wait(nodes, [*marks, reason], self._states(result["nodes"], nodes), outcome)
        return outcome

    def _outcome(self, result: Mapping[str, Any], nodes: Sequence[str]) -> DrainOutcome:
        before = self._states(result["before"], nodes)
        return DrainOutcome(
            acted_on=[node for node in nodes if self._names[node] in result["acted_on"]],
            before={node: _words(state) for node, state in before.items()},
        )

    def _wait(
        self, nodes: Sequence[str], marks: Sequence[str], found: Mapping[str, Any], outcome: DrainOutcome
    ) -> None:
        """Sort nodes into done, left and refused as their jobs end; `found` is the first look at them."""
        began = self._clock()
        waiting, next_line = list(nodes), began + SAY_EVERY_S
        while waiting:
            for node in list(waiting):
                state = found[node]
                if state["owner"] == "other":
                    outcome.left[node] = _words(state)
                elif state["owner"] == "free":
                    outcome.left[node] = "somebody resumed it while it was being drained"
                elif state["busy"]:
                    continue
                else:
                    outcome.done.append(node)
                waiting.remove(node)
            if not waiting:
                break
            passed = self._clock() - began
            if passed >= self._settings.timeout_s:
                jobs = self._jobs(waiting, marks)
                limit = duration(self._settings.timeout_s)
                outcome.refused.update({node: f"not free within {limit}: {jobs[node]}" for node in waiting})
                break
            if self._clock() >= next_line:
                next_line += SAY_EVERY_S
                left = duration(self._settings.timeout_s - passed)
                self._say(f"  waiting for jobs to end on {', '.join(waiting[:8])} ({len(waiting)} nodes, {left} left)")
            self._sleep(min(self._settings.poll_s, max(self._settings.timeout_s - passed, 0.1)))
            found = self._look(waiting, marks)
        # in the order of the batch, not of the jobs' ends
        outcome.done.sort(key=list(nodes).index)

    def _look(self, nodes: Sequence[str], marks: Sequence[str]) -> dict[str, Any]:
        return self._states(self._call_slurm({"state": "present"}, nodes, marks)["nodes"], nodes)

    def _jobs(self, nodes: Sequence[str], marks: Sequence[str]) -> dict[str, str]:
        """What still runs on each node, as a person reads it."""
        listed = self._call_slurm({"state": "present", "jobs": True}, nodes, marks)["jobs"]
        words = ", ".join(f"job {job['id']} of {job['user']} on {job['nodes']}" for job in listed[:5])
        return {node: words or "Slurm says that it is busy" for node in nodes}

    # -- giving back --------------------------------------------------------------------------

    def release(
        self, nodes: Sequence[str], campaign: str, marks: Sequence[str], *, check: bool = False
    ) -> DrainOutcome:
        """Give nodes back that we took. In Slurm, wait until they are in service, for release_timeout_s at most."""
        settings = self._settings
        if not nodes or settings.provider == "none":
            return DrainOutcome(done=list(nodes))
        if settings.provider == "command":
            return self._command(settings.release_command, nodes, campaign, settings.release_timeout_s)
        result = self._call_slurm({"state": "released"}, nodes, marks)
        outcome = self._outcome(result, nodes)
        if check:
            outcome.done = list(nodes)
            return outcome
        began = self._clock()
        waiting, found = list(nodes), self._states(result["nodes"], nodes)
        while True:
            for node in list(waiting):
                state = found[node]
                if state["in_service"]:
                    outcome.done.append(node)
                elif state["owner"] == "other" and node not in outcome.acted_on:
                    outcome.left[node] = _words(state)
                else:
                    continue
                waiting.remove(node)
            if not waiting or self._clock() - began >= settings.release_timeout_s:
                break
            self._sleep(min(settings.poll_s, 5.0))
            found = self._look(waiting, marks)
        for node in waiting:
            states = "+".join(found[node]["states"])
            outcome.refused[node] = f"Slurm still says {states}{_because(found[node])}: does slurmd run there?"
        outcome.done.sort(key=list(nodes).index)
        return outcome

    def _command(self, argv: Sequence[str], nodes: Sequence[str], campaign: str, timeout_s: float) -> DrainOutcome:
        """One call for all nodes; what it says of single ones counts."""
        back = {name: node for node, name in self._names.items() if node in nodes}
        result = self._run(
            "drain_command",
            {
                "argv": list(argv),
                "nodes": [self._names[node] for node in nodes],
                "campaign": campaign,
                "environment": dict(self._settings.environment),
                "timeout_s": timeout_s,
            },
        )
        left = {back[name]: why for name, why in result["left"].items()}
        refused = {back[name]: why for name, why in result["refused"].items()}
        done = [node for node in nodes if node not in left and node not in refused]
        return DrainOutcome(done, left, refused, acted_on=done)


def _because(state: Mapping[str, Any]) -> str:
    by = f" by {state['reason_by']}" if state["reason_by"] else ""
    return f" ({state['reason']}{by})" if state["reason"] else ""


def _words(state: Mapping[str, Any]) -> str:
    """The state of a node, as a person reads it."""
    return "Slurm says " + "+".join(state["states"]) + _because(state)
