#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Stand-in for dockerd: reads daemon.json as moby does, answers /info on its socket, and runs no container.

What it takes over at SIGHUP, what it refuses, and the texts of its refusals are those of moby (daemon/reload.go,
daemon/config/config.go). Containers that "run" are lines of /srv/dockerd/running; they outlive a restart only with live
restore, and an engine whose default runtime is unknown does not start.
"""

import http.server
import json
import os
import signal
import socket
import socketserver
import sys

VERSION = "0.0.0"
FILE = "/etc/docker/daemon.json"
SOCKET = "/run/docker.sock"
STATE = "/srv/dockerd"
KNOWN = """
bip bridge data-root debug default-runtime exec-opts features hosts iptables live-restore log-driver log-opts
proxies registry-mirrors runtimes shutdown-timeout storage-driver
"""
RELOADED = ("debug", "default-runtime", "live-restore", "registry-mirrors", "runtimes", "shutdown-timeout")


def read(path, flags):
    """The file's content; ends the program as dockerd does where it cannot be used."""
    try:
        with open(path) as file:
            found = json.loads(file.read() or "{}")
    except FileNotFoundError:
        return {}
    except ValueError as error:
        sys.exit(f"unable to configure the Docker daemon with file {path}: invalid JSON: {error}")
    unknown = [key for key in found if key not in KNOWN.split()]
    if unknown:
        said = f"the following directives don't match any configuration option: {', '.join(unknown)}"
        sys.exit(f"unable to configure the Docker daemon with file {path}: {said}")
    twice = [flag for flag in flags if flag in found or (flag == "H" and "hosts" in found)]
    if twice:
        said = "the following directives are specified both as a flag and in the configuration file"
        sys.exit(f"unable to configure the Docker daemon with file {path}: {said}: {', '.join(twice)}")
    return found


def check(config):
    """End the program where the configuration names what is not there."""
    runtime = config.get("default-runtime", "runc")
    if runtime not in ("runc", *config.get("runtimes", {})):
        sys.exit(f"failed to start daemon: specified default runtime '{runtime}' does not exist")


def running():
    """Names of the containers."""
    try:
        with open(f"{STATE}/running") as file:
            return file.read().split()
    except FileNotFoundError:
        return []


class Answer(http.server.BaseHTTPRequestHandler):
    """GET /info, /containers/json, /volumes."""

    config = {}

    def log_message(self, form, *words):
        """Nothing."""

    def address_string(self):
        """The client has none."""
        return "socket"

    def do_GET(self):
        config = Answer.config
        runtimes = {"runc": {"path": "runc"}, **config.get("runtimes", {})}
        answers = {
            "/info": {
                "ServerVersion": VERSION,
                "Driver": config.get("storage-driver", "overlay2"),
                "DockerRootDir": config.get("data-root", "/var/lib/docker"),
                "CgroupVersion": "2",
                "CgroupDriver": "systemd",
                "LiveRestoreEnabled": config.get("live-restore", False),
                "Runtimes": runtimes,
                "DefaultRuntime": config.get("default-runtime", "runc"),
                "RegistryConfig": {"Mirrors": config.get("registry-mirrors", [])},
                "Containers": len(running()),
                "ContainersRunning": len(running()),
                "Images": 0,
                "Swarm": {"LocalNodeState": "inactive"},
            },
            "/containers/json": [{"Id": name * 8, "Names": [f"/{name}"]} for name in running()],
            "/volumes": {"Volumes": None},
        }
        content = json.dumps(answers.get(self.path, {"message": "page not found"})).encode()
        self.send_response(200 if self.path in answers else 404)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)


class Server(socketserver.ThreadingUnixStreamServer):
    """On the socket that systemd has opened."""

    daemon_threads = True

    def __init__(self):
        super().__init__(SOCKET, Answer, bind_and_activate=False)
        self.socket.close()
        self.socket = socket.socket(fileno=3)


def flags_of(words):
    """Names of the flags, without the ones of this program's own start."""
    names = [word.lstrip("-").partition("=")[0] for word in words if word.startswith("-")]
    return [name for name in names if name not in ("validate", "config-file", "containerd", "version")]


def main():
    words = sys.argv[1:]
    if "--version" in words:
        print(f"Docker version {VERSION}, build stand-in")
        return
    path = next((word.partition("=")[2] for word in words if word.startswith("--config-file=")), FILE)
    config = read(path, flags_of(words))
    if "--validate" in words:
        print("configuration OK")
        return
    check(config)
    Answer.config = config

    def reload(_number, _frame):
        found = read(FILE, [])
        check({**Answer.config, **found})
        Answer.config = {**Answer.config, **{key: found[key] for key in RELOADED if key in found}}

    def stop(_number, _frame):
        if not Answer.config.get("live-restore") and os.path.exists(f"{STATE}/running"):
            os.unlink(f"{STATE}/running")
        os._exit(0)

    signal.signal(signal.SIGHUP, reload)
    signal.signal(signal.SIGTERM, stop)
    server = Server()
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notify:
        notify.sendto(b"READY=1", os.environ["NOTIFY_SOCKET"])
    server.serve_forever()


if __name__ == "__main__":
    main()
