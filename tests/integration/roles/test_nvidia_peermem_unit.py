# SPDX-License-Identifier: Apache-2.0
"""Role nvidia_peermem under a real systemd: its unit beside a stand-in for openibd, with and without devices.

modprobe is a stand-in that keeps a list of what is loaded; the unit's own condition, order and ties are real.
"""

import json
from pathlib import Path

import pytest

from tests.integration.roles.conftest import Containers
from tests.playbook import PlaybookRun, run_playbook

UNIT = "gpufleet-nvidia-peermem.service"
STAND_INS = r"""
set -e
mkdir -p /srv/pci/a /srv/pci/b
cat >/usr/local/sbin/openibd-stand-in <<'END'
#!/bin/sh
# Time enough for a unit that does not wait.
test $1 = stop || sleep 1
echo "openibd $1" >>/srv/order
END
cat >/srv/modprobe <<'END'
#!/bin/sh
case "$*" in *--show-depends*) exit 1;; esac
echo "modprobe $*" >>/srv/order
test ! -e /srv/modprobe-fails
END
cat >/etc/systemd/system/openibd.service <<'END'
[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=/usr/local/sbin/openibd-stand-in start
ExecStop=/usr/local/sbin/openibd-stand-in stop
[Install]
WantedBy=multi-user.target
END
chmod 755 /usr/local/sbin/openibd-stand-in /srv/modprobe
install /srv/modprobe /sbin/modprobe
systemctl daemon-reload
"""


def order(containers: Containers) -> list[str]:
    """What was run since the last call, in order."""
    return containers.run("node", "cat /srv/order 2>/dev/null; rm -f /srv/order").splitlines()


def shown(containers: Containers) -> str:
    """State and result of the unit."""
    return containers.run("node", f"systemctl show --value --property=ActiveState,Result {UNIT} | sort | xargs").strip()


def devices(containers: Containers, gpu: bool, hca: bool) -> None:
    """PCI vendors on the node: NVIDIA's and Mellanox's, or Intel's in their place."""
    vendors = ("0x10de" if gpu else "0x8086", "0x15b3" if hca else "0x8086")
    containers.run("node", f"echo {vendors[0]} >/srv/pci/a/vendor; echo {vendors[1]} >/srv/pci/b/vendor")


@pytest.mark.container
def test_the_unit_follows_openibd_and_skips_a_node_without_devices(containers: Containers, tmp_path: Path) -> None:
    containers.start(["node"], "debian12")
    containers.run("node", STAND_INS)
    role = {"ansible.builtin.import_role": {"name": "nvidia_peermem", "rolespec_validate": False}}
    play = [{"name": "Role", "hosts": "gpu_nodes", "gather_facts": False, "tasks": [{"name": "Role", **role}]}]
    (tmp_path / "play.yml").write_text(json.dumps(play))

    def apply(name: str, *options: str) -> PlaybookRun:
        run = run_playbook(
            str(tmp_path / "play.yml"), tmp_path / name, "-i", str(containers.inventory), "--diff", *options
        )
        assert run.code == 0, run.output
        return run

    assert apply("check", "--check").host("node")["changed"] == 1
    assert apply("first").host("node")["changed"] == 2
    assert apply("second").host("node")["changed"] == 0
    assert order(containers) == []  # the lab's profile describes no GPU, and there is none
    verified = containers.run("node", f"systemd-analyze verify /etc/systemd/system/{UNIT} 2>&1 || true")
    assert UNIT not in verified

    # From here on the unit's condition looks at PCI devices that the test makes.
    containers.run(
        "node",
        f"sed -i s,/sys/bus/pci/devices,/srv/pci, /etc/systemd/system/{UNIT}; systemctl daemon-reload; "
        "systemctl start openibd",
    )
    order(containers)
    for gpu, hca in ((False, False), (True, False), (False, True)):
        devices(containers, gpu, hca)
        containers.run("node", f"systemctl start {UNIT}")
        assert shown(containers) == "exec-condition inactive"
    assert order(containers) == []
    assert UNIT not in containers.run("node", "systemctl --failed --no-legend")

    devices(containers, gpu=True, hca=True)
    containers.run("node", f"systemctl start {UNIT}")
    assert shown(containers) == "active success"
    assert order(containers) == ["modprobe nvidia-peermem"]
    containers.run("node", "systemctl restart openibd")
    # ib_core cannot be taken out under it
    expected = ["modprobe -r nvidia-peermem", "openibd stop", "openibd start", "modprobe nvidia-peermem"]
    assert order(containers) == expected
    # A boot starts both in one transaction: the order comes from the units. A target does so too; `systemctl start` of
    # two units does not, since it asks for one after the other, and the first may run before the second is known.
    # reset-failed: five starts in ten seconds are systemd's limit, and this test has had them.
    containers.run("node", f"systemctl stop openibd {UNIT}; systemctl reset-failed {UNIT}")
    order(containers)
    target = f"printf '[Unit]\\nWants={UNIT} openibd.service\\n' >/etc/systemd/system/as-at-boot.target"
    containers.run("node", f"{target}; systemctl daemon-reload; systemctl start as-at-boot.target")
    # The target waits for nothing itself; a start that waits joins the jobs under way.
    containers.run("node", f"systemctl start openibd {UNIT}")
    assert order(containers) == ["openibd start", "modprobe nvidia-peermem"]

    containers.run("node", f"systemctl stop {UNIT}; touch /srv/modprobe-fails")
    containers.run("node", f"systemctl start {UNIT}", check=False)
    assert shown(containers) == "exit-code failed"  # a GPU is there, so the operator sees it
