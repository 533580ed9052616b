# SPDX-License-Identifier: Apache-2.0
"""The scripts behind the probes, run by the real bash over stand-ins for the tools: what they print is read back."""

import http.server
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.gpufleet.health import (
    container_checks,
    container_gpu_checks,
    container_toolkit_check,
    dcgm_checks,
    dcgm_exporter_check,
    docker_engine,
)
from ansible.module_utils.gpufleet.health.probe import ParseError, Probe
from ansible.module_utils.gpufleet.health.probe_runner import run_probes

from tests.health_node_containers import ALL_GPUS, container, fixture, healthy

GPU_LIST = "GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-1d7fb1a1-8f4e-4f0c-9a65-7e3e1d4fb6aa)"
# Each answer is a file beside the stand-in; the arguments that are new to it end it with 9.
DOCKER = """\
case "$*" in
  "info --format "*) cat info ;;
  "ps --quiet --no-trunc") [ -e ids ] && cat ids ;;
  "inspect --format {{if or "*) echo; echo "e9 /job" ;;
  "inspect --format "*" e9 06") cat inspect ;;
  "images --format "*) cat images ;;
  "run --rm --pull never --name gpufleet-gpu-start-"*" --entrypoint nvidia-smi "*" -L") echo "$*" >>ran; cat list ;;
  "rm --force gpufleet-gpu-start-"*) echo "$*" >>ran ;;
  "exec e9 nvidia-smi -L") echo 'Failed to initialize NVML: Unknown Error'; exit 255 ;;
  *) echo "unexpected: $*" >&2; exit 9 ;;
esac
"""
DCGMI = """\
case "$*" in
  -v) cat version ;;
  "discovery -l") cat gpus ;;
  "health -f -j") cat watches ;;
  "health -c -j") cat health ;;
  *) exit 9 ;;
esac
"""
SYSTEMCTL = """\
case "$*" in
  *ActiveEnterTimestampMonotonic*) printf '21000000\\n\\n17000000\\n' ;;
  *ExecStart*) cat execstart ;;
  *) printf '%s\\n' LoadState=loaded ActiveState=active Result=success ;;
esac
"""
NVIDIA_CTK = """\
[ "$*" = "cdi list" ] || exit 9
echo 'time="2026-11-30T19:53:36Z" level=info msg="Found 2 CDI devices"' >&2
printf 'nvidia.com/gpu=%s\\n' 0 all
"""
DPKG_QUERY = """\
case "$*" in
  *exporter) echo 'installed 4.1.1-1' ;;
  *) printf '%s installed 1.17.8-1\\n' libnvidia-container1 nvidia-container-toolkit; exit 1 ;;
esac
"""


class Node:
    """A folder with the stand-ins, in front of PATH, and their answers."""

    def __init__(self, root: Path) -> None:
        self.root = root
        scripts = {"docker": DOCKER, "dcgmi": DCGMI, "systemctl": SYSTEMCTL, "nvidia-ctk": NVIDIA_CTK}
        for name, script in {**scripts, "dpkg-query": DPKG_QUERY, "nvidia-container-runtime": ""}.items():
            self.tool(name, script)
        self.answer("info", fixture("docker/info-20.10.24.json"))
        self.answer("ids", "e9\n06\n")
        self.answer("inspect", container("job", requests=ALL_GPUS) + container("proxy", "squid:6"))
        self.answer("images", "<none>:<none>\nubuntu:24.04\nteam/train:7\nnvidia/cuda:12.4.1-base\n")
        self.answer("list", GPU_LIST + "\n")
        gpus = healthy("550.163.01", GPU_LIST, ("19", "3B"))["dcgm.host_engine"].partition("== gpus\n")[2]
        self.answer("gpus", gpus.partition("exit status")[0])
        self.answer("version", fixture("dcgm/version-4.2.3.txt"))
        self.answer("watches", fixture("dcgm/health-watches.txt"))
        self.answer("health", fixture("dcgm/health-healthy.json"))

    def tool(self, name: str, script: str) -> None:
        path = self.root / name
        path.write_text(f"#!/bin/bash\ncd {self.root}\n{script}\n")
        path.chmod(0o755)

    def answer(self, name: str, text: str) -> None:
        (self.root / name).write_text(text)

    def ask(self, module: Any, number: int = 0) -> Any:
        """What a probe's parser makes of the answer."""
        probe: Probe = module.PROBES[number]
        result = run_probes([probe])[probe.id]
        assert result.outcome == "done", result
        return probe.parse(result)


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Node:
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    return Node(tmp_path)


def test_the_engine(node: Node) -> None:
    found = node.ask(docker_engine)
    assert (found.version, found.storage_driver, found.live_restore) == ("20.10.24+dfsg1", "vfs", True)


def test_a_hung_engine(node: Node) -> None:
    node.tool("timeout", "exit 124")
    found = node.ask(docker_engine)
    assert (found.hung, found.said) == (True, "docker.service is active: gave no answer within 20 s")
    with pytest.raises(ParseError, match="docker ps: gave no answer"):
        node.ask(container_checks)
    assert node.ask(dcgm_checks).hung
    with pytest.raises(ParseError, match="dcgmi health -f: no answer within 20 s"):
        node.ask(dcgm_checks, 1)


def test_the_engine_is_down(node: Node) -> None:
    answer = fixture("docker/info-no-engine-28.2.2.txt")
    node.tool("docker", f"cat <<'END'\n{answer}END\nexit 1")
    assert "Cannot connect to the Docker daemon" in node.ask(docker_engine).said


def test_running_containers(node: Node) -> None:
    found = node.ask(container_checks)
    assert [(one.name, one.by_hook) for one in found.running] == [("job", True), ("proxy", False)]


def test_no_running_container(node: Node) -> None:
    node.answer("ids", "")
    assert node.ask(container_checks).running == ()


def test_a_gpu_container_is_started_from_an_image_for_gpus_and_removed(node: Node) -> None:
    found = node.ask(container_gpu_checks)
    assert found.image == "nvidia/cuda:12.4.1-base"
    assert found.gpus == {"GPU-1d7fb1a1-8f4e-4f0c-9a65-7e3e1d4fb6aa"}
    started, removed = (node.root / "ran").read_text().splitlines()
    assert "--gpus all" in started and "--network none" in started
    assert removed.split()[-1] in started.split()


@pytest.mark.parametrize(
    ("images", "first"),
    [("team/a:1\ndebian:12\n", "debian:12"), ("team/a:1\nnvcr.io/x:1\n", "nvcr.io/x:1"), ("a:1\nb:1\n", "a:1")],
)
def test_the_next_best_image(node: Node, images: str, first: str) -> None:
    node.answer("images", images)
    assert node.ask(container_gpu_checks).image == first


def test_nothing_is_started_without_an_image(node: Node) -> None:
    node.answer("images", "<none>:<none>\n")
    assert node.ask(container_gpu_checks).image == ""
    assert not (node.root / "ran").exists()


def test_a_container_that_lost_its_gpus(node: Node) -> None:
    assert node.ask(container_gpu_checks, 1) == {
        "container job": ("lost", "Failed to initialize NVML: Unknown Error"),
    }


def test_the_toolkit(node: Node) -> None:
    found = node.ask(container_toolkit_check)
    assert (found.runtime, found.devices, found.fault) == (True, ("0", "all"), "")
    assert found.packages == {"libnvidia-container1": "1.17.8-1", "nvidia-container-toolkit": "1.17.8-1"}


def test_the_host_engine(node: Node) -> None:
    found = node.ask(dcgm_checks)
    assert (found.client, found.engine) == ("4.2.3", "4.2.3")
    assert found.gpus == {"0": "0000:19:00.0", "1": "0000:3b:00.0"}


def test_health_of_the_host_engine(node: Node) -> None:
    found = node.ask(dcgm_checks, 1)
    assert found.watches == {"pcie", "memory", "inforom", "thermal", "nvlink"} and found.overall == "Healthy"


def test_health_that_is_not_watched(node: Node) -> None:
    node.tool("dcgmi", "[ \"$2\" = -f ] && cat watches || { echo 'Error: Health watches not enabled.'; exit 255; }")
    assert node.ask(dcgm_checks, 1).overall is None


# As the templates of the exporter lay it out (internal/pkg/rendermetrics/render_metrics.go).
SAMPLES = """\
# HELP DCGM_FI_DEV_XID_ERRORS Value of the last XID error encountered.
# TYPE DCGM_FI_DEV_XID_ERRORS gauge
DCGM_FI_DEV_XID_ERRORS{gpu="0",UUID="GPU-1d7f",pci_bus_id="00000000:19:00.0",device="nvidia0",hostname="gpu-001"} 0
DCGM_FI_DEV_XID_ERRORS{gpu="1",UUID="GPU-1d70",pci_bus_id="00000000:3B:00.0",device="nvidia1",hostname="gpu-001"} 79
DCGM_EXP_XID_ERRORS_COUNT{gpu="0",UUID="GPU-1d7f",hostname="gpu-001",window_size_in_ms="300000"} 0
DCGM_FI_DEV_GPU_TEMP{gpu="0",UUID="GPU-1d7f",hostname="gpu-001"} 31
DCGM_FI_DEV_CLOCKS_EVENT_REASONS{gpu="0",UUID="GPU-1d7f",hostname="gpu-001"} 9223372036854775794
"""


class _Exporter(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200 if self.path == "/metrics" else 404)
        self.end_headers()
        self.wfile.write(SAMPLES.encode())

    def log_message(self, *_words: object) -> None:
        pass


@pytest.fixture
def port() -> Iterator[int]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Exporter) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield server.server_address[1]
        server.shutdown()
        thread.join(10)


START_LINES: dict[str, Callable[[int], str]] = {
    "as the role's unit": lambda port: (
        "ExecStart={ path=/usr/bin/dcgm-exporter ; argv[]=/usr/bin/dcgm-exporter -f /etc/gpufleet/dcgm-exporter.csv"
        f" -a :{port} -r localhost:5555 ; ignore_errors=no ; pid=17 }}\nEnvironment=\n"
    ),
    "long": lambda port: f"ExecStart={{ argv[]=/usr/bin/dcgm-exporter --address=127.0.0.1:{port} ; pid=17 }}\n",
    "environment": lambda port: (
        f"ExecStart={{ argv[]=/usr/bin/dcgm-exporter }}\nEnvironment=DCGM_EXPORTER_LISTEN=:{port}\n"
    ),
}


@pytest.mark.parametrize("line", START_LINES.values(), ids=START_LINES)
def test_the_exporter_is_asked_where_its_unit_says(node: Node, port: int, line: Callable[[int], str]) -> None:
    node.answer("execstart", line(port))
    found = node.ask(dcgm_exporter_check)
    assert found.asked.endswith(f":{port}") and not found.refused and not found.outlived
    assert found.version == "4.1.1-1"
    assert found.metrics == {
        "DCGM_FI_DEV_XID_ERRORS": {"0", "1"},
        "DCGM_EXP_XID_ERRORS_COUNT": {"0"},
        "DCGM_FI_DEV_CLOCKS_EVENT_REASONS": frozenset(),
    }


def test_nobody_listens(node: Node, port: int) -> None:
    node.answer("execstart", START_LINES["long"](1))
    assert node.ask(dcgm_exporter_check).refused == "Connection refused"
