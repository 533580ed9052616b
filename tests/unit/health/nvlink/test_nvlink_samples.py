# SPDX-License-Identifier: Apache-2.0
"""nvlink -s and nvlink -e: samples from other machines, and what is left when lines are lost."""

from __future__ import annotations

import re

import pytest
from ansible.module_utils.gpufleet.health.nvlink_errors import errors_of_gpus
from ansible.module_utils.gpufleet.health.nvlink_status import nvlinks_of_gpus
from ansible.module_utils.gpufleet.health.probe import ParseError

STATUS = "nvidia_smi.nvlink_status"
ERRORS = "nvidia_smi.nvlink_errors"
QUERY = "nvidia_smi.query"
HEALTHY = "550.163.01-h100-healthy"
CHECKS = ("nvlink.links", "nvlink.speed", "nvlink.errors")


def in_place_of(text, results, numbers):
    """nvlink -s of the H100 recording, in which the text's GPUs stand at these numbers under the recording's UUIDs."""
    blocks = {int(block.split(":")[0]): block for block in re.split(r"(?m)^GPU ", results[STATUS].stdout)[1:]}
    for block in re.split(r"(?m)^GPU ", text)[1:]:
        number = numbers[int(block.split(":")[0])]
        uuid = re.search(r"UUID: (\S+)\)", blocks[number]).group(1)
        blocks[number] = f"{number}:" + re.sub(r"UUID: \S+\)", f"UUID: {uuid})", block.split(":", 1)[1])
    whole = "".join(f"GPU {block}" for block in blocks.values())
    return {**results, STATUS: results[STATUS]._replace(stdout=whole)}


@pytest.mark.parametrize(
    ("name", "answers"),
    [
        ("all-inactive-a100", [(6, "all inactive", 0)]),
        ("one-gpu-a100", [(7, "links", 12)]),
        ("mig-h100-590", [(0, "mig", 0)]),
        ("mig-h200-590", [(0, "mig", 0)]),
        ("h200-590", [(0, "links", 18)]),
        ("023-all-inactive-sentence", [(4, "all inactive", 0), (5, "links", 2)]),
        ("024-inactive-by-design", [(0, "links", 12)]),
    ],
)
def test_samples_are_read(fixture_text, name, answers):
    found = nvlinks_of_gpus(fixture_text(f"status/{name}.txt"))
    assert [(gpu.number, gpu.answer, len(gpu.active)) for gpu in found] == answers


@pytest.mark.parametrize("name", ["all-inactive-a100", "023-all-inactive-sentence"])
def test_the_sentence_fails_its_gpu_in_any_capitals_and_the_next_is_judged_too(
    recordings, judge, told, fixture_text, name
):
    text = fixture_text(f"status/{name}.txt")
    results = in_place_of(text, recordings[HEALTHY], {4: 4, 5: 6, 6: 6})
    found = judge(results, "nvlink.links")
    gpu = "GPU 4 (0000:8a:00.0)" if name.startswith("023") else "GPU 6 (0000:ca:00.0)"
    assert told(found)["nvlink.links", gpu] == "fail"
    if name.startswith("023"):
        # only two link lines of GPU 5 were kept in the report: lines that other GPUs have are missing, not links
        assert told(found)["nvlink.links", "GPU 6 (0000:ca:00.0)"] == "unknown"


def test_a_gpu_header_without_links_fails_that_gpu(recordings, judge, told):
    healthy = recordings[HEALTHY]
    header = next(line for line in healthy[STATUS].stdout.splitlines() if line.startswith("GPU 3:"))
    found = judge(in_place_of(header + "\n", healthy, {3: 3}), "nvlink.links")
    assert told(found) == {("nvlink.links", "GPU 3 (0000:4b:00.0)"): "fail"}


def test_links_that_are_inactive_by_design_are_named_and_healthy(recordings, judge, fixture_text, profile):
    profile["limits"]["gpu"]["nvlink_links"] = 12
    text = fixture_text("status/024-inactive-by-design.txt")
    results = recordings[HEALTHY]
    for number in range(8):
        results = in_place_of(text, results, {0: number})
    (finding,) = judge(results, "nvlink.links", by=profile)
    assert (finding.status, finding.observed) == (
        "ok",
        "8 GPUs: 12 active NVLinks each; 6 positions without a link by design",
    )
    # the same output where 18 are expected: the same six are down on all
    profile["limits"]["gpu"]["nvlink_links"] = 18
    (finding,) = judge(results, "nvlink.links", by=profile)
    assert (finding.component, finding.status) == ("node", "fail")


def test_mig_mode_gives_nothing_to_count(recordings, judge, fixture_text):
    """The sample's manifest says "count links": there are none to count, and MIG mode is a matter of gpu.mig."""
    results = in_place_of(fixture_text("status/mig-h100-590.txt"), recordings[HEALTHY], {0: 2})
    found = judge(results, "nvlink.links")
    assert [(finding.component, finding.status) for finding in found] == [
        ("GPU 2 (0000:4a:00.0)", "skipped"),
        ("node", "ok"),
    ]
    assert "7 GPUs" in found[1].observed


def test_more_links_than_expected_are_a_wrong_profile(recordings, judge, profile):
    profile["limits"]["gpu"]["nvlink_links"] = 12
    found = judge(recordings[HEALTHY], "nvlink.links", by=profile)
    assert {finding.status for finding in found} == {"warn"}
    assert len(found) == 8


def test_cards_without_bridges_where_none_are_expected(recordings, judge, profile):
    profile["limits"]["gpu"]["nvlink_links"] = 0
    found = judge(recordings["550.163.01-h100-all-nvlink-all-down"], *CHECKS, by=profile)
    assert [finding.status for finding in found] == ["skipped"] * 3


def test_h200_at_its_speed_and_slower(recordings, judge, fixture_text):
    text = fixture_text("status/h200-590.txt")
    (finding,) = judge(in_place_of(text, recordings[HEALTHY], {0: 1}), "nvlink.speed")
    assert finding.status == "ok"
    slow = text.replace("Link 7: 26.562", "Link 7: 13.281")
    (finding,) = judge(in_place_of(slow, recordings[HEALTHY], {0: 1}), "nvlink.speed")
    assert (finding.component, finding.status, finding.action) == ("GPU 1 (0000:1b:00.0)", "warn", "reset_gpu")
    assert "link 7 at 13.281 GB/s" in finding.observed


def test_unequal_links_are_seen_where_nobody_knows_the_speed(recordings, judge):
    by = {"limits": {"gpu": {}}, "devices": {}}
    healthy = recordings["550.163.01-gb200-healthy"]
    slow = healthy[STATUS].stdout.replace("Link 3: 53.125", "Link 3: 26.562", 1)
    found = judge({**healthy, STATUS: healthy[STATUS]._replace(stdout=slow)}, "nvlink.speed", by=by)
    assert [finding.status for finding in found] == ["warn"]


@pytest.mark.parametrize("limit", [None, {"max_errors_per_link": 100}])
def test_a_storm_fails_above_the_limit_of_the_profile_only(recordings, judge, profile, limit):
    profile["limits"]["nvlink"] = limit
    (finding,) = judge(recordings["550.163.01-h100-gpu6-nvlink-errors-all-links"], "nvlink.errors", by=profile)
    assert finding.status == ("fail" if limit else "warn")


def nvlink5(text, replaced=""):
    """nvlink -e of eight GPUs of the sample; replaced: GPU 3's counters."""
    body = text.split("\n", 1)[1]
    return "".join(
        f"GPU {number}: NVIDIA H100 80GB HBM3\n{replaced if number == 3 and replaced else body}" for number in range(8)
    )


def judge_nvlink5(recordings, judge, text):
    healthy = recordings[HEALTHY]
    return judge({**healthy, ERRORS: healthy[ERRORS]._replace(stdout=text)}, "nvlink.errors")


def test_nvlink_5_counters_of_a_healthy_node(recordings, judge, fixture_text):
    (finding,) = judge_nvlink5(recordings, judge, nvlink5(fixture_text("errors/b300-595.txt")))
    assert (finding.status, finding.observed[:9]) == ("ok", "144 NVLin")


@pytest.mark.parametrize(
    ("before", "after", "status", "observed"),
    [
        ("Link 4: Symbol Errors: 0", "Link 4: Symbol Errors: 3", "warn", "link 4: Symbol Errors 3"),
        ("Link 4: Rx Errors: 0", "Link 4: Rx Errors: 101", "fail", "link 4: Rx Errors 101"),
        ("Link 9: Link recovery failed events: 0", "Link 9: Link recovery failed events: 1", "fail", "link 9"),
        ("Link 4: Effective BER: 15e-255", "Link 4: Effective BER: 12e-10", "warn", "Effective BER 12e-10"),
        ("Link 4: Effective BER: 15e-255", "Link 4: Effective BER: N/A", "unknown", "Effective BER of link 4 is 'N/A'"),
        ("Link 4: Rx Errors: 0", "Link 4: Rx Errors: ???", "unknown", "Rx Errors of link 4 is '???'"),
    ],
)
def test_nvlink_5_counters_that_are_not_healthy(recordings, judge, fixture_text, before, after, status, observed):
    text = fixture_text("errors/b300-595.txt")
    assert before + "\n" in text
    broken = text.replace(before + "\n", after + "\n").split("\n", 1)[1]
    (finding,) = judge_nvlink5(recordings, judge, nvlink5(text, broken))
    assert (finding.component, finding.status) == ("GPU 3 (0000:4b:00.0)", status)
    assert observed in finding.observed


def test_counters_that_no_link_has_are_no_gap(recordings, judge, fixture_text):
    text = re.sub(r"(Symbol Errors|Symbol BER): \S+", r"\1: N/A", nvlink5(fixture_text("errors/b300-595.txt")))
    (finding,) = judge_nvlink5(recordings, judge, text)
    assert finding.status == "ok"
    garbled = text.replace("Symbol Errors: N/A", "Symbol Errors: ###")
    assert {finding.status for finding in judge_nvlink5(recordings, judge, garbled)} == {"unknown"}


def test_gb300_prints_no_uuid(fixture_text):
    (gpu,) = errors_of_gpus(fixture_text("errors/gb300-ok.txt"))
    assert (gpu.name, gpu.uuid, len(gpu.links)) == ("NVIDIA GB300", "", 1)
    assert [counter.value for counter in gpu.links[0].counters] == [0, 0, 0]


def test_counters_of_an_active_link_must_be_there(recordings, judge, told):
    healthy = recordings[HEALTHY]
    without = re.sub(r"(?m)^\t Link 17: .*\n", "", healthy[ERRORS].stdout)
    found = judge({**healthy, ERRORS: healthy[ERRORS]._replace(stdout=without)}, "nvlink.errors")
    assert len(told(found)) == 8 and set(told(found).values()) == {"unknown"}
    assert all(ERRORS in finding.observed for finding in found)


@pytest.mark.parametrize(
    "text",
    [
        "Failed to initialize NVML: GPU is lost\n",
        "\t Link 0: 26.562 GB/s\n",
        "GPU 0: X (UUID: GPU-1)\nGPU 0: X (UUID: GPU-1)\n",
        "GPU 0: X (UUID: GPU-1)\n\t Link 1: 26.562 GB/s\n\t Link 0: 26.562 GB/s\n",
        "GPU 0: X (UUID: GPU-1)\n\t Link 0: 26.5\n",
        "GPU 0: X (UUID: GPU-1)\n\t Link 0: Replay Errors: 0\n",
        "GPU 0: X (UUID: GPU-1)\n\t Link 0: 25 GB/s\nNVML: Unable to say more as all links are inActive\n",
    ],
)
def test_garbled_status_is_refused(text):
    with pytest.raises(ParseError):
        nvlinks_of_gpus(text)


@pytest.mark.parametrize(
    "text",
    [
        "Failed to initialize NVML: GPU is lost\n",
        "\t Link 0: CRC Errors: 0\n",
        "GPU 0: X (UUID: GPU-1)\nGPU 0: X (UUID: GPU-1)\n",
        "GPU 0: X (UUID: GPU-1)\n\t Link 0: 26.562 GB/s\n",
        "GPU 0: X (UUID: GPU-1)\n\t Link 0: Replay Errors: 0\n\t Link 0: CRC Errors: 0\n",
        "GPU 0: X\n\t Link 0: Rx Errors: 0\n\t Link 0: Rx Errors: 0\n",
        "GPU 0: X\n\t Link 1: Rx Errors: 0\n\t Link 0: Rx Errors: 0\n",
        "GPU 0: X\n\t Link 0: Rx Errors: 0\n\t Link 0: Tx discards: 0\n\t Link 1: Rx Errors: 0\n",
    ],
)
def test_garbled_errors_are_refused(text):
    with pytest.raises(ParseError):
        errors_of_gpus(text)


def without_line(text, number):
    lines = text.splitlines(keepends=True)
    return "".join(lines[:number] + lines[number + 1 :])


def cut_at(text, number):
    return "".join(text.splitlines(keepends=True)[:number])


@pytest.mark.parametrize("remove", [without_line, cut_at])
@pytest.mark.parametrize(("probe", "checks"), [(STATUS, CHECKS), (ERRORS, ("nvlink.errors",))])
def test_no_lost_line_passes(recordings, judge, probe, checks, remove):
    healthy = recordings[HEALTHY]
    whole = healthy[probe].stdout
    lines = whole.splitlines()
    for number, line in enumerate(lines):
        # an empty line carries nothing, neither alone nor as the last of the output
        if not line.strip() or (remove is cut_at and not "".join(lines[number:]).strip()):
            continue
        found = judge({**healthy, probe: healthy[probe]._replace(stdout=remove(whole, number))}, *checks)
        for check in checks:
            statuses = {finding.status for finding in found if finding.check == check}
            assert statuses & {"unknown", "fail"}, (number, line, found)
            assert not statuses & {"ok", "skipped"}, (number, line, found)


def test_the_names_of_other_gpus_are_refused(recordings, judge):
    healthy = recordings[HEALTHY]
    other = healthy[STATUS].stdout.replace("000000000003)", "000000000009)")
    (finding,) = judge({**healthy, STATUS: healthy[STATUS]._replace(stdout=other)}, "nvlink.links")
    assert finding.status == "unknown"
    more = healthy[STATUS].stdout + "GPU 8: NVIDIA H100 80GB HBM3 (UUID: GPU-01000100-0000-0000-0000-000000000008)\n"
    (finding,) = judge({**healthy, STATUS: healthy[STATUS]._replace(stdout=more)}, "nvlink.links")
    assert finding.status == "unknown"
