# SPDX-License-Identifier: Apache-2.0
"""Keeps one node: starts QEMU with the node's present shape, again after each reset, until told to stop.

Guest reboot, BMC reset and power cycle all end QEMU (`-no-reboot`), and all come
back through `_start`; so pulled disks, clock and shape apply to every one of them.
Commands come as one JSON line on a unix socket and are answered by one.
"""

import asyncio
import contextlib
import json
import os
import signal
import sys
import time
from collections import deque
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from lab.bays import DiskBays, parse_shown
from lab.errors import LabError
from lab.host_tools import SEARCH_PATH
from lab.node import NodeDefinition, NodeFiles
from lab.process import ProcessId
from lab.qemu_command import PEER_NIC, UPLINK, disk_device, qemu_command
from lab.qmp import QmpConnection
from lab.shape import parse_offset

# Seconds. An ACPI shutdown of the emulated guest takes 10 to 30 s here; machines vary threefold.
ACPI_LIMIT_S = 150
UNPLUG_LIMIT_S = 90
BUSY_PAUSE_S = 1.0
QUIT_LIMIT_S = 20
# A guest that resets this often in a minute will not come up by itself.
RESETS_PER_MINUTE = 6
# QEMU 7.2 emulates each CPU in a thread of its own, and now and then it crashes while the guest's kernel arranges its
# devices (seen twice in some two hundred boots: an assertion of msix_table_mmio_write after 2 s, a segmentation fault
# after 17 s). Nobody works on the node yet, so it is started again like a machine that hangs in its self-test; not for
# ever, and not when it is up. SIGKILL is missing here: it comes from outside, mostly for want of memory.
EARLY_BOOT_S = 180
STARTS_AFTER_CRASHES = 2
CRASHES = (signal.SIGABRT, signal.SIGSEGV, signal.SIGBUS, signal.SIGILL, signal.SIGFPE)
# It also loses a timer interrupt now and then (seen once in some thirty boots): what sleeps on that CPU of the guest
# sleeps for ever, and the boot creeps on by 20 s a step. The guest's kernel says so. As above, until one can log in.
LOST_TIMER, LOGIN = b"timer wakeup didn't happen", b" login: "
CONSOLE_PAUSE_S = 2.0


@dataclass
class NodeState:
    """The node's condition, kept across resets and readable by other commands."""

    power: str = "off"  # off | starting | on | failed
    reason: str = "never started"
    rtc_offset_s: int = 0
    bays: list[str] = field(default_factory=list)  # serial of the disk in each bay, "" for none
    drawer: list[str] = field(default_factory=list)  # disks in no bay
    shown_serials: dict[str, str] = field(default_factory=dict)  # where a disk reports another serial than its own
    network: str = "up"  # up | cut
    starts: int = 0
    started_at: float = 0.0
    qemu_pid: int = 0
    qemu_started: int = 0

    def save(self, path: Path) -> None:
        """Write the state file in one step."""
        temporary = path.with_suffix(".new")
        temporary.write_text(json.dumps(asdict(self)) + "\n")
        temporary.replace(path)


def load_state(path: Path) -> NodeState | None:
    """The state file's content, None where the node was never started."""
    try:
        data = json.loads(path.read_text())
    except FileNotFoundError:
        return None
    if "pulled" in data:  # written before disks could change their bay
        data["drawer"] = data.pop("pulled")
    return NodeState(**data)


class Supervisor:
    """The node's one owner."""

    def __init__(self, files: NodeFiles) -> None:
        self.files = files
        self.node = NodeDefinition.load(files.definition)
        self.state = load_state(files.state) or NodeState(rtc_offset_s=self.node.shape.clock_offset_s)
        self.state.power = "off"
        self._arrange_disks()
        self._qemu: asyncio.subprocess.Process | None = None
        self._watch: asyncio.Task[None] | None = None
        self._qmp: QmpConnection | None = None
        self._busy = asyncio.Lock()
        self._stopping = asyncio.Event()
        self._off = asyncio.Event()
        self._shutdown_reason = ""
        self._rtc_at_start = 0
        self._deleted: set[str] = set()
        self._deletion = asyncio.Event()
        self._resets: deque[float] = deque(maxlen=RESETS_PER_MINUTE)
        self._crashes = 0  # in the early boot, in a row
        self._lost_timer = False
        self._boot_watch: asyncio.Task[None] | None = None

    # --- state and log -----------------------------------------------------

    def _log(self, text: str) -> None:
        print(f"{datetime.now(UTC).isoformat(timespec='seconds')} {text}", flush=True)

    def _save(self) -> None:
        self.state.save(self.files.state)

    def _set_power(self, power: str, reason: str) -> None:
        self.state.power, self.state.reason = power, reason
        self._log(f"power {power}: {reason}")
        self._save()
        if power in ("off", "failed"):
            self._off.set()
        else:
            self._off.clear()

    def _arrange_disks(self) -> None:
        """Disks where the state has them, as far as the present shape has such disks and bays."""
        shape = self.node.shape
        self._disks = DiskBays(
            [disk.serial for disk in shape.data_disks], [disk.serial for disk in shape.spare_disks],
            self.state.bays, self.state.drawer,
        )  # fmt: skip
        self.state.bays, self.state.drawer = self._disks.bays, self._disks.drawer

    # --- QEMU --------------------------------------------------------------

    def _on_event(self, name: str, data: dict[str, Any]) -> None:
        if name == "RTC_CHANGE":
            # Seconds between the clock as `-rtc base` set it going and what the guest wrote.
            self.state.rtc_offset_s = self._rtc_at_start + int(data["offset"])
            self._log(f"the guest set its hardware clock: now {self.state.rtc_offset_s:+d} s from this machine's")
            self._save()
        elif name == "SHUTDOWN":
            self._shutdown_reason = data.get("reason", "")
            self._log(f"QEMU shuts down: {self._shutdown_reason}")
        elif name == "DEVICE_DELETED" and "device" in data:
            self._deleted.add(data["device"])
            self._deletion.set()

    async def _start(self, reason: str) -> None:
        self.node = NodeDefinition.load(self.files.definition)
        self._rtc_at_start = self.state.rtc_offset_s
        self._shutdown_reason = ""
        self._arrange_disks()
        command = qemu_command(
            self.node, self.files, self.state.bays, self.state.shown_serials, self.state.rtc_offset_s,
            datetime.now(UTC),
        )  # fmt: skip
        console = self.files.console.stat().st_size if self.files.console.exists() else 0
        self._lost_timer = False
        self.state.starts += 1
        self.state.started_at = time.time()
        self._set_power("starting", reason)
        with self.files.qemu_log.open("a") as log:
            log.write(f"--- {datetime.now(UTC).isoformat(timespec='seconds')} {reason}\n")
            log.flush()
            # setpriv: QEMU must not outlive a supervisor that was killed.
            self._qemu = await asyncio.create_subprocess_exec(
                "setpriv", "--pdeathsig", "KILL", *command,
                stdin=asyncio.subprocess.DEVNULL, stdout=log, stderr=log,
                env={**os.environ, "PATH": SEARCH_PATH},
            )  # fmt: skip
        identity = ProcessId.of(self._qemu.pid)
        self.state.qemu_pid, self.state.qemu_started = (identity.pid, identity.started) if identity else (0, 0)
        self._qmp = QmpConnection(self._on_event)
        connecting = asyncio.create_task(self._qmp.connect(self.files.qmp_socket))
        ended = asyncio.create_task(self._qemu.wait())
        await asyncio.wait({connecting, ended}, return_when=asyncio.FIRST_COMPLETED)
        if not connecting.done() or connecting.exception():
            connecting.cancel()
            await self._kill_qemu()
            self._set_power("failed", f"QEMU did not start: {self._last_qemu_line()}")
            raise LabError(self.state.reason)
        if self.state.network == "cut":
            await self._links(up=False)
        self._set_power("on", reason)
        self._watch = asyncio.create_task(self._after_exit(ended))
        self._boot_watch = asyncio.create_task(self._watch_boot(console))

    async def _watch_boot(self, begin: int) -> None:
        """End QEMU where it has lost a timer of the guest early in the boot.

        begin: where in the console this boot begins, in bytes.
        """
        while time.time() - self.state.started_at <= EARLY_BOOT_S and self._crashes < STARTS_AFTER_CRASHES:
            await asyncio.sleep(CONSOLE_PAUSE_S)
            with self.files.console.open("rb") as file:
                file.seek(begin)
                text = file.read()
            if LOGIN in text:
                return
            if LOST_TIMER in text:
                self._lost_timer = True
                await self._kill_qemu()
                return

    async def _after_exit(self, ended: "asyncio.Task[int]") -> None:
        """Decide what follows when QEMU has gone."""
        code = await ended
        if self._boot_watch:
            self._boot_watch.cancel()
        await asyncio.sleep(0.1)  # the SHUTDOWN event may still be on its way
        if self._qmp:
            self._qmp.close()
        early = time.time() - self.state.started_at <= EARLY_BOOT_S
        crashed = self._lost_timer or (-code in CRASHES and early)
        self._crashes = self._crashes + 1 if crashed else 0
        if self._stopping.is_set():
            self._set_power("off", "the lab was stopped")
        elif self._shutdown_reason == "guest-reset":
            now = time.monotonic()
            if len(self._resets) == RESETS_PER_MINUTE and now - self._resets[0] < 60:
                self._set_power("failed", f"the guest reset {RESETS_PER_MINUTE} times within a minute")
                return
            self._resets.append(now)
            await self._start_again("guest reset")
        elif self._shutdown_reason in ("guest-shutdown", "host-qmp-quit"):
            self._set_power("off", self._shutdown_reason.replace("host-qmp-quit", "power cut"))
        elif crashed and self._crashes <= STARTS_AFTER_CRASHES:
            what = "lost a timer of the guest" if self._lost_timer else f"crashed (exit {code})"
            self._log(f"QEMU {what} in the first {EARLY_BOOT_S} s of a boot: {self._last_qemu_line()}")
            await self._start_again(f"started again, since QEMU had {what}")
        else:
            self._set_power("failed", f"QEMU ended by itself (exit {code}): {self._last_qemu_line()}")

    async def _start_again(self, reason: str) -> None:
        # The port was ours a moment ago; another program may hold it for a while.
        for attempt in range(5):
            try:
                await self._start(reason)
                return
            except LabError as error:
                self._log(str(error))
                await asyncio.sleep(2 + attempt)

    def _last_qemu_line(self) -> str:
        lines = self.files.qemu_log.read_text(errors="replace").splitlines()
        return next((line for line in reversed(lines) if line and not line.startswith("---")), "no message")

    async def _kill_qemu(self) -> None:
        if self._qemu and self._qemu.returncode is None:
            self._qemu.kill()
            await self._qemu.wait()

    async def _cut(self) -> None:
        """Power gone at once: nothing is flushed or told to the guest."""
        if self._qmp:
            with contextlib.suppress(LabError):
                await self._qmp.execute("quit", limit_s=QUIT_LIMIT_S)
        try:
            async with asyncio.timeout(QUIT_LIMIT_S):
                await self._off.wait()
        except TimeoutError:
            self._shutdown_reason = "host-qmp-quit"
            await self._kill_qemu()
            await self._off.wait()

    async def _shut_down(self, limit_s: float) -> bool:
        """Press the power button and wait; False when the guest does not follow within `limit_s`."""
        if not self._qmp:
            return False
        await self._qmp.execute("system_powerdown")
        try:
            async with asyncio.timeout(limit_s):
                await self._off.wait()
        except TimeoutError:
            return False
        return True

    async def _links(self, up: bool) -> None:
        if self._qmp is None:
            raise LabError("the node is off")
        for name in (UPLINK, PEER_NIC) if self.node.peer_network else (UPLINK,):
            await self._qmp.execute("set_link", {"name": name, "up": up})

    # --- commands ----------------------------------------------------------

    def _require_on(self) -> QmpConnection:
        if self.state.power != "on" or self._qmp is None:
            raise LabError(f"{self.node.name} is {self.state.power} ({self.state.reason}); switch it on first")
        return self._qmp

    async def command_status(self) -> dict[str, Any]:
        return asdict(self.state)

    async def command_power(self, action: str) -> dict[str, Any]:
        on = self.state.power in ("on", "starting")
        if action in ("off", "cut", "cycle") and on:
            if action == "off":
                if not await self._shut_down(ACPI_LIMIT_S):
                    raise LabError(
                        f"{self.node.name} ignored the power button for {ACPI_LIMIT_S} s; use: fault ... power cut"
                    )
            else:
                await self._cut()
        if action in ("on", "cycle") and self.state.power not in ("on", "starting"):
            await self._start(f"power {action}")
        return await self.command_status()

    async def command_clock(self, to: str) -> dict[str, Any]:
        offset = self.node.shape.clock_offset_s if to == "reset" else parse_offset(to)
        if self.state.power == "on" and not await self._shut_down(ACPI_LIMIT_S):
            await self._cut()
        self.state.rtc_offset_s = offset
        await self._start(f"clock {to}")
        return await self.command_status()

    async def _pull(self, serial: str) -> None:
        """Take a disk out of its bay; with the power on, once the guest has let go of it."""
        if self.state.power == "on":
            qmp, device = self._require_on(), f"disk-{serial}"
            self._deleted.discard(device)
            try:
                async with asyncio.timeout(UNPLUG_LIMIT_S):
                    # A guest that has just seen the disk come in blinks for some seconds and takes no request.
                    while not await self._ask_to_let_go(qmp, device):
                        await asyncio.sleep(BUSY_PAUSE_S)
                    while device not in self._deleted:
                        self._deletion.clear()
                        await self._deletion.wait()
            except TimeoutError:
                raise LabError(f"the guest did not let go of disk {serial} within {UNPLUG_LIMIT_S} s") from None
        self._disks.take_out(serial)
        self._save()

    async def _ask_to_let_go(self, qmp: QmpConnection, device: str) -> bool:
        """Press the button of a disk's bay; False where the guest is still busy with it."""
        try:
            await qmp.execute("device_del", {"id": device})
        except LabError as error:
            if "guest is busy" in str(error):
                return False
            raise
        return True

    async def _insert(self, serial: str, bay: int) -> None:
        if self.state.power == "on":
            shown = self.state.shown_serials.get(serial, serial)
            await self._require_on().execute("device_add", disk_device(serial, bay, shown))
        self._disks.put_in(serial, bay)
        self._save()

    async def command_disk_pull(self, serial: str) -> dict[str, Any]:
        if self._disks.bay_of(serial) is not None:
            await self._pull(serial)
        return await self.command_status()

    async def command_disk_insert(self, serial: str) -> dict[str, Any]:
        if self._disks.bay_of(serial) is None:
            await self._insert(serial, self._disks.bay_for(serial))
        return await self.command_status()

    async def command_disk_swap(self, serials: str) -> dict[str, Any]:
        first, second = self._disks.pair_to_swap(serials)
        bays = [self._disks.bays.index(second), self._disks.bays.index(first)]
        for serial in (first, second):
            await self._pull(serial)
        for serial, bay in zip((first, second), bays, strict=True):
            await self._insert(serial, bay)
        return await self.command_status()

    async def command_disk_serial(self, shows: str) -> dict[str, Any]:
        """Let a disk report another serial number; one that is in a bay is pulled and put back for it."""
        serial, shown = parse_shown(shows)
        bay = self._disks.bay_of(serial)
        if bay is not None:
            await self._pull(serial)
        self.state.shown_serials.pop(serial, None)
        if shown != serial:
            self.state.shown_serials[serial] = shown
        self._save()
        if bay is not None:
            await self._insert(serial, bay)
        return await self.command_status()

    async def command_disk_blank(self, serial: str) -> dict[str, Any]:
        """Turn a disk in the drawer into a new one of the same size."""
        self._disks.require_out(serial)
        size_mib = next(disk.size_mib for disk in self.node.shape.disks if disk.serial == serial)
        # The same file, not a new one in its place: QEMU has it open already, for when the disk is put in.
        with self.files.disk(serial).open("wb") as stream:
            stream.truncate(size_mib * 2**20)
        return await self.command_status()

    async def command_network(self, action: str) -> dict[str, Any]:
        if self.state.power == "on":
            await self._links(up=action == "restore")
        self.state.network = "up" if action == "restore" else "cut"
        self._save()
        return await self.command_status()

    async def command_stop(self) -> dict[str, Any]:
        """End node and supervisor: the power button first, then the plug."""
        self._stopping.set()
        if self.state.power in ("on", "starting") and not await self._shut_down(ACPI_LIMIT_S):
            await self._cut()
        return await self.command_status()

    async def command_kill(self) -> dict[str, Any]:
        """End node and supervisor at once (the node's disks are about to be thrown away)."""
        self._stopping.set()
        if self.state.power in ("on", "starting"):
            await self._cut()
        return await self.command_status()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            request = json.loads(await asyncio.wait_for(reader.readline(), 10))
            method = getattr(self, "command_" + request.pop("command").replace("-", "_"))
            if method == self.command_status:
                answer = await method()
            else:
                async with self._busy:
                    answer = await method(**request)
            reply = {"ok": True, "state": answer}
        except LabError as error:
            reply = {"ok": False, "error": str(error)}
        except Exception as error:  # a broken request must not end the node's owner
            reply = {"ok": False, "error": f"supervisor: {type(error).__name__}: {error}"}
        with contextlib.suppress(OSError):
            writer.write(json.dumps(reply).encode() + b"\n")
            await writer.drain()
            writer.close()
        if self._stopping.is_set() and self.state.power in ("off", "failed"):
            asyncio.get_running_loop().call_later(0.1, self._finished.set)

    async def run(self) -> None:
        """Serve commands until stopped."""
        self._finished = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._finished.set)
        self.files.control_socket.unlink(missing_ok=True)
        self.files.qmp_socket.unlink(missing_ok=True)
        server = await asyncio.start_unix_server(self._serve, str(self.files.control_socket))
        self._save()
        await self._finished.wait()
        server.close()
        self._stopping.set()
        if self.state.power in ("on", "starting"):
            await self._cut()
        for path in (self.files.control_socket, self.files.qmp_socket, self.files.supervisor_pid):
            path.unlink(missing_ok=True)
        self._log("supervisor ends")


def main() -> None:
    """`python -m lab.supervisor NODE_DIRECTORY SOCKET_DIRECTORY`, started by `lab up`."""
    files = NodeFiles(Path(sys.argv[1]), Path(sys.argv[2]))
    identity = ProcessId.of(os.getpid())
    if identity is None:
        raise SystemExit("cannot read /proc")
    identity.save(files.supervisor_pid)
    asyncio.run(Supervisor(files).run())


if __name__ == "__main__":
    main()
