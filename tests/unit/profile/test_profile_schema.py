# SPDX-License-Identifier: Apache-2.0
"""The schema: the shipped profiles satisfy it, and each kind of mistake is refused with place, expectation and hint."""

import copy
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible.module_utils.gpufleet.profile_schema import RULES, SCHEMA, describe, validate

PROFILES = Path(__file__).resolve().parents[3] / "profiles"


def shipped(name: str) -> dict[str, Any]:
    return yaml.safe_load((PROFILES / f"{name}.yml").read_text())


@pytest.mark.parametrize("path", sorted(PROFILES.glob("*.yml")), ids=lambda path: path.stem)
def test_shipped_profiles_are_valid(path: Path) -> None:
    assert validate(yaml.safe_load(path.read_text())) == []


def changed(path: str, value: Any) -> dict[str, Any]:
    """The profile xe9680-h100 with one key set (or, with DELETE, removed)."""
    profile = copy.deepcopy(shipped("xe9680-h100"))
    node: Any = profile
    *parents, last = path.split(".")
    for part in parents:
        node = node[part]
    if value is DELETE:
        del node[last]
    else:
        node[last] = value
    return profile


DELETE = object()

# key, value, then the problem's path, expected and found, and a piece of its hint
REFUSED = [
    (
        "platform.clock.max_ofset_s",
        1.0,
        "platform.clock.max_ofset_s",
        "one of the keys servers",
        "an unknown key",
        None,
    ),
    ("platform.clok", {}, "platform.clok", "one of the keys", "an unknown key", "did you mean 'clock'?"),
    ("platform.clock.max_offset_s", DELETE, "platform.clock.max_offset_s", "a number from 0.01", "is missing", None),
    ("platform.clock.max_offset_s", "1.0", "platform.clock.max_offset_s", "a number", "the string '1.0'", "quotes"),
    ("platform.clock.max_offset_s", True, "platform.clock.max_offset_s", "a number", "true", None),
    ("platform.clock.max_tracking_offset_s", 0, "platform.clock.max_tracking_offset_s", "from 0.0001", "0", None),
    ("platform.clock.max_offset_s", 301, "platform.clock.max_offset_s", "from 0.01 to 300", "301", None),
    ("platform.clock.max_offset_s", None, "platform.clock.max_offset_s", "a number", "null", None),
    (
        "platform.clock.max_tracking_offset_s",
        2,
        "platform.clock.max_tracking_offset_s",
        "at most",
        "2",
        "never be mended",
    ),
    ("platform.clock.servers", {}, "platform.clock.servers", "a list", "an empty section", None),
    ("platform.clock.servers", [{}], "platform.clock.servers[0].address", "a host name", "is missing", None),
    ("platform.clock.servers", [{"address": "a b"}], "platform.clock.servers[0].address", "a host name", "'a b'", None),
    (
        "platform.clock.servers",
        [{"address": "a", "port": 0}],
        "platform.clock.servers[0].port",
        "1 to 65535",
        "0",
        None,
    ),
    ("platform.clock.servers", ["a"], "platform.clock.servers[0]", "a section of keys", "the string 'a'", None),
    ("platform.cpu.numa_nodes_per_socket", 3, "platform.cpu.numa_nodes_per_socket", "one of 1, 2, 4", "3", None),
    ("platform.cpu.sockets", 2.0, "platform.cpu.sockets", "a whole number", "2.0", None),
    ("platform.cpu.governor", "performence", "platform.cpu.governor", "or null", "'performence'", "'performance'?"),
    ("platform.acs_redirect", False, "platform.acs_redirect", "one of off, keep", "false", "put the value in quotes"),
    ("platform.kernel.arguments", ["iommu = pt"], "platform.kernel.arguments[0]", "one argument", "'iommu = pt'", None),
    ("platform.bios", {"a b": "x"}, "platform.bios.a b", "Redfish BIOS attribute", "the key 'a b'", None),
    ("platform.bios", {"SysProfile": True}, "platform.bios.SysProfile", "a string", "true", "put the value in quotes"),
    ("platform.system.product", " ", "platform.system.product", "a string that is not empty", "' '", None),
    ("devices.gpu.match", [], "devices.gpu.match", "a list of at least 1", "an empty list", None),
    ("devices.gpu.match", [{}], "devices.gpu.match[0]", "at least one of vendor", "an empty rule", "every device"),
    ("devices.gpu.match", [{"vendor": "10DE"}], "devices.gpu.match[0].vendor", "lower-case", "'10DE'", None),
    ("devices.gpu.match", [{"vendor": 1022}], "devices.gpu.match[0].vendor", "hexadecimal", "1022", "in quotes"),
    ("devices.gpu.pair_with", "hcas", "devices.gpu.pair_with", "nvswitch", "'hcas'", "did you mean 'hca'?"),
    ("devices.gpu.pair_with", "gpu", "devices.gpu.pair_with", "another kind", "'gpu'", None),
    ("devices.gpu.link", {"speed_gts": 30, "width": 16}, "devices.gpu.link.speed_gts", "one of 2.5", "30", None),
    ("packages.node_exporter.source", "vendr", "packages.node_exporter.source", "mirror", "'vendr'", "'vendor'?"),
    ("packages.node_exporter.version", 1.11, "packages.node_exporter.version", "version of three", "1.11", "in quotes"),
    ("packages.node_exporter.sha256", "abc", "packages.node_exporter.sha256", "64 lower-case", "'abc'", None),
    ("limits.gpu.uncorrectable_remapped_rows", 513, "limits.gpu.uncorrectable_remapped_rows", "512", "513", None),
    ("limits.infiniband.rate_gbit_per_s", 399, "limits.infiniband.rate_gbit_per_s", "one of 40", "399", None),
    ("firmware.bios", {"version": 2.7}, "firmware.bios.version", "a string or null", "2.7", "in quotes"),
    ("required_checks", ["GPU"], "required_checks[0]", "the id of a check", "'GPU'", None),
    ("skip_checks", {"gpu.ecc": ""}, "skip_checks.gpu.ecc", "a string that is not empty", "''", None),
    ("skip_checks", {"gpu.ecc@": "x"}, "skip_checks.gpu.ecc@", "the id of a check, with @", "'gpu.ecc@'", None),
    ("skip_checks", ["gpu.ecc"], "skip_checks", "a section of keys", "a list", None),
    ("schema", 2, "schema", "one of 1", "2", None),
    ("packages.zfs.source", "dmks", "packages.zfs.source", "one of distro", "'dmks'", "'dkms'?"),
    (
        "packages.zfs",
        {"source": "prebuilt", "version": None, "module_package": "zfs-modules"},
        "packages.zfs.module_package",
        "{kernel}",
        "'zfs-modules'",
        "each installed kernel",
    ),
    ("storage.pool.name", "mirror1", "storage.pool.name", "a name of letters", "'mirror1'", None),
    ("storage.pool.name", "da ta", "storage.pool.name", "a name of letters", "'da ta'", None),
    ("storage.pool.layout", "raidz", "storage.pool.layout", "one of raidz1", "'raidz'", "did you mean"),
    ("storage.pool.disks.kernel_name", ["nvme0n1"], "storage.pool.disks.kernel_name", "by_id", "an unknown key", None),
    ("storage.pool.disks.max_gb", 900, "storage.pool.disks.min_gb", "at most max_gb (900)", "1000", "no disk"),
    ("storage.pool.properties.autotrim", True, "storage.pool.properties.autotrim", "a string", "true", "in quotes"),
    (
        "storage.pool.properties.ashift",
        "12",
        "storage.pool.properties.ashift",
        "key of its own",
        "ashift",
        "the key ashift",
    ),
    ("storage.pool.file_system.atime", False, "storage.pool.file_system.atime", "a string", "false", "in quotes"),
    (
        "storage.pool.file_system.recordsize",
        "1000",
        "storage.pool.file_system.recordsize",
        "takes",
        "1000",
        "recordsize",
    ),
    ("storage.pool.mountpoint", "data", "storage.pool.mountpoint", "an absolute path", "'data'", None),
    ("storage.pool.mountpoint", "/scratch", "storage.pool.datasets.scratch.mountpoint", "own", "/scratch", "has it"),
    (
        "storage.pool.datasets.docker",
        {"mountpoint": None, "properties": {"mountpoint": "/x"}},
        "storage.pool.datasets.docker.properties.mountpoint",
        "a property",
        "mountpoint",
        "use the key mountpoint",
    ),
    (
        "storage.pool.datasets.docker",
        {"mountpoint": None, "properties": {"quota": "2X"}},
        "storage.pool.datasets.docker.properties.quota",
        "a value that ZFS takes",
        "2X",
        "quota",
    ),
    (
        "storage.pool.datasets",
        {"a/b": {"mountpoint": None, "properties": {}}},
        "storage.pool.datasets.a/b",
        "a among the datasets",
        "no such key",
        "add it",
    ),
    ("storage.pool.arc_max_gib", 0.01, "storage.pool.arc_max_gib", "0.0625", "0.01", None),
    ("storage.pool.scrub", "every week!", "storage.pool.scrub", "a calendar expression", "'every week!'", None),
    ("devices.data_disk", DELETE, "devices.data_disk", "a kind of device", "no such key", "storage.pool.manage"),
    ("plattform", {}, "plattform", "one of the keys", "an unknown key", None),
]


@pytest.mark.parametrize("case", REFUSED, ids=lambda case: f"{case[0]}={'missing' if case[1] is DELETE else case[1]}")
def test_mistake_is_refused(case: tuple[str, Any, str, str, str, str | None]) -> None:
    key, value, path, expected, found, hint = case
    (problem,) = validate(changed(key, value))
    assert problem.path == path
    assert expected in problem.expected
    assert found in problem.found
    assert (hint or "") in problem.hint
    assert path in str(problem) and found in str(problem)


def test_misspelt_key_says_what_was_meant_and_what_is_missing() -> None:
    profile = changed("platform.clock.max_offset_s", DELETE)
    profile["platform"]["clock"]["max_ofset_s"] = 1.0
    problems = {problem.path: problem for problem in validate(profile)}
    assert problems["platform.clock.max_ofset_s"].hint == "did you mean 'max_offset_s'?"
    assert set(problems) == {"platform.clock.max_ofset_s", "platform.clock.max_offset_s"}


@pytest.mark.parametrize("source", ["vendor", "mirror"])
def test_tarball_needs_version_and_sha256(source: str) -> None:
    profile = changed(
        "packages.node_exporter", {"source": source, "version": None, "sha256": None, "distro_version": None}
    )
    paths = [problem.path for problem in validate(profile)]
    assert paths == ["packages.node_exporter.version", "packages.node_exporter.sha256"]
    profile["packages"]["node_exporter"]["source"] = "distro"
    assert validate(profile) == []


def test_all_mistakes_are_reported_at_once() -> None:
    profile = changed("platform.cpu.sockets", "2")
    profile["schema"] = "1"
    del profile["limits"]
    assert {problem.path for problem in validate(profile)} == {"platform.cpu.sockets", "schema", "limits"}


@pytest.mark.parametrize("profile", [None, [], "lab", 1])
def test_something_else_than_a_section_is_refused(profile: Any) -> None:
    (problem,) = validate(profile)
    assert problem.path == "the profile"


def walk(node: dict[str, Any], path: str) -> Any:
    yield path, node
    for key, inner in node.get("keys", {}).items():
        yield from walk(inner, f"{path}.{key}")
    for name in ("values", "items"):
        if name in node:
            yield from walk(node[name], f"{path}[]")


@pytest.mark.parametrize(
    ("path", "node"), list(walk(SCHEMA, "profile")), ids=lambda value: value if isinstance(value, str) else ""
)
def test_schema_describes_every_key(path: str, node: dict[str, Any]) -> None:
    known = {"type", "description", "nullable", "optional", "choices", "min", "max", "min_items", "pattern"}
    assert set(node) <= known | {"pattern_help", "keys", "values", "items", "rule"}, path
    assert node["description"].endswith(".")
    assert ("pattern" in node) == ("pattern_help" in node)
    assert node.get("rule", next(iter(RULES))) in RULES


def test_describe_finds_keys_below_maps() -> None:
    assert describe("devices.gpu.count")["type"] == "int"
    with pytest.raises(KeyError):
        describe("devices.gpu.cuont")


CHECKS = {"gpu", "gpu.ecc", "pcie", "pcie.link"}


@pytest.mark.parametrize(
    "value",
    [{}, {"gpu.ecc": "ticket 4711"}, {"gpu": None}, {"pcie.link@*0000:9b:00.0*": "the slot is x8"}],
)
def test_checks_are_skipped_by_id_prefix_and_component(value: dict[str, Any]) -> None:
    assert validate({**changed("skip_checks", value), "required_checks": ["gpu.ecc"]}, CHECKS) == []


def test_a_check_that_does_not_exist_is_refused_where_the_checks_are_known() -> None:
    profile = {**changed("required_checks", ["gpu.ec", "pcie"]), "skip_checks": {"pcie.lnk@GPU 3*": "ticket 4711"}}
    assert validate(profile) == []
    assert [(problem.path, problem.hint) for problem in validate(profile, CHECKS)] == [
        ("required_checks[0]", "did you mean 'gpu.ecc'?"),
        ("skip_checks.pcie.lnk@GPU 3*", "did you mean 'pcie.link'?"),
    ]


def test_unknown_checks_are_named_beside_other_mistakes() -> None:
    profile = {**changed("required_checks", ["gpu.ec"]), "skip_checks": ["x"], "schema": 2}
    assert [problem.path for problem in validate(profile, CHECKS)] == ["schema", "skip_checks", "required_checks[0]"]
