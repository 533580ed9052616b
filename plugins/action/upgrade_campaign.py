# SPDX-License-Identifier: Apache-2.0
"""Action plugin: the steps of an upgrade campaign that concern the fleet and not a node, one task for all of them.

It runs on the controller only; plugins/module_utils/gpufleet_controller/campaign_*.py has batches, history and journal.
Steps, in the order of playbooks/upgrade.yml:

``open``   take the campaign for this run; what the journal says
``plan``   which nodes, from what to what, in which batches; printed and saved
``begin``  a batch: refused where the batch before it cost more nodes than allowed
``ran``    note that the roles have run on a batch
``judge``  which nodes of the batch are right and healthy
``end``    note how the batch went; after the last one that the campaign is done
"""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import ansible.module_utils
from ansible.plugins.action import ActionBase

_OWN = str(Path(__file__).resolve().parents[1] / "module_utils")
if _OWN not in ansible.module_utils.__path__:
    ansible.module_utils.__path__.append(_OWN)
from ansible.module_utils.gpufleet_controller import campaign_journal as steps
from ansible.module_utils.gpufleet_controller.campaign_history import MARK, BatchOutcome, History, Kept
from ansible.module_utils.gpufleet_controller.campaign_lock import CampaignHeldError
from ansible.module_utils.gpufleet_controller.campaign_plan import (
    ROLES,
    Caps,
    Plan,
    PlanError,
    groups_of_nodes,
    in_order,
    make_batches,
    plan_lines,
    roles_of,
)
from ansible.module_utils.gpufleet_controller.campaign_state import CampaignState
from ansible.module_utils.gpufleet_controller.node_names import short_names

GROUP = "gpu_nodes"
AGAIN = "run the same command again: it goes on with what is left"
STOPPED_NEXT = f"these nodes stay out of service, and no node of a later batch was touched; mend them, then {AGAIN}"

_ARGUMENTS: dict[str, Any] = {
    "step": {"type": "str", "choices": ["open", "plan", "begin", "ran", "judge", "end"], "required": True},
    "state_directory": {"type": "path", "required": True},
    "parts": {"type": "list", "elements": "str", "choices": list(ROLES), "default": []},
    "batch_groups": {"type": "str", "default": GROUP},
    "canary": {"type": "int", "default": 1},
    "batch_size": {"type": "int", "default": 32},
    "group_size": {"type": "int", "default": 32},
    "max_failed": {"type": "int", "default": 0},
    "provider": {"type": "str", "default": "none"},
    "owners": {"type": "dict", "default": {}},
    "campaign": {"type": "str", "default": ""},
    "batches": {"type": "int", "default": 0},
}


class ActionModule(ActionBase):
    """Arguments: see _ARGUMENTS. What nodes said is read from what role upgrade registered on them."""

    TRANSFERS_FILES = False
    BYPASS_HOST_LOOP = True
    _requires_connection = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Fails with what is wrong and what to do next."""
        self._supports_check_mode = True
        result: dict[str, Any] = super().run(tmp, task_vars)
        self._vars = task_vars or {}
        _result, self._wanted = self.validate_argument_spec(_ARGUMENTS)
        self._state = CampaignState(self._wanted["state_directory"], self._vars["ansible_inventory_sources"])
        self._check = bool(self._task.check_mode)
        result.update(changed=False, gpufleet={"on_controller": True})
        step: Callable[[], dict[str, Any]] = getattr(self, "_" + self._wanted["step"])
        try:
            result.update(step())
        except (PlanError, CampaignHeldError, OSError) as error:
            next_step = getattr(error, "next_step", "see the message, then run the same command again")
            result.update(failed=True, msg=str(error), next_step=next_step)
        return result

    # -- before the batches -------------------------------------------------------------------

    def _open(self) -> dict[str, Any]:
        if not self._wanted["parts"]:
            raise PlanError(
                "upgrade_parts names nothing to upgrade",
                f'name it: -e \'{{"upgrade_parts": ["driver"]}}\'; parts are {", ".join(ROLES)}',
            )
        if not self._check:
            playbook = str(self._vars.get("playbook_dir", ""))
            self._state.lock.acquire(
                f"upgrade of {', '.join(self._wanted['parts'])} ({playbook})", self._state.inventory
            )
        history, _broken = self._state.history()
        return {"unfinished": history.unfinished, "folder": str(self._state.folder)}

    def _plan(self) -> dict[str, Any]:
        wanted = self._wanted
        hostvars = self._vars["hostvars"]
        in_play = set(self._vars["ansible_play_hosts_all"])
        # In the order of the inventory, whatever order --limit has.
        nodes = [node for node in self._vars["groups"][GROUP] if node in in_play]
        measured = {node: hostvars[node]["__upgrade_before"] for node in nodes if "__upgrade_before" in hostvars[node]}
        measured = {node: found for node, found in measured.items() if "parts" in found}
        groups, wrong = groups_of_nodes(wanted["batch_groups"], self._vars["groups"], nodes)
        if wrong:
            node, its = next(iter(wrong.items()))
            raise PlanError(
                f"{len(wrong)} nodes are not in exactly one group that matches upgrade_batch_groups "
                f"{wanted['batch_groups']!r}: {short_names(wrong)}; {node} is in {', '.join(its) or 'none'}",
                "correct upgrade_batch_groups or the groups of the inventory",
            )
        history, broken = self._state.history()
        versions = {node: _versions(found) for node, found in measured.items()}
        target = _target(measured)
        campaign, new = self._campaign(history, target)
        plan = Plan(campaign, wanted["parts"], roles_of(wanted["parts"]), groups=groups)
        plan.not_measured = [node for node in nodes if node not in measured]
        let_go = self._sort(plan, history, measured)
        caps = Caps(wanted["canary"], wanted["batch_size"], wanted["group_size"])
        ahead = [node for node in measured if node not in plan.left and node not in plan.right]
        plan.batches = make_batches(in_order(ahead, groups, plan.begun), groups, caps)
        plan.versions = {node: versions[node] for node in plan.nodes}
        lines = plan_lines(plan, caps, wanted["provider"])
        if broken:
            lines.append(f"  the journal has {broken} lines that were cut short; nothing depends on them")
        if not self._check:
            path = self._write(plan, history, target, new, let_go)
            # as seen from the folder of the run, where it lies under it
            lines += [f"  plan: {path.removeprefix(os.getcwd() + os.sep)}"] if path else []
        notes = {
            node: _note(f"somebody else keeps it from jobs: {why}; left alone, not upgraded")
            for node, why in plan.left.items()
        }
        found = plan.as_dict()
        return {
            "msg": "\n".join(lines),
            "_ansible_verbose_always": True,
            **{key: found[key] for key in ("campaign", "roles", "nodes", "sizes")},
            "gpufleet": {"on_controller": True, "nodes": notes},
        }

    def _sort(self, plan: Plan, history: History, measured: dict[str, Any]) -> list[str]:
        """Fill in who is right, begun or somebody else's; returns whom the journal keeps and nobody does."""
        owners = self._wanted["owners"]
        let_go = []
        for node, found in measured.items():
            owner, why = owners.get(node, ("", ""))
            if owner in ("other", "free") and node in history.kept:
                let_go.append(node)
            if owner == "other":
                plan.left[node] = why
                continue
            if owner == "ours" or (not owner and node in history.kept):
                plan.begun.append(node)
            elif found["right"]:
                plan.right.append(node)
        plan.outside = [node for node in history.kept if node not in measured]
        return let_go

    def _campaign(self, history: History, target: dict[str, list[str]]) -> tuple[str, bool]:
        """The unfinished campaign where it has the same target, else a new one."""
        if history.unfinished and history.target == target:
            return history.unfinished, False
        name = f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}-{'-'.join(self._wanted['parts'])}"
        return name, True

    def _write(self, plan: Plan, history: History, target: dict[str, list[str]], new: bool, let_go: list[str]) -> str:
        """Journal and plan file; returns the file's path, empty where there is none: nothing to do is no campaign."""
        state, done = self._state, not plan.batches
        if new and not done:
            if history.unfinished:
                why = f"a campaign with another target begins: {plan.campaign}"
                state.append(steps.CAMPAIGN_SUPERSEDED, history.unfinished, why)
            why = f"wanted by the profile: {_words(target)}"
            state.append(steps.CAMPAIGN_STARTED, plan.campaign, why, after={"versions": target})
        if new and done:
            return ""
        path = state.save_plan(plan.as_dict())
        why = "begin" if new else "go on with what is left"
        before = {node: found for node, found in plan.versions.items()}
        state.append(steps.PLANNED, plan.campaign, why, nodes=plan.nodes, before=before, plan=str(path), let_go=let_go)
        if done and not plan.outside:
            state.append(
                steps.CAMPAIGN_COMPLETED, plan.campaign, "every node is right and in service, or somebody else's"
            )
        return str(path)

    # -- a batch ------------------------------------------------------------------------------

    def _begin(self) -> dict[str, Any]:
        nodes = list(self._vars["ansible_play_batch"])
        if self._check:
            return {"msg": f"would begin with {short_names(nodes)}"}
        outcomes = self._state.outcomes()
        self._brake(outcomes)
        number = len(outcomes) + 1
        self._state.append(
            steps.BATCH_STARTED, self._wanted["campaign"], f"batch {number} of {self._wanted['batches']}",
            nodes=nodes, batch=number,
        )  # fmt: skip
        return {"batch": number}

    def _brake(self, outcomes: list[BatchOutcome]) -> None:
        """Stop where the last batch cost more than allowed, whatever became of its run."""
        if not outcomes or len(outcomes[-1].failed) <= self._wanted["max_failed"]:
            return
        raise PlanError(self._stopped(outcomes[-1]), STOPPED_NEXT)

    def _stopped(self, last: BatchOutcome) -> str:
        """Says in a line that the campaign stops, and for whom."""
        return (
            f"stopped after batch {last.number} of {self._wanted['batches']}: {len(last.failed)} of {len(last.nodes)} "
            f"nodes failed, {self._wanted['max_failed']} may (upgrade_max_failed): {short_names(last.failed, 40)}"
        )

    def _ran(self) -> dict[str, Any]:
        if not self._check:
            last = self._state.outcomes()[-1]
            nodes = [node for node in last.nodes if node not in last.left and node not in last.refused]
            why = "the roles have run (judged says on which nodes one failed); now the reboots"
            self._state.append(steps.ROLES_RAN, self._wanted["campaign"], why, nodes=nodes, batch=last.number)
        return {}

    def _judge(self) -> dict[str, Any]:
        """Right by version and healthy: what role upgrade registered last on each node."""
        hostvars = self._vars["hostvars"]
        if self._check:
            return {"good": list(self._vars["ansible_play_batch"])}
        last = self._state.outcomes()[-1]
        good, failed, after = [], {}, {}
        for node in last.nodes:
            if node in last.left or node in last.refused:
                continue
            seen = hostvars[node]
            health = seen.get("__upgrade_health", {})
            now = seen.get("__upgrade_after", {})
            if "parts" in now:
                after[node] = {part: found["found"] for part, found in now["parts"].items()}
            if health.get("verdict") and not health.get("failed"):
                good.append(node)
            else:
                failed[node] = _why_failed(now, health)
        before = {
            node: {part: there for part, (there, _want) in _versions(hostvars[node]["__upgrade_before"]).items()}
            for node in after
        }
        self._state.append(
            steps.JUDGED, self._wanted["campaign"], "versions measured, health by the profile", nodes=good,
            before=before, after=after, failed=failed, batch=last.number,
        )  # fmt: skip
        kept = self._state.history()[0].kept
        step = f"mend it, then {AGAIN}"
        notes = {node: _note(_stays(kept.get(node), self._wanted["campaign"]), step) for node in failed}
        return {"good": good, "gpufleet": {"on_controller": True, "nodes": notes}}

    def _end(self) -> dict[str, Any]:
        if self._check:
            return {}
        last, campaign = self._state.outcomes()[-1], self._wanted["campaign"]
        why = f"{len(last.back)} back in service, {len(last.failed)} failed, {len(last.left)} left alone"
        self._state.append(steps.BATCH_ENDED, campaign, why, nodes=last.back, failed=last.failed, batch=last.number)
        history, _broken = self._state.history()
        failed = [node for outcome in self._state.outcomes() for node in outcome.failed]
        # Where all nodes of a batch failed, or none comes after it, no other batch begins that could tell.
        whole = len(last.failed) == len(last.nodes) and not last.refused
        if len(last.failed) > self._wanted["max_failed"] and (whole or last.number == self._wanted["batches"]):
            note = {"reason": self._stopped(last), "next_step": STOPPED_NEXT, "severity": "fail"}
            return {"msg": why, "gpufleet": {"on_controller": True, "attention": [note]}}
        if last.number < self._wanted["batches"]:
            return {"msg": why}
        if failed or history.kept:
            return {"msg": f"{why}; the campaign is not done: {short_names([*failed, *history.kept])}"}
        self._state.append(steps.CAMPAIGN_COMPLETED, campaign, "every node is right and in service, or somebody else's")
        return {"msg": f"{why}; campaign {campaign} is done", "_ansible_verbose_always": True}


def _versions(measured: dict[str, Any]) -> dict[str, list[str]]:
    """{part: [what is there, what is wanted]} of a node's measurement."""
    return {part: [found["found"], found["wanted"]] for part, found in measured["parts"].items()}


def _target(measured: dict[str, Any]) -> dict[str, list[str]]:
    """{part: the versions that the profiles of these nodes want}."""
    target: dict[str, set[str]] = {}
    for found in measured.values():
        for part, one in found["parts"].items():
            target.setdefault(part, set()).add(one["wanted"])
    return {part: sorted(wanted) for part, wanted in sorted(target.items())}


def _words(target: dict[str, list[str]]) -> str:
    return ", ".join(f"{part} {' or '.join(wanted)}" for part, wanted in target.items())


def _stays(kept: Kept | None, campaign: str) -> str:
    """What becomes of a node whose upgrade failed."""
    if kept is None or kept.provider == "none":
        return "its upgrade failed, and nothing keeps jobs from it (drain_provider is none)"
    how = f" (drained as {MARK}{campaign})" if kept.provider == "slurm" else ""
    return f"its upgrade failed, so it stays out of service{how}"


def _why_failed(now: dict[str, Any], health: dict[str, Any]) -> str:
    if health.get("verdict"):
        return f"the health check says {health['verdict']}"
    return str(now.get("msg") or "a role failed, or the node was lost: see the report")


def _note(reason: str, next_step: str = "ask who did it") -> dict[str, Any]:
    return {"attention": [{"reason": reason, "next_step": next_step, "severity": "warn"}]}
