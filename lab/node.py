# SPDX-License-Identifier: Apache-2.0
"""What one lab node is: its place in the lab's state directory and all that QEMU needs to start it."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lab.shape import NodeShape, parse_shape


@dataclass(frozen=True)
class PeerNetwork:
    """The network between the nodes of one lab: a multicast group on loopback."""

    port: int
    address: str
    prefix: int = 24


@dataclass(frozen=True)
class NodeFiles:
    """Where a node's files lie: `directory` in the lab, sockets in the lab's short socket directory."""

    directory: Path
    sockets: Path

    @property
    def name(self) -> str:
        """The node's inventory name."""
        return self.directory.name

    @property
    def definition(self) -> Path:
        """node.json: written by `lab up`, read by the supervisor at every start."""
        return self.directory / "definition.json"

    @property
    def guest_configuration(self) -> Path:
        """What the guest reads at first boot (fw_cfg)."""
        return self.directory / "guest.json"

    @property
    def state(self) -> Path:
        """state.json: written by the supervisor alone."""
        return self.directory / "state.json"

    @property
    def overlay(self) -> Path:
        """The node's own changes over the image."""
        return self.directory / "os.qcow2"

    @property
    def firmware_variables(self) -> Path:
        """The node's UEFI variables."""
        return self.directory / "uefi_vars.fd"

    @property
    def console(self) -> Path:
        """All that the node printed on its serial console."""
        return self.directory / "console.log"

    @property
    def qemu_log(self) -> Path:
        """QEMU's own messages."""
        return self.directory / "qemu.log"

    @property
    def supervisor_log(self) -> Path:
        """What the supervisor did and why."""
        return self.directory / "supervisor.log"

    @property
    def supervisor_pid(self) -> Path:
        """Identity of the running supervisor."""
        return self.directory / "supervisor.pid"

    @property
    def control_socket(self) -> Path:
        """Where the supervisor takes commands."""
        return self.sockets / f"{self._short}.ctl"

    @property
    def qmp_socket(self) -> Path:
        """QEMU's machine protocol."""
        return self.sockets / f"{self._short}.qmp"

    @property
    def _short(self) -> str:
        # Socket paths may have 107 characters; host names may have 64.
        return self.name[:24]

    def disk(self, serial: str) -> Path:
        """Backing file of a data disk."""
        return self.directory / f"disk-{serial}.raw"


@dataclass(frozen=True)
class NodeDefinition:
    """A node as it is to be started next time."""

    name: str
    index: int
    ssh_port: int
    image_disk: str
    accelerator: str
    uuid: str
    shape: NodeShape
    peer_network: PeerNetwork | None

    def mac(self, kind: int, number: int = 0) -> str:
        """A locally administered address: kind 0 uplink, 1 network between nodes, 2 HCA stand-in."""
        return f"52:54:00:{kind:02x}:{self.index:02x}:{number:02x}"

    def save(self, path: Path) -> None:
        """Write definition.json."""
        peer = self.peer_network
        data: dict[str, Any] = {
            **{key: getattr(self, key) for key in ("name", "index", "ssh_port", "image_disk", "accelerator", "uuid")},
            "shape": self.shape.as_dict(),
            "peer_network": {"port": peer.port, "address": peer.address, "prefix": peer.prefix} if peer else None,
        }
        temporary = path.with_suffix(".new")
        temporary.write_text(json.dumps(data, indent=1) + "\n")
        temporary.replace(path)

    @classmethod
    def load(cls, path: Path) -> "NodeDefinition":
        """Read definition.json."""
        data = json.loads(path.read_text())
        data["shape"] = parse_shape(data["shape"], "")
        data["peer_network"] = PeerNetwork(**data["peer_network"]) if data["peer_network"] else None
        return cls(**data)
