# SPDX-License-Identifier: Apache-2.0
"""Debian's real engine in a container: role docker from nothing, and what its modules do to running containers."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.integration.containers.conftest import IMAGE, MAKE_IMAGE, EngineNode

pytestmark = pytest.mark.container

FILE = "/etc/docker/daemon.json"
DROP_INS = "/etc/systemd/system/docker.service.d"


def check_role(node: EngineNode) -> None:
    """The dry run on a fresh node announces what the first run does, and the second run does nothing."""
    foreseen = node.play("docker", "--check")
    assert foreseen.code == 0, foreseen.output
    assert node.sh(f"ls {FILE} {DROP_INS}/gpufleet.conf /usr/sbin/dockerd 2>/dev/null", check=False) == ""
    first = node.play("docker")
    assert first.code == 0, first.output
    second = node.play("docker")
    assert second.code == 0 and second.host("node")["changed"] == 0, second.output
    names = [{task["task"] for task in run.host("node")["changed_tasks"]} for run in (foreseen, first)]
    assert names[0] == names[1] and len(names[0]) == 3, names


@pytest.fixture(scope="module")
def engine(fresh_node: EngineNode) -> EngineNode:
    """A node where role docker has run, with an image."""
    node = fresh_node
    if node.image == "debian13":
        # One Debian shows the dry run and the second run: a play costs more than most tests here.
        first = node.play("docker")
        assert first.code == 0, first.output
    else:
        check_role(node)
    node.sh(MAKE_IMAGE)
    return node


@pytest.fixture
def node(engine: EngineNode) -> Iterator[EngineNode]:
    """The engine as the role has left it; a test's containers, drop-ins and settings are taken away again."""
    before = engine.sh(f"cat {FILE}")
    yield engine
    engine.sh(
        f"docker ps --all --quiet | xargs -r docker rm --force >/dev/null; rm -f {DROP_INS}/test.conf {FILE}.*; "
        f"echo '{before}' >{FILE}; systemctl daemon-reload; systemctl reset-failed docker; systemctl restart docker"
    )


def start(node: EngineNode, command: str = "sleep 10000", name: str = "job") -> None:
    node.sh(f"docker run --detach --network=none --name={name} {IMAGE} /bin/sh -c '{command}'")


def engine_pid(node: EngineNode) -> str:
    return node.sh("systemctl show --value --property=MainPID docker")


def job(node: EngineNode) -> str:
    """Process and start of the container, which both change with a restart of it."""
    return node.sh("docker inspect --format '{{.State.Status}} {{.State.Pid}} {{.State.StartedAt}}' job")


def settings(node: EngineNode) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(node.sh(f"cat {FILE}"))
    return found


def set_keys(node: EngineNode, **keys: Any) -> dict[str, Any]:
    return node.module("docker_daemon_json", settings={name.replace("_", "-"): value for name, value in keys.items()})


def test_what_the_role_leaves(node: EngineNode) -> None:
    assert node.sh("docker info --format '{{.LiveRestoreEnabled}} {{.LoggingDriver}}'") == "true json-file"
    assert settings(node)["log-opts"] == {"max-size": "10m", "max-file": "3"}
    assert set(node.sh("apt-mark showhold").split()) >= {"docker.io", "containerd", "runc"}
    assert node.sh("systemctl is-enabled docker.service docker.socket containerd.service").split() == ["enabled"] * 3
    order = node.sh("systemctl show --property=After docker.service")
    assert "gpufleet-nvidia.service" in order and "gpufleet-zpool.service" in order
    # A log that grows is cut: what an operator relies on.
    start(node, "i=0; while [ $i -lt 10 ]; do echo line; i=$((i+1)); done; sleep 10000")
    logs = node.sh("docker inspect --format '{{json .HostConfig.LogConfig}}' job")
    assert json.loads(logs)["Config"] == {"max-size": "10m", "max-file": "3"}


def test_a_container_goes_on_while_the_engine_restarts(node: EngineNode) -> None:
    start(node)
    before, pid = job(node), engine_pid(node)
    assert before.startswith("running")

    # SIGHUP is enough for some keys.
    assert set_keys(node, debug=True)["changed"]
    done = node.module("docker_engine")
    assert done["actions"] == ["reload docker.service (debug)"], done
    assert engine_pid(node) == pid and job(node) == before
    assert not node.module("docker_engine")["changed"]

    # Others need a restart.
    assert set_keys(node, log_opts={"max-size": "11m"})["changed_keys"] == ["log-opts"]
    assert settings(node)["log-opts"] == {"max-size": "11m", "max-file": "3"}
    foreseen = node.module("docker_engine", check=True)
    assert foreseen["actions"] == ["restart docker.service (daemon.json: log-opts)"], foreseen
    assert engine_pid(node) == pid
    done = node.module("docker_engine")
    assert done["actions"] == foreseen["actions"] and done["pending"] == [], done
    assert engine_pid(node) != pid and job(node) == before
    assert node.sh("docker exec job /bin/sh -c 'echo alive'") == "alive"
    assert not node.module("docker_engine")["changed"]


def test_without_live_restore_nothing_is_stopped_unless_allowed(node: EngineNode) -> None:
    # A container that does not heed SIGTERM: the engine kills it when its time is over.
    start(node, 'trap "" TERM; while true; do sleep 1; done')
    assert set_keys(node, live_restore=False, shutdown_timeout=3)["changed"]
    assert node.module("docker_engine")["actions"] == ["reload docker.service (live-restore, shutdown-timeout)"]
    before, pid = job(node), engine_pid(node)
    set_keys(node, log_opts={"max-size": "12m"})
    for check in (True, False):
        done = node.module("docker_engine", check=check)
        assert not done["changed"] and done["pending"] == ["daemon.json: log-opts"], done
        reason = done["gpufleet"]["attention"][0]
        assert "would stop running containers: job" in reason["reason"] and "docker_restart_allowed" in str(reason)
    assert engine_pid(node) == pid and job(node) == before
    done = node.module("docker_engine", restart_allowed=True)
    assert done["actions"] == ["restart docker.service (daemon.json: log-opts)"], done
    assert engine_pid(node) != pid and not job(node).startswith("running")


def test_an_engine_that_does_not_come_back_gets_its_former_file(node: EngineNode) -> None:
    node.module("docker_engine")
    start(node)
    before, good = job(node), node.sh(f"cat {FILE}")
    # The engine's own check of the file does not look at the folder.
    assert set_keys(node, exec_root="/dev/null/none")["changed"]
    done = node.module("docker_engine", timeout_s=60)
    assert done.get("failed"), done
    assert "/dev/null" in done["msg"] and "is in place again, and the engine runs with it" in done["msg"]
    assert "correct the settings" in done["next_step"]
    assert node.sh(f"cat {FILE}") == good
    assert json.loads(node.sh(f"cat {FILE}.failed"))["exec-root"] == "/dev/null/none"
    assert node.sh("systemctl is-active docker") == "active" and job(node) == before
    assert not node.module("docker_engine")["changed"]


def test_what_others_have_put_there_stays_and_what_is_not_valid_is_not_touched(node: EngineNode) -> None:
    more = {"runtimes": {"crun": {"path": "/usr/bin/crun"}}, "dns-search": ["example.com"], **settings(node)}
    node.sh(f"echo '{json.dumps(more)}' >{FILE}")
    assert set_keys(node, debug=True, runtimes={"runsc": {"path": "/usr/bin/runsc"}})["changed"]
    assert settings(node)["runtimes"] == {"crun": {"path": "/usr/bin/crun"}, "runsc": {"path": "/usr/bin/runsc"}}
    assert settings(node)["dns-search"] == ["example.com"]
    assert not set_keys(node, debug=True)["changed"]
    for text, said in (
        ('{\n  "debug": true\n  "bip": 1\n}', "line 3 column 3"),
        ('{"debug": true,\n "debug": false}', "'debug' twice in one object, the second time at line 2 column 2"),
        ("[1]", "holds a list, expected an object"),
    ):
        node.sh(f"printf '%s' '{text}' >{FILE}")
        for module, arguments in (("docker_daemon_json", {"settings": {"debug": True}}), ("docker_engine", {})):
            done = node.module(module, **arguments)
            assert done.get("failed") and said in done["msg"] and FILE in done["next_step"], done
        assert node.sh(f"cat {FILE}") == text
    assert node.sh("systemctl is-active docker") == "active"


def test_flags_of_the_unit_and_keys_that_the_engine_refuses(node: EngineNode) -> None:
    node.sh(
        f"printf '[Service]\\nExecStart=\\nExecStart=/usr/sbin/dockerd -H fd:// \\\\\\n  --data-root /raid/docker\\n' "
        f">{DROP_INS}/test.conf"
    )
    done = set_keys(node, data_root="/var/lib/docker", max_concurrent_downloads=2)
    assert done.get("failed"), done
    assert f"data-root (--data-root /raid/docker in {DROP_INS}/test.conf, line 3)" in done["msg"]
    node.sh(f"rm {DROP_INS}/test.conf")
    before = node.sh(f"cat {FILE}")
    if "validate" in node.sh("dockerd --help"):
        done = set_keys(node, no_such_key=1)
        assert done.get("failed") and "no-such-key" in done["msg"] and node.sh(f"cat {FILE}") == before
        done = set_keys(node, max_concurrent_downloads=2)
    assert done.get("failed") or done["validated"]


def test_storage_is_left_only_empty_or_by_name(node: EngineNode) -> None:
    start(node)
    done = set_keys(node, data_root="/srv/docker")
    assert done.get("failed") and "containers run: job" in done["msg"], done
    node.sh("docker rm --force job")
    done = set_keys(node, data_root="/srv/docker")
    assert done.get("failed") and "out of its sight: 1 image" in done["msg"], done
    name = node.sh("docker info --format '{{.Driver}}'") + " /var/lib/docker"
    assert f'"{name}"' in done["next_step"]
    wanted = {"data-root": "/srv/docker"}
    mountless = node.module("docker_daemon_json", settings=wanted, data_root_mount="/srv")
    assert mountless.get("failed") and "nothing is mounted at /srv" in mountless["msg"]
    assert node.module("docker_daemon_json", settings=wanted, storage_left_behind=name)["changed"]
    assert node.module("docker_engine", data_root="/srv/docker")["actions"] == [
        "restart docker.service (daemon.json: data-root)"
    ]
    assert node.sh("docker images --quiet") == ""
    # The new store is empty, so the way back needs no word.
    assert set_keys(node, data_root="/var/lib/docker")["changed"]
    node.module("docker_engine", data_root="/var/lib/docker")
    assert node.sh("docker images --quiet") != ""


def test_proxies_of_the_unit_and_a_missing_mount(node: EngineNode) -> None:
    node.sh(f"printf '[Service]\\nEnvironment=\"HTTP_PROXY=http://127.0.0.1:9/%%%%41\"\\n' >{DROP_INS}/test.conf")
    done = node.module("docker_engine")
    assert done["actions"] == ["restart docker.service (proxy settings of the unit: HTTP_PROXY)"], done
    assert node.sh("docker info --format '{{.HTTPProxy}}'") == "http://127.0.0.1:9/%41"
    assert not node.module("docker_engine")["changed"]
    node.sh(f"printf '[Unit]\\nAssertPathIsMountPoint=/srv\\n' >{DROP_INS}/test.conf; systemctl daemon-reload")
    node.sh("systemctl stop docker.service docker.socket")
    done = node.module("docker_engine", data_root_mount="/srv")
    assert done.get("failed") and "nothing is mounted at /srv" in done["msg"] and "storage.yml" in done["next_step"]
    node.sh("systemctl start docker.service", check=False)
    assert node.sh("systemctl is-active docker.service", check=False) == "inactive"
    assert "docker" not in node.sh("systemctl --failed --no-legend")
