# SPDX-License-Identifier: Apache-2.0
"""zfs_packages with a real kernel package, a real DKMS build, and a real change to a prebuilt package.

One kernel: its build takes four minutes on two cores, and a second one less by a compiler cache, which stays for the
next run of the test. Nothing is loaded, since the container has the host's kernel.
"""

import json
from pathlib import Path

import pytest

from lab.image import cache_directory
from tests.integration.roles.conftest import Containers
from tests.playbook import PlaybookRun, run_playbook

# Debian keeps ZFS in contrib. The smallest kernel package is the one for clouds.
KERNEL = (
    "set -e; export DEBIAN_FRONTEND=noninteractive; sed -i 's/ main$/ main contrib/' /etc/apt/sources.list; "
    "apt-get update >&2; apt-get install --yes --no-install-recommends linux-image-cloud-amd64 ccache >&2; "
    # Under every name by which the headers may call the compiler, which comes with them, and in front of it: maintainer
    # scripts search /usr/sbin, /usr/bin, /sbin, /bin.
    # Not by the environment, which dpkg and dkms clean.
    "printf 'cache_dir = /var/cache/ccache\\nmax_size = 500M\\n' >/etc/ccache.conf; "
    "for name in gcc gcc-14 x86_64-linux-gnu-gcc x86_64-linux-gnu-gcc-14; "
    "do ln -s /usr/bin/ccache /usr/sbin/$name; done; "
    "ls /lib/modules"
)
# The module that dkms has built, as a package in a repository of the container's own. zfs-zed wants zfs-modules.
PREBUILT = r"""
set -e
name=zfs-modules-$1 root=$(mktemp -d)
mkdir -p $root/DEBIAN $root/lib/modules/$1/extra /srv/repository
cp /lib/modules/$1/updates/dkms/*.ko* $root/lib/modules/$1/extra/
printf '%s\n' "Package: $name" "Version: 1" "Architecture: amd64" "Maintainer: nobody <nobody@example.com>" \
  "Provides: zfs-modules" "Description: ZFS for one kernel" >$root/DEBIAN/control
printf '#!/bin/sh\ndepmod %s\n' $1 >$root/DEBIAN/postinst
chmod 755 $root $root/DEBIAN/postinst
cd /srv/repository
dpkg-deb --build $root $name.deb >&2
{ dpkg-deb --field $name.deb; echo "Filename: ./$name.deb"; echo "Size: $(stat -c %s $name.deb)"
  echo "SHA256: $(sha256sum $name.deb | cut -d' ' -f1)"; } >Packages
echo 'deb [trusted=yes] file:/srv/repository ./' >/etc/apt/sources.list.d/own.list
"""
HELD = "zfs-dkms zfs-zed zfsutils-linux"


def play(**arguments: object) -> str:
    task = {"name": "Bring ZFS", "zfs_packages": {"load": False, **arguments}, "timeout": 1700, "register": "result"}
    show = {"name": "Show it", "ansible.builtin.debug": {"msg": "kernels: {{ result['kernels'] | to_json }}"}}
    return json.dumps([{"name": "ZFS", "hosts": "gpu_nodes", "gather_facts": False, "tasks": [task, show]}])


@pytest.mark.container
def test_dkms_builds_mends_and_gives_way(containers: Containers, tmp_path: Path) -> None:
    compiled = cache_directory() / "ccache"
    compiled.mkdir(parents=True, exist_ok=True)
    containers.start(["node"], "debian13", [f"{compiled}:/var/cache/ccache"])
    runs = iter(range(100))

    def apply(*options: str, **arguments: object) -> PlaybookRun:
        number = next(runs)
        (tmp_path / f"play{number}.yml").write_text(play(**arguments))
        return run_playbook(
            str(tmp_path / f"play{number}.yml"), tmp_path / str(number), "-i", str(containers.inventory), *options
        )

    def state() -> str:
        return containers.run("node", "dpkg-query --show; apt-mark showhold; find /lib/modules -name 'zfs.ko*'")

    run = apply(source="dkms")
    assert run.code != 0 and "no installed kernel was found" in json.dumps(run.report), run.output
    kernel = containers.run("node", KERNEL).strip()
    fresh = state()
    run = apply(source="distro")
    assert run.code != 0 and f"the packages of kernel {kernel} hold no zfs module" in json.dumps(run.report), run.output
    run = apply("--check", source="dkms")
    assert run.code == 0 and run.host("node")["changed"] == 1, run.output
    assert state() == fresh

    run = apply(source="dkms")
    assert run.code == 0, run.output
    version = containers.run("node", f"modinfo -k {kernel} -F version zfs").strip()
    assert version and containers.run("node", f"modinfo -k {kernel} -F vermagic zfs").split()[0] == kernel
    held = containers.run("node", "apt-mark showhold").split()
    assert sorted(held) == sorted([f"linux-headers-{kernel}", *HELD.split()])
    # zfs-zed recommends a mail server
    assert "mail" not in containers.run("node", "dpkg-query --show --showformat='${Provides}\\n'")
    assert apply(source="dkms").host("node")["changed"] == 0
    assert any(compiled.iterdir()), "the build did not go through ccache: each one takes minutes"

    for broken in (
        f"dkms uninstall -m zfs -v {version.partition('-')[0]} -k {kernel}",
        f"for module in /lib/modules/{kernel}/updates/dkms/*; do : >$module; done",
    ):
        containers.run("node", broken)
        assert containers.run("node", f"modinfo -k {kernel} -F version zfs", check=False).strip() == ""
        assert apply("--check", source="dkms").host("node")["changed"] == 1
        run = apply(source="dkms")
        assert run.code == 0 and run.host("node")["changed"] == 1, run.output
        assert containers.run("node", f"modinfo -k {kernel} -F version zfs").strip() == version
    assert apply(source="dkms").host("node")["changed"] == 0

    # A change of source: the package's module takes over, and nothing of dkms' shadows it.
    containers.run("node", f"set -- {kernel}\n{PREBUILT}")
    prebuilt = {"source": "prebuilt", "module_package": "zfs-modules-{kernel}"}
    run = apply(**prebuilt)
    assert run.code == 0, run.output
    assert "/extra/" in containers.run("node", f"modinfo -k {kernel} -F filename zfs")
    assert "/updates/" not in containers.run("node", f"find /lib/modules/{kernel} -name 'zfs.ko*'")
    dkms = containers.run("node", "dpkg-query --show --showformat='${db:Status-Status}' zfs-dkms", check=False)
    assert dkms != "installed"
    assert sorted(containers.run("node", "apt-mark showhold").split()) == sorted(
        [f"linux-headers-{kernel}", f"zfs-modules-{kernel}", "zfs-zed", "zfsutils-linux"]
    )
    assert apply(**prebuilt).host("node")["changed"] == 0
    containers.run("node", f"rm /lib/modules/{kernel}/extra/zfs.ko*")
    run = apply(**prebuilt)
    assert run.code == 0 and run.host("node")["changed"] == 1, run.output
    assert apply(**prebuilt).host("node")["changed"] == 0
