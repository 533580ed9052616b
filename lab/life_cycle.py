# SPDX-License-Identifier: Apache-2.0
"""Brings a lab up and down: NTP server, keys, node files, supervisors, and the wait for ssh."""

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

from lab.accelerator import choose_accelerator
from lab.errors import LabError
from lab.host_tools import OVMF_VARS, require_free_space, require_host_tools
from lab.image import Image, ensure_image, find_image
from lab.inventory import InventoryNode, read_inventory
from lab.lab_directory import LabDirectory, LabRecord
from lab.node import NodeDefinition, NodeFiles, PeerNetwork
from lab.ntp_server import query
from lab.ports import choose_port, is_free
from lab.process import ProcessId
from lab.progress import Progress
from lab.supervisor import NodeState, load_state
from lab.supervisor_client import ask, is_running, start_supervisor

SSH_LIMIT_S = 600
NTP_LIMIT_S = 15
# What a node's overlay and journal grow by in a run of everything.
NODE_SPACE_MIB = 3000
CONSOLE_TAIL = 12

# Set by Ctrl-C, which only the main thread hears.
_interrupted = threading.Event()


def say(text: str) -> None:
    """Messages go to stderr; stdout is for what was asked for."""
    print(text, file=sys.stderr, flush=True)


def up(lab: LabDirectory, inventory: Path, only: list[str] | None = None) -> list[str]:
    """Make the lab run as the inventory says; running nodes are left alone. Returns the nodes' names."""
    require_host_tools()
    wanted = read_inventory(inventory)
    names = [node.name for node in wanted]
    for name in only or []:
        if name not in names:
            raise LabError(f"{name} is not in the inventory's group gpu_nodes; it has {', '.join(names)}")
    chosen = [node for node in wanted if not only or node.name in only]
    image = _image_for(lab, [node.name for node in chosen])
    accelerator = choose_accelerator(image, say)
    with lab.locked():
        lab.create()
        record = lab.load()
        for gone in set(record.nodes) - set(names):
            say(f"{gone} is not in {inventory} any more: stopping and removing it")
            _stop_node(lab.node(gone))
            shutil.rmtree(lab.node(gone).directory, ignore_errors=True)
            del record.nodes[gone]
        record.inventory = str(inventory)
        lab.ensure_key(lab.user_key, "gpufleet-lab")
        _assign_ports(lab, record, names)
        for name in names:
            lab.ensure_key(lab.host_key(name), name)
        lab.save(record)
        _start_ntp_server(lab, record)
        progress = Progress([node.name for node in chosen])
        with ThreadPoolExecutor(max_workers=len(chosen)) as pool:
            jobs = [pool.submit(_bring_up, lab, record, wanted, node, image, accelerator, progress) for node in chosen]
            try:
                problems = [error for job in jobs if (error := job.exception())]
            except KeyboardInterrupt:
                _interrupted.set()
                raise
        lab.save(record)
    for problem in problems:
        if not isinstance(problem, LabError):
            raise problem
    if problems:
        raise LabError("\n".join(str(problem) for problem in problems))
    return names


def _image_for(lab: LabDirectory, names: list[str]) -> Image:
    """The image to make nodes from; not built where every node has its disk already."""
    disks = []
    for name in names:
        files = lab.node(name)
        if not files.overlay.exists() or not files.definition.exists():
            return ensure_image(say)
        disks.append(Path(NodeDefinition.load(files.definition).image_disk))
        if not disks[-1].exists():
            raise LabError(f"the image {disks[-1]} under {name} is gone; start afresh with: make lab-reset NODE={name}")
    return Image(disks[0].parent.name, disks[0].parent)


def _assign_ports(lab: LabDirectory, record: LabRecord, names: list[str]) -> None:
    taken = {node["ssh_port"] for node in record.nodes.values()} | {record.ntp_port, record.peer_port}
    for name in names:
        node = record.nodes.setdefault(name, {"ssh_port": 0, "uuid": str(uuid.uuid4()), "boot_seconds": None})
        port = node["ssh_port"]
        if port and (is_running(lab.node(name)) or is_free(port)):
            continue
        node["ssh_port"] = choose_port(lab.root, taken)
        taken.add(node["ssh_port"])
        if port:
            say(f"port {port} of {name} is used by another program now; it gets {node['ssh_port']}")
    if not record.peer_port:
        record.peer_port = choose_port(lab.root, taken, socket.SOCK_DGRAM)
        taken.add(record.peer_port)
    ntp = ProcessId.load(lab.ntp_pid)
    if not (ntp and ntp.alive()) and not (record.ntp_port and is_free(record.ntp_port, socket.SOCK_DGRAM)):
        record.ntp_port = choose_port(lab.root, taken, socket.SOCK_DGRAM)


def _start_ntp_server(lab: LabDirectory, record: LabRecord) -> None:
    running = ProcessId.load(lab.ntp_pid)
    if not (running and running.alive()):
        with lab.ntp_log.open("a") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "lab.ntp_server", "--port", str(record.ntp_port),
                 "--pid-file", str(lab.ntp_pid)],
                cwd=Path(__file__).resolve().parents[1],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip
        process.returncode = 0  # it outlives this command
    deadline = time.monotonic() + NTP_LIMIT_S
    while True:
        try:
            query(record.ntp_port)
            return
        except OSError as error:
            if time.monotonic() > deadline:
                raise LabError(
                    f"the lab's NTP server does not answer on 127.0.0.1:{record.ntp_port}; see {lab.ntp_log}"
                ) from error
            time.sleep(0.2)


def _write_node(
    lab: LabDirectory, record: LabRecord, wanted: list[InventoryNode], node: InventoryNode, image: Image,
    accelerator: str,
) -> NodeFiles:  # fmt: skip
    """Make a node's files, keeping its disks where they exist."""
    files = lab.node(node.name)
    files.directory.mkdir(parents=True, exist_ok=True)
    index = [other.name for other in wanted].index(node.name) + 1
    addresses = {other.name: f"10.77.0.{number}" for number, other in enumerate(wanted, 1)}
    peers = PeerNetwork(record.peer_port, addresses[node.name]) if len(wanted) > 1 else None
    disk = image.disk
    if files.overlay.exists():
        # The overlay belongs to the image it was made over, until the node is reset.
        with suppress(FileNotFoundError):
            disk = Path(NodeDefinition.load(files.definition).image_disk)
        newest = find_image()
        if newest is None or newest.disk != disk:
            say(f"{node.name} keeps its older image; for one as the repository says: make lab-reset NODE={node.name}")
    definition = NodeDefinition(
        node.name, index, record.nodes[node.name]["ssh_port"], str(disk), accelerator,
        record.nodes[node.name]["uuid"], node.shape, peers,
    )  # fmt: skip
    definition.save(files.definition)
    guest = {
        "name": node.name,
        "authorized_key": lab.public_key(lab.user_key) + "\n",
        "host_key": lab.host_key(node.name).read_text(),
        "host_key_public": lab.public_key(lab.host_key(node.name)) + "\n",
        "peer_network": {"mac": definition.mac(1), "address": peers.address, "prefix": peers.prefix} if peers else None,
        "peers": [{"name": name, "address": address} for name, address in addresses.items() if name != node.name]
        if peers
        else [],
    }
    files.guest_configuration.write_text(json.dumps(guest) + "\n")
    files.guest_configuration.chmod(0o600)
    if not files.overlay.exists():
        require_free_space(files.directory, NODE_SPACE_MIB, f"the node {node.name}")
        subprocess.run(
            ["qemu-img", "create", "-q", "-f", "qcow2", "-F", "raw", "-b", str(disk), str(files.overlay)],
            check=True, stdin=subprocess.DEVNULL, timeout=60,
        )  # fmt: skip
        image.note_user(files.overlay)
        shutil.copyfile(OVMF_VARS, files.firmware_variables)
    for data_disk in node.shape.disks:
        path = files.disk(data_disk.serial)
        if not path.exists():
            with path.open("wb") as stream:
                stream.truncate(data_disk.size_mib * 2**20)
    return files


def _bring_up(
    lab: LabDirectory, record: LabRecord, wanted: list[InventoryNode], node: InventoryNode, image: Image,
    accelerator: str, progress: Progress,
) -> None:  # fmt: skip
    files = lab.node(node.name)
    state = ask(files, "status", limit_s=30) if is_running(files) else None
    if state is None or state["power"] not in ("on", "starting"):
        files = _write_node(lab, record, wanted, node, image, accelerator)
        if state is None:
            _end_leftovers(files)
            start_supervisor(files)
        progress.show(node.name, f"starting ({accelerator})")
        _power_on(lab, record, files)
    wait_for_ssh(lab, node.name, lambda text: progress.show(node.name, text))
    started = (load_state(files.state) or NodeState()).started_at
    if state is None or state["power"] != "on":
        record.nodes[node.name]["boot_seconds"] = round(time.time() - started, 1)
    progress.show(node.name, "ssh answers")


def _power_on(lab: LabDirectory, record: LabRecord, files: NodeFiles) -> None:
    """Switch on; a port that was taken since it was chosen is replaced by the next free one."""
    for _ in range(5):
        try:
            ask(files, "power", {"action": "on"})
            return
        except LabError as error:
            if "Could not set up host forwarding" not in str(error):
                raise
            node = record.nodes[files.name]
            old, taken = node["ssh_port"], {other["ssh_port"] for other in record.nodes.values()}
            node["ssh_port"] = choose_port(lab.root, taken | {record.ntp_port}, after=old)
            say(f"port {old} of {files.name} was taken meanwhile; using {node['ssh_port']}")
            definition = NodeDefinition.load(files.definition)
            NodeDefinition(**{**definition.__dict__, "ssh_port": node["ssh_port"]}).save(files.definition)
            lab.save(record)
    raise LabError(f"no port on 127.0.0.1 stayed free long enough for {files.name}; see {files.qemu_log}")


def ssh_command(lab: LabDirectory, name: str, *arguments: str) -> list[str]:
    """argv of an ssh to the node."""
    return ["ssh", "-F", str(lab.ssh_config), name, *arguments]


def _ssh_greets(port: int, limit_s: float = 3) -> bool:
    """Whether sshd says its first line; QEMU accepts connections long before the guest can answer."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=limit_s) as connection:
            connection.settimeout(limit_s)
            return connection.recv(4) == b"SSH-"
    except OSError:
        return False


def ssh_answers(lab: LabDirectory, name: str, limit_s: float = 60) -> bool:
    """Whether a fresh login on the node works; `limit_s` bounds the login after sshd's greeting."""
    if not _ssh_greets(lab.load().nodes[name]["ssh_port"]):
        return False
    # A connection kept open from before would say nothing about the node now.
    options = ["-o", "BatchMode=yes", "-o", f"ConnectTimeout={int(limit_s)}", "-o", "ControlPath=none"]
    try:
        done = subprocess.run(
            ["ssh", *options, "-F", str(lab.ssh_config), name, "true"],
            stdin=subprocess.DEVNULL, capture_output=True, timeout=limit_s + 5, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return False
    return done.returncode == 0


def wait_for_ssh(
    lab: LabDirectory, name: str, show: Callable[[str], None] = lambda _: None, limit_s: float = SSH_LIMIT_S
) -> None:
    """Wait until the node lets us in. Raises LabError with the end of its console when it does not."""
    files = lab.node(name)
    deadline = time.monotonic() + limit_s
    while not ssh_answers(lab, name):
        if _interrupted.is_set():
            raise LabError(f"interrupted while {name} was booting; it goes on booting")
        state = ask(files, "status", limit_s=30)
        if state["power"] in ("off", "failed"):
            raise LabError(f"{name} is {state['power']}: {state['reason']}\n{console_tail(files)}")
        if "end Kernel panic" in last_console_line(files):
            raise LabError(
                f"the kernel of {name} panicked; start again with: make lab-reset NODE={name}\n{console_tail(files)}"
            )
        if time.monotonic() > deadline:
            raise LabError(f"{name} did not answer ssh within {limit_s:.0f} s\n{console_tail(files)}")
        show(f"booting, waiting for ssh: {last_console_line(files)[:60]}")
        time.sleep(1)


def _console_lines(files: NodeFiles) -> list[str]:
    try:
        text = files.console.read_bytes()[-20000:].decode(errors="replace")
    except FileNotFoundError:
        return []
    text = re.sub(r"\x1b\[[0-9;?=]*[A-Za-z]", "", text)
    printable = ("".join(char for char in line if char.isprintable()).strip() for line in text.splitlines())
    return [line for line in printable if line]


def last_console_line(files: NodeFiles) -> str:
    """What the node printed last."""
    return (_console_lines(files) or ["no output yet"])[-1]


def console_tail(files: NodeFiles) -> str:
    """The end of the console with its path, for an error message."""
    lines = "\n".join("  " + line[:160] for line in _console_lines(files)[-CONSOLE_TAIL:])
    return f"the console {files.console} ends:\n{lines or '  (nothing was printed)'}"


def _end_leftovers(files: NodeFiles) -> None:
    """End a QEMU whose supervisor is gone (setpriv should have; this makes sure)."""
    state = load_state(files.state)
    if state and state.qemu_pid:
        ProcessId(state.qemu_pid, state.qemu_started).stop()


def _stop_node(files: NodeFiles, at_once: bool = False) -> None:
    identity = ProcessId.load(files.supervisor_pid)
    if identity and identity.alive():
        try:
            ask(files, "kill" if at_once else "stop")
        except LabError as error:
            say(f"{files.name}: {error}; ending its supervisor")
        deadline = time.monotonic() + 10
        while identity.alive() and time.monotonic() < deadline:
            time.sleep(0.1)
        if not identity.stop(term_limit_s=30):
            raise LabError(f"the supervisor of {files.name} (pid {identity.pid}) cannot be ended")
    _end_leftovers(files)


def _close_connections(lab: LabDirectory) -> None:
    """End ssh connections that Ansible or `lab ssh` kept open."""
    if not lab.control_paths.is_dir():
        return
    for path in lab.control_paths.iterdir():
        with suppress(subprocess.TimeoutExpired):
            subprocess.run(
                ["ssh", "-o", f"ControlPath={path}", "-O", "exit", "lab"],
                stdin=subprocess.DEVNULL, capture_output=True, timeout=10, check=False,
            )  # fmt: skip
        path.unlink(missing_ok=True)


def down(lab: LabDirectory) -> None:
    """Stop all nodes (power button, then plug), the NTP server and open connections. Disks stay."""
    if not lab.exists():
        say(f"no lab in {lab.root}")
        return
    with lab.locked():
        record = lab.load()
        _close_connections(lab)
        if record.nodes:
            with ThreadPoolExecutor(max_workers=len(record.nodes)) as pool:
                list(pool.map(lambda name: _stop_node(lab.node(name)), record.nodes))
        ntp = ProcessId.load(lab.ntp_pid)
        if ntp and not ntp.stop():
            raise LabError(f"the lab's NTP server (pid {ntp.pid}) cannot be ended")
        lab.ntp_pid.unlink(missing_ok=True)
        shutil.rmtree(lab.sockets, ignore_errors=True)


def reset(lab: LabDirectory, names: list[str], clock_offset_s: int | None = None) -> None:
    """Give nodes fresh disks and firmware variables; the caller brings them up again.

    The hardware clock keeps its offset (it is no disk) unless one is given: a fresh
    node whose clock is years off is what first boots of real nodes look like.
    """
    with lab.locked():
        record = lab.load()
        for name in names:
            if name not in record.nodes:
                raise LabError(f"there is no node {name!r}; the lab has {', '.join(record.nodes) or 'none'}")
        _close_connections(lab)
        for name in names:
            files = lab.node(name)
            _stop_node(files, at_once=True)
            state = load_state(files.state)
            shutil.rmtree(files.directory, ignore_errors=True)
            offset_s = state.rtc_offset_s if state and clock_offset_s is None else clock_offset_s
            if offset_s is not None:
                files.directory.mkdir(parents=True)
                NodeState(rtc_offset_s=offset_s).save(files.state)


def exec_ssh(lab: LabDirectory, name: str, command: list[str]) -> None:
    """Replace this process by an ssh to the node."""
    os.execvp("ssh", ssh_command(lab, name, *command))
