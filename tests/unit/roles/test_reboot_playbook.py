# SPDX-License-Identifier: Apache-2.0
"""playbooks/reboot.yml cannot read a role's defaults in its keyword serial, so it repeats one: keep them equal."""

from pathlib import Path

import yaml
from jinja2 import Environment

REPOSITORY = Path(__file__).resolve().parents[3]


def test_the_batches_of_the_playbook_are_the_roles_default():
    serve = yaml.safe_load((REPOSITORY / "playbooks" / "reboot.yml").read_text())[-1]
    default = yaml.safe_load((REPOSITORY / "roles" / "reboot" / "defaults" / "main.yml").read_text())["reboot_batch"]
    serial = Environment().compile_expression(serve["serial"].strip().removeprefix("{{").removesuffix("}}"))
    assert serial(groups={}, hostvars={"localhost": {}}) == default
    waiting = {"groups": {"gpufleet_reboot_pending": ["b", "a"]}, "hostvars": {"b": {"reboot_batch": [3]}, "a": {}}}
    assert serial(**waiting) == [3]
    assert serve["any_errors_fatal"] is True
