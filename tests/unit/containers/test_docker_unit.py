# SPDX-License-Identifier: Apache-2.0
"""Flags of dockerd by the files of its unit: which count, what they are called in daemon.json, and where they stand."""

from pathlib import Path

import pytest
from ansible.module_utils.gpufleet.docker_unit import clashes, engine_flags, proxies, unit_files

VENDOR = "/usr/lib/systemd/system/docker.service"
DROP_IN = "/etc/systemd/system/docker.service.d/docker-override.conf"
# Debian's unit
DEBIAN = """[Unit]
Description=Docker Application Container Engine

[Service]
Type=notify
EnvironmentFile=-/etc/default/docker
ExecStart=/usr/sbin/dockerd -H fd:// --containerd=/run/containerd/containerd.sock $DOCKER_OPTS
ExecReload=/bin/kill -s HUP $MAINPID
"""
# As on DGX systems (NVIDIA/deepops PR #351)
DGX = """[Service]
ExecStart=
ExecStart=/usr/bin/dockerd -H fd:// -s overlay2 --default-shm-size=1G \\
  --data-root /raid/docker
LimitMEMLOCK=infinity
"""


def write(root: Path, path: str, text: str) -> None:
    file = root / path.lstrip("/")
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


def found(root: Path) -> list[tuple[str, str, str]]:
    return [(flag.key, flag.value, flag.place) for flag in engine_flags(str(root))]


def test_no_unit_no_flags(tmp_path: Path) -> None:
    assert engine_flags(str(tmp_path)) == [] and unit_files(str(tmp_path)) == []


def test_the_units_own_flags_and_those_of_its_environment_file(tmp_path: Path) -> None:
    write(tmp_path, VENDOR, DEBIAN)
    place = f"{VENDOR}, line 7"
    own = [("hosts", "fd://", place), ("containerd", "/run/containerd/containerd.sock", place)]
    assert found(tmp_path) == own
    write(tmp_path, "/etc/default/docker", '# comment\n#DOCKER_OPTS="--old"\nDOCKER_OPTS="--dns 9.9.9.9 -l=debug"\n')
    of_file = "/etc/default/docker, line 3"
    assert found(tmp_path) == [*own, ("dns", "9.9.9.9", of_file), ("log-level", "debug", of_file)]


def test_a_drop_in_that_clears_the_list(tmp_path: Path) -> None:
    write(tmp_path, VENDOR, DEBIAN)
    write(tmp_path, DROP_IN, DGX)
    place = f"{DROP_IN}, line 3"
    assert found(tmp_path) == [
        ("hosts", "fd://", place),
        ("storage-driver", "overlay2", place),
        ("default-shm-size", "1G", place),
        ("data-root", "/raid/docker", place),
    ]
    assert clashes({"data-root": "/raid/docker", "debug": True}, engine_flags(str(tmp_path))) == [
        f"data-root (--data-root /raid/docker in {place})"
    ]
    # One of the same name below /etc hides that of the vendor, an empty one takes it out.
    write(tmp_path, DROP_IN.replace("/etc/", "/usr/lib/"), "[Service]\nExecStart=/bin/false --debug\n")
    assert len(found(tmp_path)) == 4
    write(tmp_path, DROP_IN, "")
    assert [key for key, _value, _place in found(tmp_path)] == ["hosts", "containerd"]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("--live-restore --log-opt max-size=1m", [("live-restore", ""), ("log-opts", "max-size=1m")]),
        ("--add-runtime nvidia=/usr/bin/n -D", [("runtimes", "nvidia=/usr/bin/n"), ("debug", "")]),
        ("--registry-mirror=https://m.example.com", [("registry-mirrors", "https://m.example.com")]),
        ("-H tcp://127.0.0.1:2375 -Hfd://", [("hosts", "tcp://127.0.0.1:2375"), ("hosts", "fd://")]),
        (
            "-g /d --exec-opt native.cgroupdriver=cgroupfs",
            [("data-root", "/d"), ("exec-opts", "native.cgroupdriver=cgroupfs")],
        ),
        ("--tls=false --icc=true", [("tls", "false"), ("icc", "true")]),
        ('--label "a b=c"', [("labels", "a b=c")]),
        ("${OPTS} $NOTHING", [("data-root", "/e")]),
        ("$MORE", [("bridge", "none"), ("debug", "")]),
    ],
)
def test_spellings(tmp_path: Path, words: str, expected: list[tuple[str, str]]) -> None:
    environment = 'Environment="OPTS=--data-root=/e" "MORE=-b none --debug"\n'
    write(tmp_path, VENDOR, f"[Service]\n{environment}ExecStart=/usr/bin/dockerd {words}\n")
    assert [(key, value) for key, value, _place in found(tmp_path)] == expected


def test_a_masked_unit_has_the_vendors_flags(tmp_path: Path) -> None:
    write(tmp_path, VENDOR, DEBIAN)
    link = tmp_path / "etc/systemd/system/docker.service"
    link.parent.mkdir(parents=True)
    link.symlink_to("/dev/null")
    assert unit_files(str(tmp_path)) == [VENDOR]


def test_proxies(tmp_path: Path) -> None:
    write(tmp_path, VENDOR, DEBIAN)
    assert proxies(str(tmp_path)) == {}
    write(tmp_path, DROP_IN, '[Service]\nEnvironment="HTTP_PROXY=http://u:p%%40@proxy.example.com:3128" NO_PROXY=a,b\n')
    write(tmp_path, "/etc/default/docker", "NO_PROXY=c\nOTHER=d\n")
    assert proxies(str(tmp_path)) == {"HTTP_PROXY": "http://u:p%40@proxy.example.com:3128", "NO_PROXY": "c"}
