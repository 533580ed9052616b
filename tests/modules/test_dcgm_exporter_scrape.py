# SPDX-License-Identifier: Apache-2.0
"""dcgm_exporter_scrape and dcgm_exporter_image: a real HTTP server, good and bad; a container engine by a double."""

import http.server
import threading
from collections.abc import Callable, Iterator

import pytest

from tests.modules.conftest import Commands, RunModule, load_module

METRICS = [
    {"field": "DCGM_FI_DEV_GPU_TEMP", "type": "gauge"},
    {"field": "DCGM_FI_PROF_SM_ACTIVE", "type": "gauge"},
    {"field": "DCGM_FI_DEV_MEMORY_TEMP", "type": "gauge", "optional": True},
    {"field": "DCGM_FI_DRIVER_VERSION", "type": "label"},
]
GOOD = """# TYPE DCGM_FI_DEV_GPU_TEMP gauge
DCGM_FI_DEV_GPU_TEMP{gpu="0"} 34
DCGM_FI_DEV_GPU_TEMP{gpu="1"} 35
DCGM_FI_PROF_SM_ACTIVE{gpu="0"} 0.5
"""
LOG = """level=WARN msg="Skipping line 20 ('DCGM_FI_PROF_SM_ACTIVE'): metric not enabled"\n"""
Start = Callable[..., int]


@pytest.fixture
def exporter() -> Iterator[Start]:
    """exporter(text, status=200) -> port of a server that answers /metrics with it."""
    servers = []

    def start(text: str, status: int = 200) -> int:
        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.send_response(status)
                self.end_headers()
                self.wfile.write(text.encode())

            def log_message(self, *_arguments: object) -> None:
                pass

        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        servers.append(server)
        return server.server_port

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


@pytest.fixture(autouse=True)
def log(commands: Commands) -> None:
    commands.answer("journalctl --unit nvidia-dcgm-exporter.service *", LOG)
    commands.answer("systemctl show *", "ActiveState=activating\nSubState=auto-restart\nResult=exit-code\n")


def wanted(port: int, gpus: int = 2) -> dict[str, object]:
    return {"port": port, "metrics": METRICS, "gpus": gpus, "unit": "nvidia-dcgm-exporter.service", "timeout_s": 0}


def test_a_good_answer_passes_even_with_a_proxy_in_the_environment(
    run_module: RunModule, exporter: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    result = run_module("dcgm_exporter_scrape", **wanted(exporter(GOOD)))
    assert not result.get("failed") and result["changed"] is False, result
    assert result["samples"]["DCGM_FI_DEV_GPU_TEMP"] == 2 and result["absent"] == ["DCGM_FI_DEV_MEMORY_TEMP"]
    assert "gpufleet" not in result


def test_without_a_gpu_nothing_is_asked(run_module: RunModule) -> None:
    assert run_module("dcgm_exporter_scrape", **wanted(9, gpus=0))["changed"] is False


@pytest.mark.parametrize(
    ("text", "status", "said"),
    [
        (GOOD.replace("DCGM_FI_PROF_SM_ACTIVE", "OTHER"), 200, "does not serve DCGM_FI_PROF_SM_ACTIVE"),
        ("", 200, "answers without a single metric: the exporter sees no GPU"),
        (GOOD, 500, "does not answer: HTTP Error 500"),
        ("<html>sign in</html>", 200, "is no DCGM exporter"),
    ],
)
def test_bug_094_a_bad_answer_fails_with_the_reason_of_the_log_but_not_in_check_mode(
    run_module: RunModule, exporter: Start, text: str, status: int, said: str
) -> None:
    port = exporter(text, status)
    result = run_module("dcgm_exporter_scrape", **wanted(port))
    assert result["failed"] and said in result["msg"] and "metric not enabled" in result["msg"], result
    assert "SubState=auto-restart" in result["msg"]
    assert "journalctl" in result["next_step"]
    checked = run_module("dcgm_exporter_scrape", check=True, **wanted(port))
    assert not checked.get("failed") and said in checked["fault"]


def test_nobody_listens(run_module: RunModule) -> None:
    result = run_module("dcgm_exporter_scrape", **wanted(9))
    assert result["failed"] and "http://127.0.0.1:9/metrics does not answer" in result["msg"]


def test_too_few_gpus_and_no_value_as_a_number_need_attention(run_module: RunModule, exporter: Start) -> None:
    blank = GOOD + 'DCGM_FI_DEV_MEMORY_TEMP{gpu="0"} 9223372036854775794\n'
    lines = run_module("dcgm_exporter_scrape", **wanted(exporter(blank), gpus=8))["gpufleet"]["attention"]
    assert ["metrics of 2 GPUs, the PCI bus has 8" in lines[0]["reason"], "MEMORY_TEMP" in lines[1]["reason"]] == [
        True,
        True,
    ]


IMAGE = {"image": "mirror.example.com/dcgm-exporter:4.5.3-4.8.2"}


def test_an_image_that_is_there_is_not_fetched(run_module: RunModule, commands: Commands) -> None:
    commands.answer("docker image inspect *", "sha256:1\n")
    assert run_module("dcgm_exporter_image", **IMAGE)["changed"] is False
    assert len(commands.calls("docker")) == 1


@pytest.mark.parametrize("check", [False, True])
def test_an_image_that_is_missing_is_fetched(run_module: RunModule, commands: Commands, check: bool) -> None:
    commands.answer("docker image inspect *", err="Error: No such image", rc=1)
    commands.answer("docker pull *")
    assert run_module("dcgm_exporter_image", check=check, **IMAGE)["changed"] is True
    assert len(commands.calls("docker")) == (1 if check else 2)


def test_a_registry_and_an_engine_that_do_not_answer(
    run_module: RunModule, commands: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands.answer("docker image inspect *", err="Error: No such image", rc=1)
    commands.answer("docker pull *", err="dial tcp: lookup mirror.example.com: no such host", rc=1)
    result = run_module("dcgm_exporter_image", **IMAGE)
    assert result["failed"] and "no such host" in result["msg"] and "registry" in result["next_step"]
    commands.table.clear()
    commands.answer("docker image inspect *", err="Cannot connect to the Docker daemon at unix:///x", rc=1)
    result = run_module("dcgm_exporter_image", **IMAGE)
    assert result["failed"] and "container engine does not answer" in result["msg"]
    (commands.folder / "docker").unlink()
    monkeypatch.setenv("PATH", str(commands.folder))
    module = load_module("dcgm_exporter_image")
    assert run_module(module, **IMAGE)["failed"] and run_module(module, check=True, **IMAGE)["changed"]
