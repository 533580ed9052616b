# SPDX-License-Identifier: Apache-2.0
"""Which initramfs images must be made anew, and who keeps a module from being taken out."""

import os
from pathlib import Path

import pytest
from ansible.module_utils.gpufleet.initramfs_images import holds_modules, older_images
from ansible.module_utils.gpufleet.nvidia_gpu_users import gpu_users, others


@pytest.mark.parametrize(
    ("listing", "expected"),
    [
        ("usr/lib/modules/k/kernel/drivers/gpu/drm/nouveau/nouveau.ko\n", True),
        ("usr/lib/modules/k/updates/dkms/nvidia-current-open.ko.xz\n", True),
        ("usr/lib/modules/k/updates/dkms/nvidia_current_open.ko.zst\n", True),
        ("etc/modprobe.d/nouveau.conf\nusr/lib/modules/k/kernel/nouveau.kob\n", False),
        ("usr/lib/modules/k/kernel/drivers/net/nvidiafb.ko\n", False),
        ("", False),
    ],
)
def test_only_an_image_with_the_module_needs_the_file(listing: str, expected: bool) -> None:
    assert holds_modules(listing, ("nouveau", "nvidia", "nvidia-current-open")) is expected


def test_images_older_than_the_file_each_kernels_own(tmp_path: Path) -> None:
    """Bug 103: nouveau still in the initramfs, and an image of another kernel made anew for weeks."""
    file = tmp_path / "gpufleet-nvidia.conf"
    assert older_images(["old", "new"], str(file), {}, str(tmp_path)) == {}
    file.touch()
    for release, time in (("old", 100), ("new", 300)):
        (tmp_path / f"initrd.img-{release}").touch()
        os.utime(tmp_path / f"initrd.img-{release}", (time, time))
    os.utime(file, (200, 200))
    pair = [100 * 10**9, 200 * 10**9]
    assert older_images(["old", "new", "without"], str(file), {}, str(tmp_path)) == {"old": pair}
    assert older_images(["old"], str(file), {"old": pair}, str(tmp_path)) == {}, "looked into before"
    os.utime(file, (250, 250))
    assert "old" in older_images(["old"], str(file), {"old": pair}, str(tmp_path)), "the file has changed since"


def test_who_has_a_gpu_open(tmp_path: Path) -> None:
    """Bug 098: a container's process counts, and the node's own services are told apart."""
    for pid, name, target, cgroup in (
        (9, "python", "/dev/nvidia3", "0::/system.slice/docker-4711.scope\n"),
        (10, "nvidia-persiste", "/dev/nvidiactl", "0::/system.slice/nvidia-persistenced.service\n"),
        (12, "sshd", "/dev/null", "0::/system.slice/ssh.service\n"),
    ):
        (tmp_path / str(pid) / "fd").mkdir(parents=True)
        (tmp_path / str(pid) / "fd" / "3").symlink_to(target)
        (tmp_path / str(pid) / "comm").write_text(f"{name}\n")
        (tmp_path / str(pid) / "cgroup").write_text(cgroup)
    (tmp_path / "13").mkdir()
    (tmp_path / "uptime").touch()
    users = gpu_users(str(tmp_path))
    assert [(user.pid, user.unit) for user in users] == [(9, None), (10, "nvidia-persistenced.service")]
    assert [str(user) for user in others(users)] == ["python (pid 9)"]
