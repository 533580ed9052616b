# SPDX-License-Identifier: Apache-2.0
"""One lab's directory: who holds it, which ports it uses, its keys and what it writes for ssh and Ansible."""

import fcntl
import hashlib
import json
import os
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from lab.errors import LabError
from lab.inventory import DEFAULT_INVENTORY, REPOSITORY
from lab.node import NodeFiles

# As a node sees this machine through QEMU's user networking.
HOST_SEEN_BY_NODE = "10.0.2.2"
# sun_path has 108 bytes; ssh adds a name of 41 characters and a random suffix of 17 while it binds.
LONGEST_SOCKET_DIRECTORY = 45


def lab_root() -> Path:
    """The lab's directory: GPUFLEET_LAB_DIR, else `.lab` in the repository."""
    return Path(os.environ.get("GPUFLEET_LAB_DIR") or REPOSITORY / ".lab").expanduser().resolve()


@dataclass
class LabRecord:
    """lab.json: what must be the same from one command to the next."""

    inventory: str = str(DEFAULT_INVENTORY)
    ntp_port: int = 0
    peer_port: int = 0
    nodes: dict[str, dict[str, Any]] = field(default_factory=dict)  # name -> {"ssh_port", "uuid", "boot_seconds"}


class LabDirectory:
    """Paths and records of the lab in `root`."""

    def __init__(self, root: Path | None = None) -> None:
        self.root = root or lab_root()

    @property
    def sockets(self) -> Path:
        """A short path for unix sockets: the lab itself may lie under a long one."""
        name = f"gpufleet-lab-{os.getuid()}-{hashlib.sha256(str(self.root).encode()).hexdigest()[:8]}"
        base = tempfile.gettempdir()
        return Path(base if len(base) + len(name) < LONGEST_SOCKET_DIRECTORY else "/tmp") / name

    @property
    def control_paths(self) -> Path:
        """Where ssh keeps the sockets of connections that stay open."""
        return self.sockets / "cp"

    @property
    def ssh_config(self) -> Path:
        """For `ssh -F`."""
        return self.root / "ssh_config"

    @property
    def known_hosts(self) -> Path:
        """The nodes' host keys, which the lab made itself."""
        return self.root / "known_hosts"

    @property
    def variables(self) -> Path:
        """Read by inventories/lab."""
        return self.root / "lab_vars.yml"

    @property
    def user_key(self) -> Path:
        """Private key that opens the nodes."""
        return self.root / "id_ed25519"

    @property
    def ntp_pid(self) -> Path:
        """Identity of the lab's NTP server."""
        return self.root / "ntp_server.pid"

    @property
    def ntp_log(self) -> Path:
        """Its messages."""
        return self.root / "ntp_server.log"

    def node(self, name: str) -> NodeFiles:
        """The files of one node."""
        return NodeFiles(self.root / "nodes" / name, self.sockets)

    def exists(self) -> bool:
        """Whether `lab up` was ever run here."""
        return (self.root / "lab.json").exists()

    def create(self) -> None:
        """Make the directories; the socket directory must be ours alone."""
        self.root.mkdir(parents=True, exist_ok=True)
        self.sockets.mkdir(mode=0o700, exist_ok=True)
        status = self.sockets.lstat()
        if status.st_uid != os.getuid() or status.st_mode & 0o022 or self.sockets.is_symlink():
            raise LabError(f"{self.sockets} is not ours alone (another user made it?); remove it and try again")
        # ansible-playbook on a lab that is down makes it for its connections, readable by all.
        self.sockets.chmod(0o700)
        self.control_paths.mkdir(mode=0o700, exist_ok=True)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the lab for a command that changes it. Raises LabError when another one does."""
        self.root.mkdir(parents=True, exist_ok=True)
        with (self.root / "lock").open("a+") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                lock.seek(0)
                raise LabError(
                    f"another lab command (pid {lock.read().strip() or '?'}) is at work in {self.root}; "
                    "wait for it, or use a lab of your own: GPUFLEET_LAB_DIR=<directory>"
                ) from None
            lock.truncate(0)
            lock.write(f"{os.getpid()}\n")
            lock.flush()
            yield

    def load(self) -> LabRecord:
        """The lab's record, an empty one where there is none."""
        with suppress(FileNotFoundError):
            return LabRecord(**json.loads((self.root / "lab.json").read_text()))
        return LabRecord()

    def save(self, record: LabRecord) -> None:
        """Write the record and what follows from it: ssh_config, known_hosts, lab_vars.yml."""
        self._replace(self.root / "lab.json", json.dumps(asdict(record), indent=1) + "\n")
        self._replace(self.ssh_config, self._ssh_config(record))
        hosts = [f"{name} {self.public_key(self.host_key(name))}" for name in record.nodes]
        self._replace(self.known_hosts, "\n".join(hosts) + "\n")
        self._replace(
            self.variables,
            "# Written by `lab up`; read by inventories/lab.\n"
            f"ntp_address: {HOST_SEEN_BY_NODE}\n"
            f"ntp_port: {record.ntp_port}\n"
            f"control_path_directory: {json.dumps(str(self.control_paths))}\n",
        )

    def _ssh_config(self, record: LabRecord) -> str:
        blocks = ["# Written by `lab up`. Use: ssh -F <this file> <node>\n"]
        for name, node in record.nodes.items():
            blocks.append(
                f"Host {name}\n"
                "    HostName 127.0.0.1\n"
                f"    Port {node['ssh_port']}\n"
                "    User root\n"
                f'    IdentityFile "{self.user_key}"\n'
                "    IdentitiesOnly yes\n"
                f"    HostKeyAlias {name}\n"
                f'    UserKnownHostsFile "{self.known_hosts}"\n'
                "    GlobalKnownHostsFile /dev/null\n"
                "    StrictHostKeyChecking yes\n"
                "    ServerAliveInterval 15\n"
                "    ServerAliveCountMax 4\n"
                # A login costs an emulated node seconds.
                "    ControlMaster auto\n"
                "    ControlPersist 60s\n"
                f'    ControlPath "{self.control_paths}/%C"\n'
            )
        return "\n".join(blocks)

    @staticmethod
    def _replace(path: Path, text: str) -> None:
        temporary = path.with_name(path.name + ".new")
        temporary.write_text(text)
        temporary.replace(path)

    def host_key(self, name: str) -> Path:
        """A node's ssh host key; it stays the same when the node is reset."""
        return self.root / "host_keys" / name

    @staticmethod
    def public_key(private: Path) -> str:
        """The public half, without its comment."""
        return " ".join(private.with_name(private.name + ".pub").read_text().split()[:2])

    @staticmethod
    def ensure_key(path: Path, comment: str) -> None:
        """Make an ed25519 key pair unless it is there."""
        if path.exists():
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        subprocess.run(
            ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", comment, "-f", str(path)],
            check=True, stdin=subprocess.DEVNULL, timeout=60,
        )  # fmt: skip
