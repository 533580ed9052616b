# SPDX-License-Identifier: Apache-2.0
"""Containers and DCGM of the healthy XE9680 (tests/health_node.py): what the probes about them bring."""

from __future__ import annotations

import re
from pathlib import Path

FIXTURES = Path(__file__).resolve().parent / "fixtures"
GPUS = 8
_PACKAGES = ("libnvidia-container1", "libnvidia-container-tools", "nvidia-container-toolkit-base",
             "nvidia-container-toolkit")  # fmt: skip
_UNIT = "LoadState=loaded\nActiveState=active\nResult=success\n"
_DONE = "exit status 0\n"


def counted(**parts: str) -> str:
    """What a script of counted_output prints; a part's name with "__" for a blank."""
    text = "".join(f"== {name.replace('__', ' ')}\n{lines}" for name, lines in parts.items())
    return f"{text}end of {text.count(chr(10))} lines\n"


def fixture(name: str) -> str:
    """A recording below tests/fixtures."""
    return (FIXTURES / name).read_text()


def _engine() -> str:
    """The recorded answer of Debian's engine, as that of a node with overlay2, the toolkit and version 2 of cgroups."""
    info = fixture("docker/info-20.10.24.json").replace('"driver":"vfs"', "")
    for old, new in (
        ('"storage_driver":"vfs"', '"storage_driver":"overlay2"'),
        ('"cgroup_version":"1","cgroup_driver":"cgroupfs"', '"cgroup_version":"2","cgroup_driver":"systemd"'),
        ('"runc":{"path":"runc"}}', '"nvidia":{"path":"nvidia-container-runtime"},"runc":{"path":"runc"}}'),
    ):
        assert old in info, old
        info = info.replace(old, new)
    options = '"max-file": "5"\n"max-size": "100m"\n'
    return counted(unit=_UNIT, info=info + _DONE, log__options=options, apparmor="Y\n/usr/sbin/apparmor_parser\n")


def container(name: str, image: str = "train:1", **more: str) -> str:
    """A line of docker inspect as the probe asks for it. more: JSON of fields that differ."""
    fields = {"name": f'"/{name}"', "image": f'"{image}"', "runtime": '"runc"', "privileged": "false"}
    fields.update({"cap_add": "null", "devices": "[]", "requests": "null"}, **more)
    return "{" + ",".join(f'"{key}":{value}' for key, value in fields.items()) + "}\n"


# As `docker run --gpus all` leaves it in the container's settings (moby, api/types/container, DeviceRequest).
ALL_GPUS = '[{"Driver":"","Count":-1,"DeviceIDs":null,"Capabilities":[["gpu"]],"Options":{}}]'


def containers() -> str:
    """Two containers run, one of them a job with all GPUs."""
    nodes = [f"/dev/nvidia{number}" for number in range(GPUS)] + ["/dev/nvidia-uvm", "/dev/nvidiactl"]
    return counted(
        list=f"{'e9' * 32}\n{'06' * 32}\n{_DONE}",
        containers=container("job", requests=ALL_GPUS) + container("proxy", "squid:6"),
        nodes="".join(f"{node} linked\n" for node in nodes),
    )


def _toolkit(driver: str) -> str:
    names = [*range(GPUS), "all"]
    libraries = "".join(f"/etc/cdi/nvidia.yaml:lib{name}.so.{driver}\n" for name in ("cuda", "nvidia-ml"))
    return counted(
        packages="".join(f"{name} installed 1.17.8-1\n" for name in _PACKAGES),
        runtime="/usr/bin/nvidia-container-runtime\n",
        devices=f'time="2026-11-30T19:53:36Z" level=info msg="Found {len(names)} CDI devices"\n'
        + "".join(f"nvidia.com/gpu={name}\n" for name in names)
        + _DONE,
        libraries=libraries,
    )


def _discovery(buses: tuple[str, ...]) -> str:
    """`dcgmi discovery -l`, as dcgmi/Query.cpp of DCGM 4 lays it out."""
    line = f"+--------+{'-' * 70}+\n"
    rows = "".join(
        f"| {number:<6} | {'Name: NVIDIA H100 80GB HBM3':<68} |\n"
        f"|        | {f'PCI Bus ID: 00000000:{bus}:00.0':<68} |\n{line}"
        for number, bus in enumerate(buses)
    )
    return f"{len(buses)} GPUs found.\n{line}| GPU ID | {'Device Information':<68} |\n{line}{rows}0 NvSwitches found.\n"


def scrape(gpus: int = GPUS) -> str:
    """What the probe makes of the exporter's answer: a metric, the number of a GPU, the value."""
    names = ("XID_ERRORS", "ROW_REMAP_FAILURE", "UNCORRECTABLE_REMAPPED_ROWS", "PCIE_REPLAY_COUNTER",
             "NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL", "CLOCKS_EVENT_REASONS")  # fmt: skip
    samples = "".join(f"DCGM_FI_DEV_{name}{{{gpu}}} 0\n" for name in names for gpu in range(gpus))
    return f"HTTP/1.0 200 OK\r\n{samples}"


def healthy(driver: str, listed: str, buses: tuple[str, ...]) -> dict[str, str]:
    """Outputs by probe. driver: its version. listed: output of `nvidia-smi -L`. buses: of the GPUs, in order."""
    inside = re.sub(r"(?m)^(?!GPU ).*\n", "", listed)
    return {
        "docker.engine": _engine(),
        "docker.containers": containers(),
        "containers.toolkit": _toolkit(driver),
        "containers.gpu_start": counted(image="nvidia/cuda:12.4.1-base-ubuntu22.04\n", answer=inside + _DONE),
        "containers.gpu_inside": counted(list=_DONE, **{"container__/job": inside + _DONE}),
        "dcgm.host_engine": counted(
            unit=_UNIT, version=fixture("dcgm/version-4.2.3.txt") + _DONE, gpus=_discovery(buses) + _DONE
        ),
        "dcgm.health": counted(
            watches=fixture("dcgm/health-watches.txt") + _DONE, health=fixture("dcgm/health-healthy.json") + _DONE
        ),
        "dcgm.diag": fixture("dcgm/diag-4-pass.json"),
        "dcgm_exporter.scrape": counted(
            started="21000000\n17000000\n", version="installed 4.1.1-1\n", asked=":9400\n", answer=scrape()
        ),
    }
