# SPDX-License-Identifier: Apache-2.0
"""The exporter's list of metrics: faults, the file, names that a release does not know, and what a scrape says."""

import csv
import re
from typing import Any

import pytest
from ansible.module_utils.gpufleet.dcgm_metrics import (
    ScrapeError,
    known_fields,
    list_faults,
    missing_metrics,
    parse_scrape,
    reasons_in_log,
    render_csv,
    unknown_fields,
)

TEMPERATURE = {"field": "DCGM_FI_DEV_GPU_TEMP", "type": "gauge", "help": "Temperature (in C), of the GPU."}
XIDS = {"field": "DCGM_EXP_XID_ERRORS_COUNT", "type": "gauge", "help": 'Xids, "recent" ones'}
DRIVER = {"field": "DCGM_FI_DRIVER_VERSION", "type": "label", "help": "Driver"}
PROFILING = {"field": "DCGM_FI_PROF_SM_ACTIVE", "type": "gauge", "help": "SM"}


def test_the_file_is_what_gos_reader_takes() -> None:
    text = render_csv([TEMPERATURE, XIDS])
    rows = list(csv.reader((line for line in text.splitlines() if not line.startswith("#")), strict=True))
    assert rows == [[metric["field"], metric["type"], metric["help"]] for metric in (TEMPERATURE, XIDS)]
    lines = text.splitlines()[1:]
    assert all(re.match('[A-Z_]+,[a-z]+,"', line) for line in lines), "a quote after a blank ends Go's reader"


@pytest.mark.parametrize(
    ("metric", "said"),
    [
        ({**TEMPERATURE, "field": "GPU_TEMP"}, "'GPU_TEMP' cannot be a field"),
        ({**TEMPERATURE, "type": "gauges"}, "type is 'gauges', expected gauge, counter or label"),
        ({**TEMPERATURE, "help": ""}, "help is ''"),
        ({**TEMPERATURE, "help": "two\nlines"}, "one line of text"),
        ({**TEMPERATURE, "kind": "gauge"}, "unknown key kind"),
        ({**TEMPERATURE, "optional": "no"}, "optional is 'no'"),
        (PROFILING, "DCGM_FI_PROF_SM_ACTIVE is a profiling metric"),
        ({"type": "gauge"}, "None cannot be a field"),
    ],
)
def test_faults_of_an_entry(metric: dict[str, Any], said: str) -> None:
    assert any(said in fault for fault in list_faults([metric], False)), list_faults([metric], False)


def test_a_good_list_has_no_fault_and_a_double_has() -> None:
    assert list_faults([TEMPERATURE, XIDS, DRIVER, {**PROFILING, "optional": True}], True) == []
    assert list_faults([TEMPERATURE, TEMPERATURE], False) == ["DCGM_FI_DEV_GPU_TEMP is listed twice"]


def test_a_field_that_the_release_does_not_know_is_named_with_the_nearest() -> None:
    # Go keeps names of one length side by side, without anything between.
    program = b"\x00\x01DCGM_FI_DEV_GPU_TEMPDCGM_FI_DEV_GPU_UTILDCGM_EXP_XID_ERRORS_COUNT\xffother\x00"
    known = known_fields(program)
    assert unknown_fields(["DCGM_FI_DEV_GPU_TEMP", "DCGM_FI_DEV_GPU_UTIL", "DCGM_EXP_XID_ERRORS_COUNT"], known) == []
    assert unknown_fields(["DCGM_FI_DEV_GPU_TEMPS", "DCGM_FI_OTHER"], known) == [
        "DCGM_FI_DEV_GPU_TEMPS (did you mean DCGM_FI_DEV_GPU_TEMP?)",
        "DCGM_FI_OTHER",
    ]
    assert known_fields(b"\x7fELF") == b""


SCRAPE = """# HELP DCGM_FI_DEV_GPU_TEMP Temperature
# TYPE DCGM_FI_DEV_GPU_TEMP gauge
DCGM_FI_DEV_GPU_TEMP{gpu="0",UUID="GPU-1",modelName="NVIDIA H100 80GB HBM3",DCGM_FI_DRIVER_VERSION="580.105.08"} 34
DCGM_FI_DEV_GPU_TEMP{gpu="1",UUID="GPU-2"} 35.5
DCGM_EXP_XID_ERRORS_COUNT{gpu="0",xid="79",window_size_in_ms="300000"} 1
"""


def test_samples_are_counted_and_missing_ones_named() -> None:
    found = parse_scrape(SCRAPE)
    assert found.samples == {"DCGM_FI_DEV_GPU_TEMP": 2, "DCGM_EXP_XID_ERRORS_COUNT": 1} and found.blank == ()
    other = {"field": "DCGM_FI_DEV_GPU_UTIL", "type": "gauge", "help": "x"}
    assert missing_metrics([TEMPERATURE, XIDS, DRIVER, other], found.samples) == ["DCGM_FI_DEV_GPU_UTIL"]
    assert missing_metrics([{**other, "optional": True}], found.samples) == []
    assert parse_scrape("").samples == {}


@pytest.mark.parametrize("value", ["9223372036854775794", "9.223372036854776e+18", "2147483632"])
def test_bug_011_no_value_as_a_number_is_found(value: str) -> None:
    assert parse_scrape(f'DCGM_FI_DEV_MEMORY_TEMP{{gpu="0"}} {value}\n').blank == ("DCGM_FI_DEV_MEMORY_TEMP",)


@pytest.mark.parametrize("text", ["<html>sign in</html>", 'DCGM_FI_DEV_GPU_TEMP{gpu="0"} warm', "Not found\n"])
def test_what_prometheus_could_not_read_is_no_exporter(text: str) -> None:
    with pytest.raises(ScrapeError, match="line 1 is no metric"):
        parse_scrape(text)


def test_bug_094_the_log_says_why_metrics_are_missing() -> None:
    log = """time=2026-01-01T00:00:00Z level=INFO msg="Starting dcgm-exporter" Version=4.5.3-4.8.2
time=2026-01-01T00:00:01Z level=INFO msg="Not collecting DCP metrics: profiling module is not loaded"
time=2026-01-01T00:00:01Z level=WARN msg="Skipping line 20 ('DCGM_FI_PROF_SM_ACTIVE'): metric not enabled"
level=fatal msg="Error getting device information: API version mismatch"
"""
    assert len(reasons_in_log(log)) == 2 and "metric not enabled" in reasons_in_log(log)[0]
