# SPDX-License-Identifier: Apache-2.0
"""Action plugin: take the nodes of a batch out of service, or give them back, in one task for all of them.

It runs where the modules drain_slurm and drain_command can act (delegate_to), once for the batch. With a journal it
writes down what it is about to do before it does it. What is judged, and how, is in
plugins/module_utils/gpufleet_controller/campaign_drain.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ansible.module_utils
from ansible.errors import AnsibleConnectionFailure
from ansible.plugins.action import ActionBase

_OWN = str(Path(__file__).resolve().parents[1] / "module_utils")
if _OWN not in ansible.module_utils.__path__:
    ansible.module_utils.__path__.append(_OWN)
from ansible.module_utils.gpufleet_controller import campaign_journal as steps
from ansible.module_utils.gpufleet_controller.campaign_drain import (
    PROVIDERS,
    Drain,
    DrainError,
    DrainOutcome,
    DrainSettings,
)
from ansible.module_utils.gpufleet_controller.campaign_history import MARK, History
from ansible.module_utils.gpufleet_controller.campaign_lock import CampaignHeldError
from ansible.module_utils.gpufleet_controller.campaign_state import CampaignState

# Nodes that make the run fail in the end, though no task failed on them (playbooks/upgrade.yml).
UNFINISHED_GROUP = "gpufleet_not_drained"

_ARGUMENTS: dict[str, Any] = {
    "state": {"type": "str", "choices": ["present", "drained", "released"], "required": True},
    "nodes": {"type": "list", "elements": "str", "required": True},
    "campaign": {"type": "str", "required": True},
    "journal": {"type": "path"},
    "provider": {"type": "str", "choices": list(PROVIDERS), "default": "none"},
    "command": {"type": "list", "elements": "str", "default": []},
    "release_command": {"type": "list", "elements": "str", "default": []},
    "environment": {"type": "dict", "default": {}},
    "timeout_s": {"type": "float", "default": 14400},
    "release_timeout_s": {"type": "float", "default": 120},
    "poll_s": {"type": "float", "default": 15},
}


class ActionModule(ActionBase):
    """Arguments: see _ARGUMENTS; variable drain_node_name of each host says its name at the provider."""

    TRANSFERS_FILES = False
    BYPASS_HOST_LOOP = True

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Fails where nothing is known of any node; what is known of single nodes is in done, left and refused."""
        self._supports_check_mode = True
        result: dict[str, Any] = super().run(tmp, task_vars)
        self._vars = task_vars or {}
        _result, arguments = self.validate_argument_spec(_ARGUMENTS)
        result.update(changed=False, gpufleet={"on_controller": True})
        try:
            result.update(self._act(arguments))
        except (DrainError, CampaignHeldError, OSError) as error:
            step = getattr(error, "next_step", "run the playbook again; it goes on with what is really there")
            if arguments["state"] == "drained":
                step += ". Nodes of the batch that are drained by now stay so until the next run, which knows them"
            result.update(failed=True, msg=str(error), next_step=step)
        return result

    def _act(self, wanted: dict[str, Any]) -> dict[str, Any]:
        hostvars = self._vars["hostvars"]
        names = {node: str(self._name(hostvars, node)) for node in wanted["nodes"]}
        settings = DrainSettings(
            wanted["provider"],
            wanted["timeout_s"],
            wanted["poll_s"],
            wanted["release_timeout_s"],
            wanted["command"],
            wanted["release_command"],
            wanted["environment"],
        )
        check = bool(self._task.check_mode)
        journal = (
            CampaignState(wanted["journal"], self._vars["ansible_inventory_sources"]) if wanted["journal"] else None
        )
        self._still_ours = journal.lock.check if journal and not check else lambda: None
        history = journal.history()[0] if journal else History()
        marks = list(dict.fromkeys([*history.marks(), MARK + wanted["campaign"]]))
        drain = Drain(settings, names, self._run_module, self._display.display)
        if wanted["state"] == "present":
            owners = drain.owners(wanted["nodes"], marks)
            return {"owners": {node: list(found) for node, found in owners.items()}}
        if not wanted["nodes"]:
            return self._result(DrainOutcome(), wanted)
        if journal is None or check:
            act = drain.drain if wanted["state"] == "drained" else drain.release
            return self._result(act(wanted["nodes"], wanted["campaign"], marks, check=check), wanted)
        return self._journaled(wanted, drain, journal, history, marks)

    def _journaled(
        self, wanted: dict[str, Any], drain: Drain, state: CampaignState, history: History, marks: list[str]
    ) -> dict[str, Any]:
        """The same between two records."""
        nodes, campaign, provider = wanted["nodes"], wanted["campaign"], wanted["provider"]
        outcomes = state.outcomes()
        place = {"batch": outcomes[-1].number if outcomes else 0, "provider": provider}
        draining = wanted["state"] == "drained"
        begin, end = (steps.DRAINING, steps.DRAINED) if draining else (steps.RELEASING, steps.RELEASED)
        why = "before the upgrade" if draining else "right and healthy after the upgrade"
        # Nodes that another provider took would stay out of service for ever.
        foreign = [node for node in nodes if node in history.kept and history.kept[node].provider != provider]
        if foreign:
            was = history.kept[foreign[0]].provider
            raise DrainError(
                f"{', '.join(foreign[:8])}: taken out of service by {was}, and drain_provider is {provider} now",
                f"set drain_provider to {was} until the campaign is done",
            )
        state.append(begin, campaign, why, nodes=nodes, **place)
        act = drain.drain if draining else drain.release
        outcome = act(nodes, campaign, marks)
        told = {"left": outcome.left, "refused": outcome.refused, "acted_on": outcome.acted_on}
        did = "nothing to do" if provider == "none" else "out of service" if draining else "in service"
        after = dict.fromkeys(outcome.done, did)
        state.append(end, campaign, why, nodes=outcome.done, before=outcome.before, after=after, **told, **place)
        return self._result(outcome, wanted)

    def _result(self, outcome: DrainOutcome, wanted: dict[str, Any]) -> dict[str, Any]:
        draining = wanted["state"] == "drained"
        notes: dict[str, Any] = {}
        for node, why in outcome.left.items():
            did = "left alone, not upgraded" if draining else "not given back"
            notes[node] = _note(f"somebody else keeps it from jobs: {why}; {did}", "warn", "ask who did it")
        for node, why in outcome.refused.items():
            if draining:
                step = "it stays drained, so run the same command again once its jobs have ended"
                notes[node] = _note(f"could not be freed: {why}", "fail", step)
            else:
                step = "look at the node and its state at the scheduler; give it back by hand"
                notes[node] = _note(f"is right and healthy, but is not back in service: {why}", "fail", step)
            self.add_host(node, parent_group_names=[UNFINISHED_GROUP])
        return {
            "changed": bool(outcome.acted_on),
            "done": outcome.done,
            "left": outcome.left,
            "refused": outcome.refused,
            "gpufleet": {"on_controller": True, "nodes": notes},
        }

    def _name(self, hostvars: Mapping[str, Any], node: str) -> Any:
        """The node's name at the provider."""
        return hostvars[node].get("drain_node_name") or node

    def _run_module(self, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
        """A module on the host that the task is delegated to; raises DrainError."""
        where = self._task.delegate_to or "the node"
        self._still_ours()
        try:
            outcome: dict[str, Any] = self._execute_module(name, arguments, task_vars=self._vars)
        except AnsibleConnectionFailure as error:
            raise DrainError(
                f"{where}, where nodes are drained, cannot be reached: {error}", "mend the connection, or drain_host"
            ) from error
        if outcome.get("failed") or outcome.get("unreachable"):
            said = str(outcome.get("msg") or outcome.get("module_stderr") or "no message").strip()
            step = str(outcome.get("next_step") or "mend the cause, then run again")
            raise DrainError(f"on {where}: {said}", step)
        return outcome


def _note(reason: str, severity: str, next_step: str) -> dict[str, Any]:
    return {"attention": [{"reason": reason, "next_step": next_step, "severity": severity}]}
