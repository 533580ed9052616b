# SPDX-License-Identifier: Apache-2.0
"""The tables of probes and checks are sound, and docs/health-checks.md lists them as they are."""

import re

import pytest
from ansible.module_utils.gpufleet.health.check import Check
from ansible.module_utils.gpufleet.health.comparison_facts import COMPARED
from ansible.module_utils.gpufleet.health.registry import CHECKS, PROBES

from tools.write_check_list import DOCUMENT, rewritten

PROBE_IDS = {probe.id for probe in PROBES}


def test_the_document_is_as_the_code_has_it() -> None:
    text = DOCUMENT.read_text()
    assert text == rewritten(text), "run: make docs"


def test_ids_are_unique_and_fit_a_capture() -> None:
    assert len(PROBE_IDS) == len(PROBES) and len({check.id for check in CHECKS}) == len(CHECKS)
    assert all(re.fullmatch(r"[a-z0-9_]+(\.[a-z0-9_]+)*", item.id) for item in (*PROBES, *CHECKS))


def test_each_probe_has_one_source_and_is_read() -> None:
    read = {probe for check in CHECKS for probe in check.reads} | COMPARED
    for probe in PROBES:
        assert bool(probe.argv) != bool(probe.paths), probe.id
        assert probe.id in read, f"nothing reads {probe.id}"


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.id)
def test_each_check_is_documented_and_reads_probes_that_exist(check: Check) -> None:
    assert set(check.reads) <= PROBE_IDS and check.needs
    paragraphs = check.documentation.split("\n\n")
    assert paragraphs[0].endswith("."), "the first paragraph says in sentences what it protects against"
    assert any(part.startswith("Source:") for part in paragraphs), "and one where the rule comes from"
