# SPDX-License-Identifier: Apache-2.0
"""A CDI specification against the driver and the GPUs, and links to device nodes."""

import json
import os
from pathlib import Path

import pytest
from ansible.module_utils.gpufleet.container_toolkit_cdi import (
    Gpus,
    Spec,
    outdated,
    parse_spec,
    read_gpus,
    read_spec,
    static_specs,
)
from ansible.module_utils.gpufleet.container_toolkit_devices import make_links, nodes, unlinked

UUIDS = [f"GPU-1234567{minor}-aaaa-bbbb-cccc-0123456789ab" for minor in range(2)]
GPUS = Gpus("580.105.08", frozenset({0, 1}), frozenset(UUIDS))
YAML = f"""---
cdiVersion: 0.5.0
containerEdits:
  deviceNodes:
  - path: /dev/nvidiactl
  - path: /dev/nvidia-caps/nvidia-cap1
  hooks:
  - args: [nvidia-cdi-hook, create-symlinks, --link, "libcuda.so.1::/usr/lib/x86_64-linux-gnu/libcuda.so"]
  mounts:
  - containerPath: /usr/lib/x86_64-linux-gnu/libcuda.so.580.105.08
    hostPath: /usr/lib/x86_64-linux-gnu/libcuda.so.580.105.08
  - hostPath: /usr/lib/x86_64-linux-gnu/libnvidia-ml.so.580.105.08
devices:
- containerEdits: {{deviceNodes: [{{path: /dev/nvidia0}}]}}
  name: "0"
- containerEdits: {{deviceNodes: [{{path: /dev/nvidia1}}]}}
  name: {UUIDS[1]}
- name: {UUIDS[0]}
kind: nvidia.com/gpu
"""


def test_what_a_specification_names() -> None:
    expected = Spec(frozenset({"580.105.08"}), frozenset({0, 1}), frozenset(UUIDS), 5)
    assert parse_spec(YAML, 5) == expected
    as_json = json.dumps({"devices": [{"name": uuid, "path": f"/dev/nvidia{n}"} for n, uuid in enumerate(UUIDS)],
                          "mounts": ["/usr/lib/libcuda.so.580.105.08"]})  # fmt: skip
    assert parse_spec(as_json, 5) == expected


@pytest.mark.parametrize(
    ("spec", "gpus", "toolkit_since", "said"),
    [
        (parse_spec(YAML, 5), GPUS, 4, []),
        (None, GPUS, 4, ["there is none"]),
        (None, Gpus(None, frozenset(), frozenset()), 4, []),
        (parse_spec(YAML, 5), Gpus(None, frozenset(), frozenset()), 9, []),
        (parse_spec(YAML, 5), GPUS._replace(driver="610.43.02"), 4, ["it is of 580.105.08, and 610.43.02 is loaded"]),
        (parse_spec("", 5), GPUS, 4, ["it is of no driver, and 580", "it has the GPUs none, and the driver has 0, 1"]),
        (parse_spec(YAML, 5), GPUS._replace(minors=frozenset({0})), 4, ["it has the GPUs 0, 1, and the driver has 0"]),
        (parse_spec(YAML, 5), GPUS._replace(uuids=frozenset(UUIDS[:1])), 4, ["a GPU was exchanged"]),
        # Older releases name no UUIDs.
        (parse_spec(YAML.replace("GPU-", "x-"), 5), GPUS, 4, []),
        (parse_spec(YAML, 5), GPUS, 6, ["the toolkit was installed after it was made"]),
    ],
)
def test_when_it_is_outdated(spec: "Spec | None", gpus: Gpus, toolkit_since: float, said: list[str]) -> None:
    reasons = outdated(spec, gpus, toolkit_since)
    assert len(reasons) == len(said)
    assert all(reason.startswith(words) for reason, words in zip(reasons, said, strict=True)), reasons


def test_driver_and_gpus_of_a_node(tmp_path: Path) -> None:
    assert read_gpus(str(tmp_path)) == Gpus(None, frozenset(), frozenset())
    folder = tmp_path / "proc/driver/nvidia"
    for minor, uuid in enumerate(UUIDS):
        place = folder / f"gpus/0000:{minor}b:00.0"
        place.mkdir(parents=True)
        (place / "information").write_text(f"Model: \t\t NVIDIA H100\nGPU UUID: \t {uuid}\nDevice Minor: \t {minor}\n")
    (folder / "version").write_text(
        "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.105.08  Release Build\nGCC version: 12\n"
    )
    assert read_gpus(str(tmp_path)) == GPUS


def test_specifications_that_nobody_keeps_current(tmp_path: Path) -> None:
    assert list(static_specs(str(tmp_path))) == [] and read_spec("/run/cdi/nvidia.yaml", str(tmp_path)) is None
    (tmp_path / "etc/cdi").mkdir(parents=True)
    (tmp_path / "etc/cdi/nvidia.yaml").write_text(YAML)
    (tmp_path / "etc/cdi/other.yaml").write_text("kind: example.com/net\n")
    assert list(static_specs(str(tmp_path))) == ["/etc/cdi/nvidia.yaml"]


def test_links_to_device_nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert nodes(str(tmp_path)) == {}
    dev = tmp_path / "dev"
    (dev / "nvidia-caps").mkdir(parents=True)
    for name in ("nvidia0", "nvidiactl", "null"):
        (dev / name).touch()
    # A device node needs root and a device cgroup that allows it; its numbers are all that counts.
    real = os.lstat

    def lstat(path: str) -> os.stat_result:
        status = list(real(path))
        if os.path.isfile(path):
            status[0] = 0o020666
        return os.stat_result(status, {"st_rdev": os.makedev(195, 255 if path.endswith("ctl") else 0)})

    monkeypatch.setattr("ansible.module_utils.gpufleet.container_toolkit_devices.os.lstat", lstat)
    found = nodes(str(tmp_path))
    assert found == {"/dev/nvidia0": "195:0", "/dev/nvidiactl": "195:255"}
    monkeypatch.undo()
    (dev / "char").mkdir()
    (dev / "char/195:255").symlink_to("/dev/nvidia-modeset")
    assert unlinked(found, str(tmp_path)) == ["/dev/nvidia0", "/dev/nvidiactl"]
    make_links(unlinked(found, str(tmp_path)), found, str(tmp_path))
    assert unlinked(found, str(tmp_path)) == []
    assert os.readlink(dev / "char/195:0") == "../nvidia0"
