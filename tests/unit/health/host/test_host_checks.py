# SPDX-License-Identifier: Apache-2.0
"""Clock, pool, node exporter, reboot requests, file systems: what is healthy passes, what is not is named."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import pytest
from ansible.module_utils.gpufleet.health import (
    clock_checks,
    file_system_check,
    node_exporter_check,
    reboot_requests_check,
    zfs_pool_check,
)
from ansible.module_utils.gpufleet.health.finding import Finding
from ansible.module_utils.gpufleet.health.probe import ParseError, ProbeResult

from tests.unit.health.host.node_fixture import FIXTURES, changed, judge, lab_node, profile, troubles, xe9680

MODULES = (clock_checks, file_system_check, node_exporter_check, reboot_requests_check, zfs_pool_check)
PROBES = tuple(probe for module in MODULES for probe in module.PROBES)
CHECKS = tuple(check for module in MODULES for check in module.CHECKS)
HEALTHY = xe9680()
XE9680 = profile()

TRACKING, SOURCES = clock_checks.TRACKING_PROBE, clock_checks.SOURCES_PROBE
STATUS, RECORDS, NAMES = zfs_pool_check.STATUS, zfs_pool_check.RECORDS, zfs_pool_check.NAMES
USAGE, SCRAPE, REBOOT = file_system_check.USAGE, node_exporter_check.SCRAPE, reboot_requests_check.FILES

Change = Callable[[str], str]


def run(results: dict[str, ProbeResult], wanted: dict[str, Any] = XE9680) -> list[Finding]:
    return judge(CHECKS, PROBES, results, wanted)


def put(old: str, new: str) -> Change:
    return lambda text: text.replace(old, new)


@pytest.mark.parametrize(("results", "name"), [(HEALTHY, "xe9680-h100"), (lab_node(), "lab")])
def test_healthy_nodes(results: dict[str, ProbeResult], name: str) -> None:
    findings = run(results, profile(name))
    assert [(one.check, one.status) for one in findings] == [(check.id, "ok") for check in CHECKS]
    assert all(one.evidence for one in findings)


MEMBER = "disk EXAMPLE0003 (slot 3) of pool data"
LEAF = "/dev/disk/by-id/nvme-Dell_Ent_NVMe_Example_3.84TB_EXAMPLE0003_1-part1"
FAULTS: list[tuple[str, str, Change, list[tuple[str, str, str]]]] = [
    # what, probe, change, findings
    ("clock a little off", TRACKING, put("-0.000017440", "0.250000000"), [("clock.skew", "node", "warn")]),
    ("clock far off", TRACKING, put("-0.000017440", "-3.5"), [("clock.skew", "node", "fail")]),
    ("not synchronised", TRACKING, put("Normal", "Not synchronised"),
     [("clock.skew", "node", "unknown"), ("clock.source", "node", "warn")]),
    ("no server followed", SOURCES, put(",*,", ",?,"),
     [("clock.skew", "node", "unknown"), ("clock.source", "node", "warn")]),
    ("followed server is silent", SOURCES, put("10.0.0.1,1,6,377", "10.0.0.1,1,6,0"),
     [("clock.skew", "node", "unknown"), ("clock.source", "node", "warn")]),
    ("full", USAGE, put("  12% ", "  96% "), [("file_systems", "file system /", "fail")]),
    ("no inodes left", USAGE, put("   25% 3221225472 2097152    1%", "   25% 3221225472 2097152    99%"),
     [("file_systems", "file system /var/lib/docker", "fail")]),
    ("textfile error", SCRAPE, put("scrape_error 0", "scrape_error 1"), [("node_exporter", "node", "warn")]),
    ("no textfile collector", SCRAPE, put("node_textfile_scrape_error 0\n", ""), [("node_exporter", "node", "warn")]),
    ("exporter answers with an error", SCRAPE, put("200 OK", "503 Busy"), [("node_exporter", "node", "unknown")]),
    ("another server", SCRAPE, put("node_exporter_build_info", "process_build_info"),
     [("node_exporter", "node", "unknown")]),
    ("member gone, noticed", STATUS, lambda text: text.replace(f"{LEAF}  ONLINE ", f"{LEAF}  REMOVED").replace(
        "state: ONLINE", "state: DEGRADED"), [("zfs.pool", "pool data", "fail"), ("zfs.pool", MEMBER, "fail")]),
    ("member errors", STATUS, lambda text: re.sub(rf"({LEAF}  ONLINE +)0     0     0", r"\g<1>0     0     7", text),
     [("zfs.pool", MEMBER, "warn")]),
    ("member gone, not noticed", NAMES, lambda text: re.sub(r".*EXAMPLE0003.*\n", "", text),
     [("zfs.pool", MEMBER, "fail")]),
    ("another disk in its place", RECORDS, put('"serial": "EXAMPLE0003"', '"serial": "EXAMPLE0009"'),
     [("zfs.pool", "disk EXAMPLE0009 (slot 3) of pool data", "fail")]),
    ("member unknown to the record", RECORDS, lambda text: text.replace(LEAF, "/dev/disk/by-id/other"),
     [("zfs.pool", f"{LEAF} of pool data", "warn")]),
    ("another pool only", STATUS, lambda text: text.replace("pool: data", "pool: tank").replace("\tdata  ", "\ttank  "),
     [("zfs.pool", "pool data", "fail")]),
    ("data errors", STATUS, put("No known data errors", "3 data errors, use '-v' for a list"),
     [("zfs.pool", "pool data", "fail")]),
    ("no record of this pool", RECORDS, put("zfs_pool/data.json", "zfs_pool/tank.json"),
     [("zfs.pool", "node", "unknown")]),
]  # fmt: skip


@pytest.mark.parametrize(("probe", "change", "expected"), [fault[1:] for fault in FAULTS],
                         ids=[fault[0] for fault in FAULTS])  # fmt: skip
def test_faults(probe: str, change: Change, expected: list[tuple[str, str, str]]) -> None:
    findings = run(changed(HEALTHY, probe, change))
    assert troubles(findings) == expected
    for one in findings:
        if one.status in ("warn", "fail"):
            assert one.advice and one.evidence and one.expected and one.reference and one.action != "none", one


def test_time_servers_of_the_profile() -> None:
    wanted = profile()
    clock = wanted["platform"]["clock"]
    for servers, status, says in (
        (["10.0.0.1", "10.0.0.2"], "ok", "10.0.0.1 is followed"),
        (["10.0.0.2"], "warn", "which the profile does not name"),
        (["10.0.0.1", "10.0.0.3"], "warn", "no answer: 10.0.0.3"),
    ):
        clock["servers"] = [{"address": address} for address in servers]
        (found,) = (one for one in run(HEALTHY, wanted) if one.check == "clock.source")
        assert found.status == status and says in found.observed


def test_chronyd_that_does_not_run() -> None:
    said = "506 Cannot talk to daemon\n"
    stopped = {probe: HEALTHY[probe]._replace(outcome="failed", rc=1, stdout=said) for probe in (TRACKING, SOURCES)}
    assert troubles(run({**HEALTHY, **stopped})) == [
        ("clock.skew", "node", "unknown"),
        ("clock.source", "node", "warn"),
    ]
    other = {TRACKING: HEALTHY[TRACKING]._replace(outcome="failed", rc=1, stdout="", stderr="chronyc: bad option")}
    findings = run({**HEALTHY, **other})
    assert {status for __, __, status in troubles(findings)} == {"unknown"}


def test_an_exporter_that_does_not_run() -> None:
    refused = HEALTHY[SCRAPE]._replace(
        outcome="failed", rc=1, stdout="asked: :9100\n", stderr="bash: connect: Connection refused\nbash: /dev/tcp..."
    )
    findings = run({**HEALTHY, SCRAPE: refused})
    assert troubles(findings) == [("node_exporter", "node", "warn")]
    (found,) = (one for one in findings if one.check == "node_exporter")
    assert found.observed == "nobody listens on :9100: Connection refused" and found.action == "restart_service"
    silent = refused._replace(stderr="bash: unknown host")
    assert troubles(run({**HEALTHY, SCRAPE: silent})) == [("node_exporter", "node", "unknown")]


@pytest.mark.parametrize(
    ("source", "version", "status"),
    [
        ("distro", None, "ok"),
        ("distro", "1.5.0-1+b6", "ok"),
        ("distro", "1.5.01", "warn"),
        ("vendor", "1.5.0", "ok"),
        ("vendor", "1.11.1", "warn"),
    ],
)
def test_version_of_the_exporter(source: str, version: str | None, status: str) -> None:
    wanted = profile()
    wanted["packages"]["node_exporter"].update(source=source, version=version, distro_version=version)
    (found,) = (one for one in run(HEALTHY, wanted) if one.check == "node_exporter")
    assert found.status == status


def test_a_member_that_is_gone_is_told_from_another_disk_in_its_place() -> None:
    gone = run(changed(HEALTHY, NAMES, lambda text: re.sub(r".*EXAMPLE0003.*\n", "", text)))
    other = run(changed(HEALTHY, RECORDS, put('"serial": "EXAMPLE0003"', '"serial": "EXAMPLE0009"')))
    said = [one.observed for one in (*gone, *other) if one.status == "fail"]
    assert said[0] == "its device is gone, though ZFS has not noticed yet"
    assert said[1].startswith("another disk is there: nvme-Dell") and len(said) == 2


def test_a_pool_that_is_not_wanted() -> None:
    wanted = profile()
    wanted["storage"]["pool"]["manage"] = False
    (found,) = (one for one in run({}, wanted) if one.check == "zfs.pool")
    assert found.status == "skipped"


def test_no_pool_at_all() -> None:
    none = HEALTHY[STATUS]._replace(stdout="", stderr="no pools available\n")
    assert troubles(run({**HEALTHY, STATUS: none})) == [("zfs.pool", "pool data", "fail")]
    silent = none._replace(stderr="")
    assert troubles(run({**HEALTHY, STATUS: silent})) == [("zfs.pool", "node", "unknown")]


def test_the_shape_of_the_pool() -> None:
    wanted = profile()
    wanted["storage"]["pool"]["layout"] = "raidz2"
    assert troubles(run(HEALTHY, wanted)) == [("zfs.pool", "pool data", "fail")]
    fewer = changed(HEALTHY, STATUS, lambda text: re.sub(rf".*{LEAF}.*\n", "", text))
    assert troubles(run(fewer)) == [("zfs.pool", "pool data", "fail")]


def test_a_pool_that_says_online_although_a_member_is_gone() -> None:
    """Bug 073: the state of the pool alone says nothing."""
    text = (FIXTURES / "zfs" / "status" / "online-but-unavail.txt").read_text()
    name = re.search(r"pool: (\S+)", text)
    assert name
    wanted = profile()
    wanted["storage"]["pool"]["name"] = name[1]
    record = json.dumps({"guid": "1", "host_id": 1, "members": []})
    results = {**HEALTHY, STATUS: HEALTHY[STATUS]._replace(stdout=text)}
    results[RECORDS] = HEALTHY[RECORDS]._replace(stdout=f"/var/lib/gpufleet/zfs_pool/{name[1]}.json:{record}\n")
    findings = [one for one in run(results, wanted) if one.check == "zfs.pool"]
    assert any(one.status == "fail" and "UNAVAIL" in one.observed for one in findings)


def test_a_change_of_the_pool_that_was_cut_off() -> None:
    intent = '/var/lib/gpufleet/zfs_pool/data.intent.json:{"purpose": "create"}\n'
    findings = run(changed(HEALTHY, RECORDS, lambda text: text + intent))
    assert troubles(findings) == [("zfs.pool", "pool data", "warn")]


def request(name: str, folder: str, **values: Any) -> str:
    content = {
        "name": name,
        "reason": "kernel argument iommu=pt",
        "still_needed": None,
        "requested_by": "kernel",
        "boot_id": "00000000-0000-4000-8000-00000000b007",
        "when": "2026-11-30T01:00:00Z",
        **values,
    }
    path = f"{folder}/{name}.json"
    return path + "\n" + "".join(f"{path}:{line}\n" for line in json.dumps(content, indent=1).splitlines())


NOW, TRIED = "/run/gpufleet/reboot.d", "/var/lib/gpufleet/reboot"
BEFORE = {"boot_id": "00000000-0000-4000-8000-00000000b006"}
TEST = {"still_needed": ["/bin/true"]}


@pytest.mark.parametrize(
    ("added", "expected"),
    [
        (request("kernel", NOW), [("reboot request kernel", "warn")]),
        (request("kernel", NOW) + request("kernel", TRIED, **BEFORE), [("reboot request kernel", "fail")]),
        (
            request("kernel", NOW) + request("kernel", TRIED, reason="another", **BEFORE),
            [("reboot request kernel", "warn")],
        ),
        # recorded just before the reboot that has not come yet
        (request("kernel", NOW) + request("kernel", TRIED), [("reboot request kernel", "warn")]),
        (request("kernel", TRIED, **BEFORE, **TEST), [("reboot request kernel", "fail")]),
        (request("kernel", TRIED, **BEFORE), [("reboot request kernel", "warn")]),
        (request("kernel", TRIED, **TEST), [("reboot request kernel", "warn")]),
        (f"{NOW}/empty.json\n", [("reboot requests", "warn")]),
        (request("kernel", NOW).replace('"reason"', '"reeson"'), [("reboot requests", "warn")]),
        ("/run/reboot-required\n", [("operating system", "warn")]),
        (
            "/run/reboot-required\n/run/reboot-required:*** System restart required ***\n"
            "/run/reboot-required.pkgs\n/run/reboot-required.pkgs:linux-base\n",
            [("operating system", "warn")],
        ),
        (f"{NOW}/.new-kernel\n", []),
    ],
)
def test_reboot_requests(added: str, expected: list[tuple[str, str]]) -> None:
    findings = run(changed(HEALTHY, REBOOT, lambda text: text + added))
    assert troubles(findings) == [("reboot.requests", *found) for found in expected]


@pytest.mark.parametrize(
    ("probe", "change", "says"),
    [
        (REBOOT, lambda text: "", "boot_id"),
        (REBOOT, lambda text: text.split("\n")[0] + "\n", "boot_id"),
        (REBOOT, lambda text: text.split("\n", 1)[1], "neither a file"),
        (REBOOT, lambda text: text + "/etc/passwd\n", "no file that was asked for"),
        (USAGE, lambda text: "", "heading"),
        (USAGE, lambda text: re.sub(r".* /scratch\n", "", text), "add up"),
        (USAGE, lambda text: re.sub(r".* total\n", "", text), "totals"),
        (USAGE, lambda text: text.replace("12%", "a lot"), "no row"),
        (SCRAPE, lambda text: "", "address that was asked"),
        (SCRAPE, lambda text: text.split("\n")[0] + "\n", "answered 'nothing'"),
        (RECORDS, lambda text: re.sub(r".*\"serial\": \"EXAMPLE0003\".*\n", "", text), "not understood"),
        (RECORDS, lambda text: text[: len(text) // 2] + "\n", "not understood"),
        (RECORDS, lambda text: "", "empty"),
        (NAMES, lambda text: "", "empty"),
        (NAMES, lambda text: "find: failed\n", "no name and link"),
        (TRACKING, lambda text: "", "14 fields"),
        (SOURCES, lambda text: "506 Cannot talk\n", "10 fields"),
        (STATUS, lambda text: text[: text.index("errors:")], "errors:"),
    ],
)
def test_output_that_is_not_whole_is_refused(probe: str, change: Change, says: str) -> None:
    parse = next(one.parse for one in PROBES if one.id == probe)
    with pytest.raises(ParseError, match=re.escape(says)):
        parse(HEALTHY[probe]._replace(stdout=change(HEALTHY[probe].stdout)))


@pytest.mark.parametrize("probe", [probe.id for probe in PROBES])
def test_less_output_never_passes(probe: str) -> None:
    """Cut behind any line, or without it: what needs the probe does not pass on less, all else is as before."""
    wanted = profile()
    wanted["platform"]["clock"]["servers"] = [{"address": "10.0.0.1"}, {"address": "10.0.0.2"}]
    lines = HEALTHY[probe].stdout.splitlines(keepends=True)
    needing = {check.id for check in CHECKS if probe in check.needs}
    # Behind the last disk's name that the pool uses stand other names of it, which nothing reads.
    last = next((n for n, line in enumerate(lines) if "EXAMPLE0005_1-part1" in line and probe == NAMES), len(lines) - 1)
    for end in range(0, last + 1, max(1, len(lines) // 25)):
        for one in run({**HEALTHY, probe: HEALTHY[probe]._replace(stdout="".join(lines[:end]))}, wanted):
            assert (one.status == "ok") == (one.check not in needing), (lines[end], one)


@pytest.mark.parametrize("probe", [probe.id for probe in PROBES])
@pytest.mark.parametrize("outcome", ["timeout", "failed", "missing", "truncated"])
def test_a_probe_without_an_answer(probe: str, outcome: str) -> None:
    result = HEALTHY[probe]._replace(outcome=outcome, stdout="", stderr="it hangs", rc=1)
    needing = {check.id for check in CHECKS if probe in check.needs}
    for one in run({**HEALTHY, probe: result}):
        assert one.status == ("unknown" if one.check in needing else "ok")
        assert one.status == "ok" or probe in one.observed
