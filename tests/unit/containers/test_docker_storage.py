# SPDX-License-Identifier: Apache-2.0
"""Storage that may be left and storage that may not."""

from pathlib import Path

import pytest
from ansible.module_utils.gpufleet.docker_error import DockerError
from ansible.module_utils.gpufleet.docker_storage import Storage, of_folder, refuse_loss

USED = Storage("overlay2", "/var/lib/docker", "2 images")
EMPTY = USED._replace(holds="")


@pytest.mark.parametrize(
    ("now", "driver", "data_root"),
    [
        (USED, "overlay2", "/var/lib/docker"),
        (USED, None, None),
        (USED, None, "/var/lib/../lib/docker"),
        (EMPTY, "zfs", "/data/docker"),
        (Storage(None, "/var/lib/docker", ""), "zfs", "/var/lib/docker"),
    ],
)
def test_nothing_is_lost(now: Storage, driver: "str | None", data_root: "str | None") -> None:
    refuse_loss(now, driver, data_root, None, running="job")


@pytest.mark.parametrize(
    ("driver", "data_root", "said"),
    [
        ("zfs", "/var/lib/docker", "storage driver overlay2, wanted zfs"),
        ("overlay2", "/data/docker", "data root /var/lib/docker, wanted /data/docker"),
        ("zfs", "/data/docker", "wanted zfs; data root"),
    ],
)
def test_a_used_store_is_left_only_by_name(driver: str, data_root: str, said: str) -> None:
    with pytest.raises(DockerError, match=said) as caught:
        refuse_loss(USED, driver, data_root, None)
    assert "2 images" in str(caught.value)
    assert '"docker_storage_left_behind": "overlay2 /var/lib/docker"' in caught.value.next_step
    with pytest.raises(DockerError):
        refuse_loss(USED, driver, data_root, "zfs /var/lib/docker")
    refuse_loss(USED, driver, data_root, "overlay2 /var/lib/docker")
    # Not even by name while a container runs: the engine would lose it, and it would go on.
    with pytest.raises(DockerError, match="containers run: job"):
        refuse_loss(USED, driver, data_root, "overlay2 /var/lib/docker", running="job")


def test_what_lies_in_a_data_root(tmp_path: Path) -> None:
    assert of_folder("/var/lib/docker", str(tmp_path)) == Storage(None, "/var/lib/docker", "")
    root = tmp_path / "var/lib/docker"
    # An engine that was started once and never used.
    for folder in (
        "image/overlay2/imagedb/content/sha256",
        "containers",
        "volumes",
        "image/vfs/imagedb/content/sha256",
    ):
        (root / folder).mkdir(parents=True)
    (root / "volumes/metadata.db").touch()
    (root / "volumes/backingFsBlockDev").touch()
    assert of_folder("/var/lib/docker", str(tmp_path)).holds == ""
    (root / "image/vfs/imagedb/content/sha256/0123").touch()
    (root / "containers/4567").mkdir()
    (root / "volumes/data").mkdir()
    assert of_folder("/var/lib/docker", str(tmp_path)) == Storage(
        "vfs", "/var/lib/docker", "1 container, 1 image, 1 volume"
    )
