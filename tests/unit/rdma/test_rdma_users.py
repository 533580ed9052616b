# SPDX-License-Identifier: Apache-2.0
"""Who would lose something by a restart of openibd, on temporary roots."""

import pytest
from ansible.module_utils.gpufleet.gpu_processes import GpuProcesses
from ansible.module_utils.gpufleet.rdma_users import find_users, name_users


class Node:
    def __init__(self, tmp_path):
        self.proc, self.sys = tmp_path / "proc", tmp_path / "sys"
        (self.proc / "net").mkdir(parents=True)
        self.sys.mkdir()
        self.gpus = GpuProcesses([], None)
        self.write("proc/mounts", "/dev/sda1 / ext4 rw 0 0\nserver:/home /home nfs4 rw,proto=tcp 0 0\n")
        self.write("proc/net/route", "Iface\tDestination\tGateway\nens1\t00000000\t0101A8C0\n")
        self.interface("ens1", "ixgbe")

    def write(self, path, text):
        file = self.sys.parent / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    def link(self, path, target):
        file = self.sys.parent / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.symlink_to(target)

    def interface(self, name, driver):
        self.link(f"sys/class/net/{name}/device/driver", f"../../bus/pci/drivers/{driver}")

    def users(self):
        return find_users(str(self.proc), str(self.sys), lambda: self.gpus)


@pytest.fixture
def node(tmp_path):
    return Node(tmp_path)


def test_nothing_uses_the_stack(node):
    node.interface("ens2", "mlx5_core")  # no route goes over it
    node.write("sys/class/nvme/nvme0/transport", "pcie\n")
    node.link("proc/77/fd/3", "/dev/nvidia0")
    assert node.users() == []


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("10.0.0.1@o2ib:/data /data lustre rw 0 0\n", "/data is mounted (lustre)"),
        ("server:/x /x nfs rw,proto=rdma,port=20049 0 0\n", "/x is mounted (nfs)"),
        ("beegfs_nodev /mnt/b beegfs rw 0 0\n", "/mnt/b is mounted (beegfs)"),
    ],
)
def test_mounts(node, line, expected):
    node.write("proc/mounts", line)
    assert node.users() == [expected]


def test_nvme_over_fabrics(node):
    node.write("sys/class/nvme/nvme7/transport", "rdma\n")
    assert node.users() == ["nvme7 is an NVMe-oF controller over RDMA"]


def test_lustre_without_a_mount(node):
    node.write("sys/module/ko2iblnd/refcnt", "1\n")
    assert node.users() == ["ko2iblnd is loaded (Lustre's network)"]


def test_a_process_with_an_open_device(node):
    node.write("proc/4711/comm", "python3\n")
    node.link("proc/4711/fd/9", "/dev/infiniband/uverbs3")
    assert node.users() == ["process 4711 (python3) has /dev/infiniband/uverbs3 open"]


def test_the_operators_own_connection(node):
    """An Ethernet card of the same vendor, below bond and VLAN."""
    node.write("proc/net/route", "Iface\tDestination\nvlan7\t00000000\n")
    node.link("sys/class/net/vlan7/lower_bond0", "../bond0")
    node.link("sys/class/net/bond0/lower_ens3", "../ens3")
    node.interface("ens3", "mlx5_core")
    assert node.users() == ["network interface vlan7 carries a route and is driven by mlx5_core"]


def test_a_route_of_ipv6(node):
    node.interface("ens3", "mlx5_core")
    fields = "00000000000000000000000000000000 00 0 00 0 00000400 00000001 00000000 00000003     ens3"
    node.write("proc/net/ipv6_route", f"fe80{fields[4:]}\n")
    assert node.users() == []
    node.write("proc/net/ipv6_route", f"2001{fields[4:]}\n")
    assert node.users() == ["network interface ens3 carries a route and is driven by mlx5_core"]


def test_a_loop_of_interfaces_ends(node):
    node.write("proc/net/route", "Iface\tDestination\na\t0\n")
    node.link("sys/class/net/a/lower_b", "../b")
    node.link("sys/class/net/b/lower_a", "../a")
    assert node.users() == []


def test_gpu_jobs(node):
    node.gpus = GpuProcesses(["12 train.py"], None)
    assert node.users() == ["GPU process 12 train.py"]
    node.gpus = GpuProcesses([], "nvidia-smi failed")
    assert node.users() == ["whether GPUs are in use cannot be told: nvidia-smi failed"]


def test_a_long_list_is_cut():
    assert name_users(list("abcdefgh")) == "a; b; c; d; e; and 3 more"
    assert name_users(["a"]) == "a"
