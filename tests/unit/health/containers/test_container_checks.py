# SPDX-License-Identifier: Apache-2.0
"""Engine, toolkit and running containers: what the roles leave passes, and each way to lose it is named."""

import re
from typing import Any

import pytest
from ansible.module_utils.gpufleet.health import container_checks, container_gpu_checks, docker_engine
from ansible.module_utils.gpufleet.health.counted_output import counted
from ansible.module_utils.gpufleet.health.docker_engine import Engine, is_version, parse_engine
from ansible.module_utils.gpufleet.health.probe import ParseError, ProbeResult
from ansible.module_utils.gpufleet.health.registry import PROBES

from tests.health_node import result
from tests.health_node_containers import ALL_GPUS, container, fixture
from tests.health_node_containers import counted as output
from tests.unit.health.containers.container_case import OURS, Change, both, part, put, run, statuses, troubles

ENGINE, RUNNING, TOOLKIT, START, INSIDE, HOLDS = (
    "docker.engine",
    "docker.containers",
    "containers.toolkit",
    "containers.gpu_start",
    "containers.gpu_inside",
    "apt.holds",
)
Trouble = tuple[str, str, str, str]


def test_the_healthy_node_passes_every_check() -> None:
    assert statuses(run({})) == {check.id: {"ok"} for check in OURS}


def unlinked(*nodes: str) -> Change:
    return lambda text: "".join(
        line.replace(" linked", " without") if line.split(" ")[0] in nodes else line for line in text.splitlines(True)
    )


DONE = "exit status 0\n"
NO_ENGINE = fixture("docker/info-no-engine-28.2.2.txt") + "exit status 1\n"
STOPPED = "LoadState=loaded\nActiveState=failed\nResult=exit-code\n"
SPECIFICATION = "/etc/cdi/nvidia.yaml"
LOST = "Failed to initialize NVML: Unknown Error\nexit status 255\n"
GPUS_LOST_HERE = fixture("docker/run-without-toolkit.txt") + "exit status 125\n"

# what: changes, profile keys, findings, and words of the first one
FAULTS: dict[str, tuple[dict[str, Change], dict[str, Any], list[Trouble], str]] = {
    "the engine is down": (
        {ENGINE: both(part("unit", STOPPED), part("info", NO_ENGINE))},
        {},
        [("docker.engine", "node", "fail", "restart_service"), ("containers.gpu_runtime", "node", "unknown", "none"),
         ("containers.gpu_kept", "node", "unknown", "none")],
        "docker.service is failed (exit-code): ",
    ),
    "the engine is hung": (
        {ENGINE: part("info", "exit status 124\n"), RUNNING: both(part("list", "exit status 124\n"),
                                                                   part("containers", ""))},
        {},
        [("docker.engine", "node", "fail", "restart_service"), ("containers.gpu_runtime", "node", "unknown", "none"),
         ("containers.gpu_kept", "node", "unknown", "none"), ("containers.rights", "node", "unknown", "none")],
        "docker.service is active: gave no answer within 20 s",
    ),
    "there is no docker": (
        {ENGINE: both(part("unit", "LoadState=not-found\nActiveState=inactive\nResult=success\n"),
                      part("info", "timeout: failed to run command 'docker': No such file or directory\n"
                                   "exit status 127\n"))},
        {},
        [("docker.engine", "node", "fail", "restart_service"), ("containers.gpu_runtime", "node", "unknown", "none"),
         ("containers.gpu_kept", "node", "unknown", "none")],
        "docker.service is not-found: timeout: failed to run command 'docker'",
    ),
    "another version than profiled": (
        {},
        {"packages.docker.version": "28.3.3"},
        [("docker.engine", "node", "warn", "none"), ("docker.holds", "node", "warn", "none")],
        "version 20.10.24+dfsg1",
    ),
    "another storage driver": (
        {ENGINE: put('"overlay2"', '"vfs"')}, {}, [("docker.engine", "node", "warn", "none")], "storage driver vfs",
    ),
    "images lie on the disk of the system": (
        {},
        {"platform.docker.data_root": "/data/docker"},
        [("docker.engine", "node", "warn", "none")],
        "data root /var/lib/docker",
    ),
    "live-restore is off": (
        {ENGINE: put('"live_restore":true', '"live_restore":false')},
        {},
        [("docker.engine", "node", "warn", "none")],
        "live-restore off",
    ),
    "version 1 of control groups": (
        {ENGINE: put('"cgroup_version":"2"', '"cgroup_version":"1"')},
        {},
        [("docker.engine", "node", "warn", "none")],
        "cgroup version 1",
    ),
    "another default runtime": (
        {},
        {"platform.docker.default_runtime": "nvidia"},
        [("docker.engine", "node", "warn", "none")],
        "default runtime runc",
    ),
    "bug 106: daemon.json was replaced, and the limits of logs are gone": (
        {ENGINE: part("log options", "")},
        {},
        [("docker.engine", "node", "warn", "none")],
        "log files of containers: no limit",
    ),
    "the engine cannot load a profile of AppArmor (seen on a Debian node without recommended packages)": (
        {ENGINE: part("apparmor", "Y\n")},
        {},
        [("docker.engine", "node", "fail", "none")],
        "no container starts",
    ),
    "one limit of logs is another": (
        {ENGINE: put('"max-file": "5"', '"max-file": "1"')},
        {},
        [("docker.engine", "node", "warn", "none")],
        "log files of containers: max-file 1, max-size 100m",
    ),
    "logs go elsewhere": (
        {ENGINE: put('"log_driver":"json-file"', '"log_driver":"journald"')},
        {},
        [("docker.engine", "node", "warn", "none")],
        "log driver journald",
    ),
    "the engine's package is not held": (
        {HOLDS: put("hold installed docker-ce\n", "install installed docker-ce\n")},
        {},
        [("docker.holds", "node", "warn", "none")],
        "1 of 3 packages are not held: docker-ce",
    ),
    "a package of the toolkit is not held": (
        {HOLDS: put("hold installed libnvidia-container1", "install installed libnvidia-container1")},
        {},
        [("containers.toolkit_holds", "node", "warn", "none")],
        "1 of 4 packages are not held: libnvidia-container1",
    ),
    "DCGM and its exporter are not held": (
        {HOLDS: put("hold installed datacenter", "install installed datacenter")},
        {},
        [("dcgm.holds", "node", "warn", "none"), ("dcgm_exporter.holds", "node", "warn", "none")],
        "2 of 2 packages are not held",
    ),
    "the engine has no runtime for GPUs": (
        {ENGINE: put('"nvidia":{"path":"nvidia-container-runtime"},', "")},
        {},
        [("containers.gpu_runtime", "node", "fail", "none")],
        "the engine has the runtimes io.containerd.runc.v2",
    ),
    "the runtime's program is gone": (
        {TOOLKIT: part("runtime", "")},
        {},
        [("containers.gpu_runtime", "node", "fail", "none")],
        "there is no program nvidia-container-runtime",
    ),
    "a package of the toolkit is missing": (
        {TOOLKIT: put("toolkit-base installed 1.17.8-1", "toolkit-base not-installed ")},
        {},
        [("containers.gpu_runtime", "node", "fail", "none")],
        "not installed: nvidia-container-toolkit-base",
    ),
    "four packages of two versions": (
        {TOOLKIT: put("libnvidia-container1 installed 1.17.8-1", "libnvidia-container1 installed 1.17.4-1")},
        {},
        [("containers.gpu_runtime", "node", "warn", "none")],
        "packages of several versions: libnvidia-container1 1.17.4-1, libnvidia-container-tools 1.17.8-1",
    ),
    "another version of the toolkit than profiled": (
        {},
        {"packages.container_toolkit.version": "1.18.0"},
        [("containers.gpu_runtime", "node", "warn", "none"), ("containers.toolkit_holds", "node", "warn", "none")],
        "libnvidia-container1 1.17.8-1",
    ),
    "no CDI specification": (
        {TOOLKIT: both(part("devices", fixture("containers/cdi-list-without-specification.txt") + DONE),
                       part("libraries", ""))},
        {},
        [("containers.gpu_runtime", "node", "fail", "none")],
        "no CDI specification names a GPU",
    ),
    "a CDI specification that cannot be read": (
        {TOOLKIT: part("devices", fixture("containers/cdi-list-broken-file.txt") + DONE)},
        {},
        [("containers.gpu_runtime", "node", "fail", "none")],
        "CDI specifications cannot be read: ",
    ),
    "nvidia-ctk fails": (
        {TOOLKIT: part("devices", "nvidia-ctk: error while loading shared libraries\nexit status 127\n")},
        {},
        [("containers.gpu_runtime", "node", "fail", "none")],
        "CDI specifications cannot be read: nvidia-ctk: error while loading",
    ),
    "nvidia-ctk hangs": (
        {TOOLKIT: part("devices", "exit status 124\n")},
        {},
        [("containers.gpu_runtime", "node", "unknown", "none")],
        "nvidia-ctk cdi list gave no answer within 20 s",
    ),
    "a CDI specification from before the driver's upgrade": (
        {TOOLKIT: put(".so.550.163.01", ".so.535.183.01")},
        {},
        [("containers.gpu_runtime", "node", "fail", "none")],
        f"{SPECIFICATION} is of driver 535.183.01",
    ),
    "a CDI specification of another place is stale": (
        {TOOLKIT: put(f"{SPECIFICATION}:libcuda", "/var/run/cdi/nvidia.yaml:libcuda.so.535.183.01\n" + SPECIFICATION
                      + ":libcuda")},
        {},
        [("containers.gpu_runtime", "node", "fail", "none")],
        "/var/run/cdi/nvidia.yaml is of driver 535.183.01",
    ),
    "an old CDI specification behind the one that counts": (
        {TOOLKIT: put(f"{SPECIFICATION}:libcuda.",
                      f"{SPECIFICATION}:libcuda.so.535.183.01\n/var/run/cdi/nvidia.yaml:libcuda.")},
        {},
        [("containers.gpu_runtime", "node", "warn", "none")],
        f"{SPECIFICATION} is of driver 535.183.01, 550.163.01",
    ),
    "a CDI specification that mounts nothing of the driver": (
        {TOOLKIT: part("libraries", "")},
        {},
        [("containers.gpu_runtime", "node", "fail", "none")],
        "no CDI specification names a library of the driver",
    ),
    "a CDI specification from before a GPU was replaced": (
        {TOOLKIT: put("nvidia.com/gpu=7\n", "")},
        {},
        [("containers.gpu_runtime", "node", "fail", "none")],
        "CDI specifications have 7 GPUs",
    ),
    "bug 109: no links in /dev/char, and a job has GPUs": (
        {RUNNING: part("nodes", unlinked("/dev/nvidia0", "/dev/nvidiactl"))},
        {},
        [("containers.gpu_kept", "node", "warn", "none")],
        "takes the GPUs from the containers job: no link in /dev/char to /dev/nvidia0, /dev/nvidiactl",
    ),
    "bug 109: no links in /dev/char, and nothing runs": (
        {RUNNING: both(part("nodes", unlinked("/dev/nvidia-uvm")), part("list", "\nexit status 0\n"),
                       part("containers", ""))},
        {},
        [("containers.gpu_kept", "node", "warn", "none")],
        "takes the GPUs from containers: no link in /dev/char to /dev/nvidia-uvm",
    ),
    "an exporter without rights, and profiling metrics": (
        {RUNNING: part("containers", container("dcgm", "nvcr.io/nvidia/k8s/dcgm-exporter:4.2.3-4.1.3-ubuntu22.04")
                       + container("job"))},
        {"packages.dcgm_exporter.profiling_metrics": True},
        [("containers.rights", "container dcgm", "warn", "none")],
        "nvcr.io/nvidia/k8s/dcgm-exporter:4.2.3-4.1.3-ubuntu22.04 runs without CAP_SYS_ADMIN",
    ),
    "a profiler without rights, and counters for root only": (
        {RUNNING: part("containers", container("p", "nvcr.io/nvidia/devtools/nsight-compute:2025.1")
                       + container("job"))},
        {"packages.nvidia_driver.profiling_for_all_users": False},
        [("containers.rights", "container p", "warn", "none")],
        "nvcr.io/nvidia/devtools/nsight-compute:2025.1 runs without CAP_SYS_ADMIN",
    ),
    "no GPU container starts": (
        {START: part("answer", GPUS_LOST_HERE)},
        {},
        [("containers.gpu_start", "node", "fail", "none")],
        'did not start: docker: Error response from daemon: could not select device driver "" with capabilities',
    ),
    "a GPU container hangs": (
        {START: part("answer", "exit status 124\n")},
        {},
        [("containers.gpu_start", "node", "fail", "none")],
        "did not start: it did not end within 90 s",
    ),
    "a GPU container sees fewer GPUs": (
        {START: lambda text: "".join(line for line in text.splitlines(True) if not line.startswith("GPU 7"))},
        {},
        [("containers.gpu_start", "node", "fail", "none")],
        "sees 7 GPUs of 8; missing: GPU-",
    ),
    "nvidia-smi says no UUID of a GPU": (
        {"nvidia_smi.query": lambda text: re.sub(r"\t*<uuid>.*</uuid>\n", "", text, count=1)},
        {},
        [("containers.gpu_start", "node", "unknown", "none")],
        "UUID",
    ),
    "no image is on the node": (
        {START: both(part("image", "\n"), part("answer", "exit status 0\n"))},
        {},
        [("containers.gpu_start", "node", "unknown", "none")],
        "no image is on the node",
    ),
    "bug 109: a job has lost its GPUs": (
        {INSIDE: part("container /job", LOST)},
        {},
        [("containers.gpu_inside", "container job", "fail", "none")],
        "its GPUs were taken away while it ran: Failed to initialize NVML: Unknown Error",
    ),
    "nvidia-smi hangs in a job": (
        {INSIDE: part("container /job", "exit status 124\n")},
        {},
        [("containers.gpu_inside", "container job", "unknown", "none")],
        "nvidia-smi in it: no answer within 20 s",
    ),
    "docker ps hangs": (
        {INSIDE: lambda _text: output(list="exit status 124\n")},
        {},
        [("containers.gpu_inside", "node", "unknown", "none")],
        "docker ps: no answer within 20 s",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", FAULTS.values(), ids=FAULTS)
def test_a_fault_is_found_and_nothing_else(case: tuple[dict[str, Change], dict[str, Any], list[Trouble], str]) -> None:
    changes, wanted, expected, words = case
    findings = run(changes, wanted)
    assert sorted(troubles(findings)) == sorted(expected)
    first = next(one for one in findings if one.status not in ("ok", "skipped") and one.check == expected[0][0])
    assert words in first.observed, first.observed
    assert first.advice or first.status == "unknown"
    assert len(first.observed) < 300 and "\n" not in first.observed


OTHERWISE_RIGHT: dict[str, tuple[dict[str, Change], dict[str, Any]]] = {
    "the profile leaves the engine its choice": (
        {ENGINE: both(put('"overlay2"', '"btrfs"'), put('"cgroup_version":"2"', '"cgroup_version":"1"'))},
        {"platform.docker.storage_driver": None, "platform.docker.cgroup_version": None},
    ),
    "the profiled version, with Debian's own behind it": (
        {HOLDS: put("end of", "/etc/apt/preferences.d/gpufleet-docker:Pin: version 5:20.10.24*\nend of")},
        {"packages.docker.version": "20.10.24"},
    ),
    "warnings of the client in front": (
        {ENGINE: put('{"version"', 'WARNING: Error loading config file\n{"version"')},
        {},
    ),
    "devices by UUID only": (
        {TOOLKIT: part("devices", "".join(f"nvidia.com/gpu=GPU-{number}\n" for number in range(8)) + DONE)},
        {},
    ),
    "devices by number and by UUID, and MIG devices": (
        {TOOLKIT: put("nvidia.com/gpu=all", "nvidia.com/gpu=GPU-1\nnvidia.com/gpu=0:1\nnvidia.com/gpu=all")},
        {},
    ),
    "systemd does not keep the control groups": (
        {ENGINE: put('"cgroup_driver":"systemd"', '"cgroup_driver":"cgroupfs"'),
         RUNNING: part("nodes", unlinked("/dev/nvidia0"))},
        {},
    ),
    "the exporter has the rights": (
        {RUNNING: part("containers", container("dcgm", "dcgm-exporter:4", cap_add='["CAP_SYS_ADMIN"]')
                       + container("all", "nvidia/dcgm:4.2.3", privileged="true"))},
        {"packages.dcgm_exporter.profiling_metrics": True},
    ),
    "the exporter needs no rights": ({RUNNING: put("squid:6", "nvcr.io/nvidia/k8s/dcgm-exporter:4.2.3")}, {}),
    "no container runs": ({RUNNING: both(part("list", "\nexit status 0\n"), part("containers", ""))}, {}),
    "a container that ended in between": ({RUNNING: put(container("proxy", "squid:6"), "")}, {}),
    "a job without nvidia-smi": (
        {INSIDE: put("end of", "== container /a\n" + fixture("docker/exec-without-program.txt")
                     + "exit status 126\nend of")},
        {},
    ),
    "no container with GPUs": ({INSIDE: lambda _text: output(list="exit status 0\n")}, {}),
    "the exporter is an image": (
        {HOLDS: put("hold installed datacenter-gpu-manager-exporter\n", "")},
        {"packages.dcgm_exporter.run_as": "container"},
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", OTHERWISE_RIGHT.values(), ids=OTHERWISE_RIGHT)
def test_what_is_right_in_another_way_passes(case: tuple[dict[str, Change], dict[str, Any]]) -> None:
    assert troubles(run(*case)) == []


@pytest.mark.parametrize(
    ("line", "by_hook"),
    [
        (container("x"), False),
        (container("x", requests=ALL_GPUS), True),
        (container("x", runtime='"nvidia"'), True),
        (container("x", requests='[{"Driver":"cdi","DeviceIDs":["nvidia.com/gpu=all"]}]'), False),
        (container("x", requests=ALL_GPUS, devices='[{"PathOnHost":"/dev/nvidia0"}]'), False),
        (container("x", runtime='"nvidia"', privileged="true"), False),
    ],
)
def test_which_containers_a_reload_takes_gpus_from(line: str, by_hook: bool) -> None:
    answer = result(RUNNING, output(list="e9\nexit status 0\n", containers=line, nodes=""))
    (found,) = container_checks.parse_containers(answer).running
    assert found.by_hook is by_hook


def test_the_recorded_containers() -> None:
    lines = fixture("docker/inspect-20.10.24.txt")
    answer = result(RUNNING, output(list="e9\n06\nexit status 0\n", containers=lines, nodes=""))
    found = container_checks.parse_containers(answer).running
    assert [(one.name, one.admin) for one in found] == [("exporter", True), ("job", False)]


@pytest.mark.parametrize(
    ("parse", "text"),
    [
        (parse_engine, output(unit="ActiveState=active\n", info="{}\nexit status 0\n", log__options="")),
        (parse_engine, output(unit="", info="exit status 0\n", log__options="")),
        (container_checks.parse_containers, output(list="e9\nexit status 0\n", containers="", nodes="")),
        (container_checks.parse_containers, output(list="exit status 0\n", containers='{"name":1}\n', nodes="")),
        (container_checks.parse_containers, output(list="exit status 0\n", containers="", nodes="/dev/nvidia0\n")),
        (container_checks.parse_containers, output(list="permission denied\nexit status 1\n", containers="", nodes="")),
        (container_gpu_checks.parse_start, output(image="x:1\n", answer="No devices were found\nexit status 0\n")),
        (container_gpu_checks.parse_inside, output(list="\n")),
    ],
)
def test_what_is_odd_is_refused(parse: Any, text: str) -> None:
    with pytest.raises(ParseError):
        parse(ProbeResult("x", "done", 0, text, "", 0.1, 0.0, True))


def test_the_engine_is_read_as_recorded() -> None:
    text = output(
        unit="LoadState=loaded\nActiveState=active\nResult=success\n",
        info=fixture("docker/info-20.10.24.json") + "exit status 0\n",
        log__options='"max-size" : "10m"\n',
        apparmor="none\n",
    )
    found = parse_engine(result(ENGINE, text))
    assert isinstance(found, Engine)
    assert (found.confines, found.parser) == (False, "")
    assert (found.version, found.runtimes >= {"runc"}, found.log_options) == (
        "20.10.24+dfsg1",
        True,
        {"max-size": "10m"},
    )


@pytest.mark.parametrize(
    ("running", "wanted", "same"),
    [("28.3.3", "28.3.3", True), ("28.3.30", "28.3.3", False), ("20.10.24+dfsg1", "20.10.24", True), ("1", None, True)],
)
def test_a_version_is_the_profiled_one(running: str, wanted: str | None, same: bool) -> None:
    assert is_version(running, wanted) is same


NOT_MANAGED = {f"packages.{name}.manage": False for name in ("docker", "container_toolkit", "dcgm", "dcgm_exporter")}


def test_what_is_not_managed_is_not_judged() -> None:
    assert statuses(run({ENGINE: part("info", NO_ENGINE)}, NOT_MANAGED)) == {check.id: {"skipped"} for check in OURS}


def test_a_toolkit_for_another_engine_than_docker() -> None:
    """As under Kubernetes: specification and packages are judged, what Docker knows is not."""
    found = run({ENGINE: part("info", NO_ENGINE)}, {"packages.docker.manage": False})
    assert troubles(found) == []
    skipped = {one.check for one in found if one.status == "skipped"}
    of_docker = {"docker.engine", "docker.holds", "containers.rights", "containers.gpu_kept"}
    assert skipped == {*of_docker, "containers.gpu_start", "containers.gpu_inside"}
    said = next(one.observed for one in found if one.check == "containers.gpu_runtime")
    assert said == "toolkit 1.17.8-1, CDI specification of driver 550.163.01 with 8 GPUs"


def test_a_node_without_gpus_is_judged_by_its_engine_alone() -> None:
    """As the lab: the engine is there, and what is about GPUs is skipped."""
    changes: dict[str, Any] = {TOOLKIT: both(part("devices", "exit status 0\n"), part("libraries", ""))}
    found = statuses(run(changes, {"limits.gpu": None}))
    judged = {name for name, said in found.items() if said == {"ok"}}
    holds = {"docker.holds", "containers.toolkit_holds", "dcgm.holds", "dcgm_exporter.holds"}
    assert judged == {"docker.engine", "containers.gpu_runtime", "containers.rights", *holds}
    assert all(said == {"skipped"} for name, said in found.items() if name not in judged)


def test_the_captures_hold_no_secret() -> None:
    """Neither the environment of containers nor the proxies of the engine are asked for."""
    for module in (docker_engine, container_checks, container_gpu_checks):
        for probe in module.PROBES:
            text = " ".join(probe.argv)
            assert ".Config.Env" not in text and "Proxy" not in text and "{{json .}}" not in text


def test_what_enters_jobs_or_starts_containers_is_heavy() -> None:
    heavy = {probe.id for probe in PROBES if probe.heavy}
    assert heavy == {START, INSIDE, "dcgm.diag"}
    for probe in PROBES:
        text = " ".join(probe.argv)
        entering = "docker run" in text or "docker exec" in text or "dcgmi diag" in text
        assert not entering or probe.heavy, probe.id
    assert counted("x")[0] == "bash"
