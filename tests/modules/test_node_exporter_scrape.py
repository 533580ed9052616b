# SPDX-License-Identifier: Apache-2.0
"""node_exporter_scrape: the answer of a real HTTP server, good and bad."""

import http.server
import threading

import pytest

GOOD = """node_exporter_build_info{branch="HEAD",goversion="go1.24",version="1.9.0"} 1
node_scrape_collector_success{collector="cpu"} 1
node_scrape_collector_success{collector="processes"} 1
node_scrape_collector_success{collector="nfs"} 0
node_textfile_scrape_error 0
"""


@pytest.fixture
def exporter():
    """exporter(text, status=200) -> port of a server that answers /metrics with it."""
    servers = []

    def start(text, status=200):
        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                self.send_response(status)
                self.end_headers()
                self.wfile.write(text.encode())

            def log_message(self, *arguments):
                pass

        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        servers.append(server)
        return server.server_port

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


@pytest.mark.parametrize("address", ["", "0.0.0.0", "127.0.0.1"])
def test_a_good_answer_passes_even_with_a_proxy_in_the_environment(run_module, exporter, address, monkeypatch):
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    result = run_module("node_exporter_scrape", address=address, port=exporter(GOOD), version="1.9.0", timeout_s=2)
    assert (result["changed"], result["version"]) == (False, "1.9.0")
    assert "gpufleet" not in result


@pytest.mark.parametrize(
    ("text", "status", "expected"),
    [
        (GOOD, 500, "does not answer: HTTP Error 500"),
        ("<html>sign in</html>", 200, "is no node exporter"),
        ("", 200, "is no node exporter"),
        (GOOD.replace("1.9.0", "1.8.2"), 200, "reports version 1.8.2, expected 1.9.0"),
        (GOOD.replace("scrape_error 0", "scrape_error 1"), 200, "could not read all files"),
        (GOOD.replace("node_textfile", "other"), 200, "textfile collector is off"),
    ],
)
def test_a_bad_answer_fails_but_not_in_check_mode(run_module, exporter, text, status, expected):
    arguments = {"port": exporter(text, status), "version": "1.9.0", "timeout_s": 0}
    result = run_module("node_exporter_scrape", **arguments)
    assert result["failed"] and expected in result["msg"] and "journalctl" in result["next_step"]
    checked = run_module("node_exporter_scrape", check=True, **arguments)
    assert not checked.get("failed") and expected in checked["fault"]


def test_nobody_listens(run_module):
    result = run_module("node_exporter_scrape", port=9, version="1.9.0", timeout_s=0)
    assert result["failed"] and "http://127.0.0.1:9/metrics does not answer" in result["msg"]


def test_a_wanted_collector_without_data_needs_attention_and_an_unwanted_one_not(run_module, exporter):
    arguments = {"port": exporter(GOOD), "version": "1.9.0", "timeout_s": 1}
    result = run_module("node_exporter_scrape", collectors_enabled=["processes", "nfs"], **arguments)
    (line,) = result["gpufleet"]["attention"]
    assert line["severity"] == "warn" and "collector nfs" in line["reason"] and "processes" not in line["reason"]
