# SPDX-License-Identifier: Apache-2.0
"""node_exporter_binary: sources, their change, pins by hash, and refusals before anything that runs is touched."""

import hashlib
import http.server
import io
import os
import socket
import tarfile
import threading
from pathlib import Path

import pytest

from tests.modules.conftest import load_module

QUERY = "dpkg-query --show --showformat=${db:Status-Abbrev}|${Version}* prometheus-node-exporter"
HELP = """usage: node_exporter [<flags>]
      --[no-]collector.cpu.info  Enables metric cpu_info
      --[no-]collector.rapl     Enable the rapl collector (default: enabled).
      --[no-]collector.processes
                                Enable the processes collector (default: disabled).
"""


def exporter_script(version, collectors=HELP):
    """A stand-in for the binary, which answers --version and --help as it does."""
    return (
        f"#!/bin/sh\ncase $1 in --version) echo 'node_exporter, version {version} (branch: HEAD)';;\n"
        f"--help) cat >&2 <<'END'\n{collectors}END\n;; esac\n"
    ).encode()


def tarball_of(version, content=None):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for name, data in (("LICENSE", b"text"), ("node_exporter", content or exporter_script(version))):
            member = tarfile.TarInfo(f"node_exporter-{version}.linux-amd64/{name}")
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return buffer.getvalue()


@pytest.fixture
def mirror(tmp_path):
    """mirror(name, bytes) -> (url, sha256), served on the loopback address."""
    folder = tmp_path / "mirror"
    folder.mkdir()

    class Handler(http.server.SimpleHTTPRequestHandler):
        def __init__(self, *arguments, **more):
            super().__init__(*arguments, directory=str(folder), **more)

        def log_message(self, *arguments):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()

    def add(name, data):
        (folder / name).write_bytes(data)
        return f"http://127.0.0.1:{server.server_port}/{name}", hashlib.sha256(data).hexdigest()

    yield add
    server.shutdown()
    server.server_close()


@pytest.fixture
def node(tmp_path, commands, monkeypatch):
    """The module on a root of its own, with systemctl and dpkg from the table."""
    module = load_module("node_exporter_binary")
    monkeypatch.setattr(module, "MASK", str(tmp_path / "mask"))
    monkeypatch.setattr(module, "STAMP", str(tmp_path / "var" / "binary.json"))
    monkeypatch.setattr(module, "PACKAGE_BINARY", str(tmp_path / "packaged"))
    os.symlink(os.devnull, tmp_path / "mask")
    commands.answer("systemctl is-active --quiet prometheus-node-exporter.service", rc=3)
    commands.answer("systemctl mask --now prometheus-node-exporter.service")
    commands.answer("systemctl show --property=MainPID --value *", "0\n")
    return module


@pytest.fixture
def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


@pytest.fixture
def tarball_arguments(tmp_path, mirror, free_port):
    def make(version="1.11.1", **more):
        url, sha256 = mirror(f"node_exporter-{version}.linux-amd64.tar.gz", tarball_of(version))
        path = str(tmp_path / "node_exporter")
        arguments = {
            "source": "tarball",
            "version": version,
            "url": url,
            "sha256": sha256,
            "path": path,
            "port": free_port,
        }
        return {**arguments, **more}

    return make


def leftovers(tmp_path):
    return sorted(entry.name for entry in tmp_path.iterdir() if entry.name.startswith(".node_exporter"))


def test_a_tarball_is_installed_once(commands, run_module, node, tarball_arguments, tmp_path):
    commands.answer(QUERY, rc=1)
    arguments = tarball_arguments(collectors_enabled=["processes"], collectors_disabled=["rapl"])
    result = run_module(node, **arguments)
    assert (result["changed"], result["version"], result["path"]) == (True, "1.11.1", arguments["path"])
    assert os.stat(arguments["path"]).st_mode & 0o7777 == 0o755
    assert leftovers(tmp_path) == []
    # The second run needs no server any more.
    again = run_module(node, **{**arguments, "url": "http://127.0.0.1:9/gone.tar.gz"})
    assert again["changed"] is False


def test_check_mode_downloads_nothing(commands, run_module, node, tarball_arguments):
    commands.answer(QUERY, rc=1)
    arguments = {**tarball_arguments(), "url": "http://127.0.0.1:9/gone.tar.gz"}
    result = run_module(node, check=True, **arguments)
    assert (result["changed"], result["version"]) == (True, "1.11.1")
    assert not os.path.exists(arguments["path"])


def test_a_binary_that_was_replaced_is_found_though_it_says_the_right_version(
    commands, run_module, node, tarball_arguments
):
    commands.answer(QUERY, rc=1)
    arguments = tarball_arguments()
    run_module(node, **arguments)
    with open(arguments["path"], "ab") as file:
        file.write(b"# something else\n")
    assert run_module(node, **arguments)["changed"] is True
    assert run_module(node, **arguments)["changed"] is False


@pytest.mark.parametrize(
    ("spoil", "expected"),
    [
        ({"sha256": "0" * 64}, "expected " + "0" * 64),
        ({"url": "http://127.0.0.1:9/node_exporter.tar.gz"}, "could not be downloaded"),
        ({"collectors_enabled": ["proceses"]}, "no collector proceses (did you mean processes?)"),
        ({"collectors_disabled": ["tapestats"]}, "1.11.1 has no collector tapestats"),
        ({"collectors_enabled": ["cpu.info"]}, "no collector cpu.info"),
        ({"collectors_enabled": ["rapl"], "collectors_disabled": ["rapl"]}, "both enabled and disabled"),
        ({"supported_os": ["plan9 4"]}, "supported are: plan9 4"),
        ({"sha256": None}, "a tarball needs sha256"),
        ({"version": None}, "a tarball needs version"),
        ({"url": "/node_exporter.tar.gz"}, "set node_exporter_mirror_url"),
    ],
)
def test_a_refusal_leaves_the_old_binary_in_place(
    commands, run_module, node, tarball_arguments, tmp_path, spoil, expected
):
    commands.answer(QUERY, rc=1)
    old = tarball_arguments("1.8.2")
    run_module(node, **old)
    before = Path(old["path"]).read_bytes()
    result = run_module(node, **{**tarball_arguments(), **spoil})
    assert result["failed"] and expected in result["msg"]
    assert Path(old["path"]).read_bytes() == before
    assert leftovers(tmp_path) == []


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"<html>sign in</html>", "could not be unpacked"),
        (tarball_of("1.11.1")[:200], "could not be unpacked"),
        (tarball_of("1.8.2"), "holds node exporter 1.8.2, expected 1.11.1"),
        (tarball_of("1.11.1", b"\x7fELF but not for this machine"), "that does not run"),
    ],
)
def test_a_tarball_that_is_pinned_but_wrong_is_refused(
    commands, run_module, node, tarball_arguments, mirror, tmp_path, data, expected
):
    commands.answer(QUERY, rc=1)
    url, sha256 = mirror("wrong.tar.gz", data)
    result = run_module(node, **{**tarball_arguments(), "url": url, "sha256": sha256})
    assert result["failed"] and expected in result["msg"]
    assert not (tmp_path / "node_exporter").exists()
    assert leftovers(tmp_path) == []


def test_the_package_takes_the_place_of_a_tarball(commands, run_module, node, tarball_arguments, tmp_path, free_port):
    commands.answer(QUERY, rc=1)
    arguments = tarball_arguments()
    run_module(node, **arguments)
    commands.table.clear()
    commands.answer("systemctl is-active --quiet prometheus-node-exporter.service", rc=3)
    commands.answer(QUERY, "hi |1.9.0-1\n")
    (tmp_path / "packaged").write_bytes(exporter_script("1.9.0"))
    (tmp_path / "packaged").chmod(0o755)
    result = run_module(node, source="distro", path=arguments["path"], port=free_port)
    assert (result["changed"], result["version"], result["path"]) == (True, "1.9.0", str(tmp_path / "packaged"))
    assert not os.path.exists(arguments["path"])
    assert "1.11.1" in result["diff"]["before"] and "1.11.1" not in result["diff"]["after"]
    assert run_module(node, source="distro", path=arguments["path"], port=free_port)["changed"] is False


def test_a_tarball_takes_the_place_of_the_package(commands, run_module, node, tarball_arguments):
    for state in ("hi |1.9.0-1\n", "hi |1.9.0-1\n"):
        commands.answer(QUERY, state)
    commands.answer(QUERY, rc=1)
    commands.answer("apt-get * remove prometheus-node-exporter")
    result = run_module(node, **tarball_arguments())
    assert result["changed"] and len(commands.calls("apt-get")) == 1


def test_the_unit_of_the_distribution_is_stopped_and_masked(commands, run_module, node, tarball_arguments, tmp_path):
    commands.answer(QUERY, rc=1)
    arguments = tarball_arguments()
    run_module(node, **arguments)
    os.unlink(tmp_path / "mask")
    assert run_module(node, check=True, **arguments)["changed"] is True
    assert not any(" mask " in call for call in commands.calls("systemctl"))
    assert run_module(node, **arguments)["changed"] is True
    assert "systemctl mask --now prometheus-node-exporter.service" in commands.calls("systemctl")


def test_a_port_that_another_process_has_is_refused_with_its_name(commands, run_module, node, tarball_arguments):
    commands.answer(QUERY, rc=1)
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        result = run_module(node, **tarball_arguments(port=port))
    assert result["failed"]
    assert f"port {port} is in use by" in result["msg"] and f"(pid {os.getpid()})" in result["msg"]


def test_a_port_that_the_own_unit_has_is_fine(commands, run_module, node, tarball_arguments):
    commands.answer(QUERY, rc=1)
    commands.table[:] = [entry for entry in commands.table if "MainPID" not in entry["line"]]
    commands.answer("systemctl show --property=MainPID --value *", f"{os.getpid()}\n")
    with socket.socket() as own:
        own.bind(("127.0.0.1", 0))
        own.listen()
        result = run_module(node, **tarball_arguments(port=own.getsockname()[1]))
    assert result["changed"] and not result.get("failed")


def test_a_full_disk_says_so_and_leaves_nothing(commands, run_module, node, tarball_arguments, tmp_path, monkeypatch):
    commands.answer(QUERY, rc=1)

    def full(*arguments):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(node, "extract_file", full)
    result = run_module(node, **tarball_arguments())
    assert result["failed"] and "No space left on device" in result["msg"] and "df -h" in result["msg"]
    assert leftovers(tmp_path) == []
