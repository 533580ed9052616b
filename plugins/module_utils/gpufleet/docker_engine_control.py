# SPDX-License-Identifier: Apache-2.0
"""The container engine on a node: started, reloaded, restarted where that is called for and allowed, and judged."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from typing import Any

from . import docker_engine_record
from .apt_packages import PackageError, read_state
from .container_toolkit_devices import make_links, nodes, unlinked
from .docker_api import SOCKET, Engine, Info, NoAnswer, names
from .docker_daemon_file import DaemonFile
from .docker_daemon_json import render
from .docker_engine_record import RECORD, Record
from .docker_engine_start import loaded_driver, text_at_start
from .docker_engine_verdict import Expected, Needs, may_restart, mismatches, needs_of_file, needs_of_node
from .docker_error import DockerError
from .docker_service import UNIT, journal, not_enabled, read_service, reason_of, systemctl
from .docker_unit import PROXY_VARIABLES, proxies
from .package_version import upstream_version

ROOT = ""
# A reload is over in milliseconds; the limit is for a machine that has other things to do.
RELOAD_LIMIT_S = 20.0
Run = Callable[[Sequence[str]], tuple[int, str, str]]


def _read(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""


class EngineOnNode:
    """`actions`: what was done, or would be in check mode; `pending`: reasons for a restart that was not allowed;
    `running`: names of running containers, for a message; `info`: what the engine says."""

    def __init__(
        self,
        expected: Expected,
        engine_package: str | None,
        data_root_mount: str | None,
        restart_allowed: bool,
        timeout_s: int,
        check_mode: bool,
        foreseen: dict[str, Any] | None,
        run: Run,
    ) -> None:
        self._expected, self._package, self._mount = expected, engine_package, data_root_mount
        self._allowed, self._timeout_s, self._check, self._run = restart_allowed, timeout_s, check_mode, run
        self._foreseen = foreseen
        self._api = Engine(ROOT + SOCKET)
        self.actions: list[str] = []
        self.pending: list[str] = []
        self.running = ""
        self.info: Info | None = None
        self.service = read_service()
        if self.service.active:
            self.info = self._ask()

    def _ask(self) -> Info:
        try:
            return self._api.wait(RELOAD_LIMIT_S)
        except NoAnswer as error:
            raise DockerError(
                f"{UNIT} is active, and the engine does not answer: {error}. It was left as it is. The end of its "
                f"journal:\n{journal()}",
                "see journalctl -u docker.service and -u containerd.service on the node; a hung engine is freed by "
                "systemctl restart docker.service (containers go on where live restore is on)",
            ) from error

    def describe(self) -> str:
        """State as the lines of a diff."""
        state = "active" if self.service.active else ("failed" if self.service.failed else "inactive")
        lines = [f"{UNIT}: {state if self.service.installed else 'not installed'}"]
        lines += [f"{key}: {value}" for key, value in self.facts().items()]
        return "\n".join(lines) + "\n"

    def facts(self) -> dict[str, Any]:
        """What the engine says of itself, without what changes all the time."""
        if self.info is None:
            return {}
        shown = ("version", "storage_driver", "data_root", "cgroup_version", "cgroup_driver", "live_restore")
        return {
            **{field: getattr(self.info, field) for field in shown},
            "runtimes": sorted(self.info.runtimes),
            "default_runtime": self.info.default_runtime,
        }

    def bring_about(self) -> None:
        """Everything in order; raises DockerError."""
        if not self.service.installed:
            if self._check:
                return  # the packages start it when they are installed
            raise DockerError(f"{UNIT} is not there", "run the role's part docker_install first")
        self._enable()
        file = DaemonFile(root=ROOT)
        if self._check and self._foreseen is not None:
            file.settings = self._foreseen
        file.refuse_clashes(file.settings)
        if self.service.needs_daemon_reload and not self._check:
            # Containers that run keep their GPUs over it only where these links are.
            devices = nodes(ROOT)
            make_links(unlinked(devices, ROOT), devices, ROOT)
            systemctl("daemon-reload")
        if self.info is None:
            self._start(file)
        else:
            self._bring_up_to_date(file, self.info)
        if not self._check and not self.pending:
            self._verify()

    def _enable(self) -> None:
        for unit in not_enabled():
            self.actions.append(f"enable {unit}")
            if not self._check:
                systemctl("unmask", unit)
                done = systemctl("enable", unit)
                if done.rc != 0:
                    raise DockerError(f"{unit} cannot be enabled: {done.said()}", f"look at systemctl status {unit}")

    def _refuse_unmounted(self) -> None:
        if self._mount and not os.path.ismount(ROOT + self._mount):
            raise DockerError(
                f"nothing is mounted at {self._mount}, where the engine's data root has to lie: it would fill the root "
                "disk. The engine was not started",
                "bring the pool back first (playbooks/storage.yml), or correct platform.docker.data_root",
            )

    def _start(self, file: DaemonFile) -> None:
        self.actions.append(f"start {UNIT}")
        if not self._check:
            self._refuse_unmounted()
            self._run_or_put_back("start", file)

    def _bring_up_to_date(self, file: DaemonFile, info: Info) -> None:
        record = docker_engine_record.read(ROOT + RECORD)
        text = text_at_start(file, self.service, ROOT)
        known = record if record is not None and record.invocation == self.service.invocation else None
        loaded = DaemonFile.settings_of(text, file.path) if text is not None else None
        needs = needs_of_file(loaded, file.settings, info)
        if needs.reload:
            self.actions.append(f"reload {UNIT} ({', '.join(needs.reload)})")
            if not self._check:
                keys = needs.reload
                info, needs = self._reload(file, needs.restart)
                if loaded is not None:
                    self._note_reload({**loaded, **{key: file.settings[key] for key in keys}}, record)
        node = needs_of_node(
            info,
            self._installed(),
            known.driver if known else None,
            loaded_driver(ROOT),
            self._process_proxies(),
            proxies(ROOT),
            record.proxies if record else {},
        )
        reasons = [*needs.restart, *node]
        self.info = info
        if not reasons:
            self._remember(file, known)
        elif may_restart(info, self._allowed):
            self.actions.append(f"restart {UNIT} ({'; '.join(reasons)})")
            if not self._check:
                self._restart(file, info)
        else:
            self.pending = reasons
            self.running = self._names()

    def _note_reload(self, loaded: dict[str, Any], record: Record | None) -> None:
        """Note what the engine has now, since a restart for the rest may have to wait."""
        same = record is not None and record.invocation == self.service.invocation
        driver = record.driver if record is not None and same else loaded_driver(ROOT)
        known = record.proxies if record is not None else proxies(ROOT)
        docker_engine_record.write(
            ROOT + RECORD, Record(self.service.invocation, render(loaded).decode(), driver, known)
        )

    def _reload(self, file: DaemonFile, restart: list[str]) -> tuple[Info, Needs]:
        """SIGHUP, and what is still open after it: a key that has not taken effect becomes a reason for a restart."""
        done = systemctl("reload", UNIT)
        if done.rc != 0:
            raise DockerError(
                f"{UNIT} cannot be reloaded: {done.said()}", "see journalctl -u docker.service on the node"
            )
        info = self._api.wait(RELOAD_LIMIT_S)
        needs = needs_of_file(file.settings, file.settings, info)
        waited = 0
        while needs.reload and waited < 10:
            # The signal is served beside the API.
            time.sleep(0.5)
            waited += 1
            info = self._api.wait(RELOAD_LIMIT_S)
            needs = needs_of_file(file.settings, file.settings, info)
        late = [f"daemon.json: {key}, which a reload did not bring into effect" for key in needs.reload]
        return info, needs._replace(reload=[], restart=[*restart, *late])

    def _restart(self, file: DaemonFile, info: Info) -> None:
        before = self._api.running()
        self._refuse_unmounted()
        self._run_or_put_back("restart", file)
        if not info.live_restore:
            return
        lost = {key: name for key, name in before.items() if key not in self._api.running()}
        if lost:
            raise DockerError(
                f"the engine was restarted with live restore, and containers that ran before do not run any more: "
                f"{names(lost)}",
                "see docker ps --all and journalctl -u docker.service on the node, and start them again",
            )

    def _run_or_put_back(self, verb: str, file: DaemonFile) -> None:
        """Start or restart the engine; where it does not come back, do so with the file that it last ran with."""
        record = docker_engine_record.read(ROOT + RECORD)
        began = time.time()
        fault = self._attempt(verb)
        if fault is None:
            self._remember(file, None)
            return
        said = journal(began)
        if record is None or record.text == file.text():
            raise DockerError(
                f"the engine does not come back: {fault}. The end of its journal:\n{said}",
                "mend what the journal names, then run again; containerd.service has a journal of its own",
            )
        with open(f"{ROOT}{file.path}.failed", "wb") as kept:
            kept.write(file.content or b"")
        failed = file.path + ".failed"
        # Older releases take no empty file.
        file.write_bytes((record.text or "{}\n").encode())
        again = self._attempt("start")
        state = "the engine runs with it" if again is None else "the engine does not start with it either"
        if again is None:
            self._remember(file, None)
        raise DockerError(
            f"the engine does not come back with the new {file.path}: {fault}. The one that it last ran with is in "
            f"place again, and {state}; the new one is {failed}. The end of its journal:\n{said}",
            "correct the settings that the journal names (docker_daemon_settings, platform.docker), then run again",
        )

    def _attempt(self, verb: str) -> str | None:
        """Start or restart; why the engine is not there afterwards, None where it is."""
        began = time.time()
        systemctl("reset-failed", UNIT)  # three failed starts within a minute would block the next one
        done = systemctl(verb, UNIT, limit_s=self._timeout_s)
        if done.outcome == "timeout":
            running = (
                "; a container that cannot be stopped holds it up (a process in state D: see ps -eo state,pid,cmd)"
            )
            return (
                f"systemctl {verb} {UNIT} did not end within {self._timeout_s} s{running if verb == 'restart' else ''}"
            )
        self.service = read_service()
        if done.rc != 0:
            return reason_of(journal(began), f"systemctl {verb} {UNIT} failed: {done.said()}")
        try:
            self.info = self._api.wait(self._timeout_s if self.service.active else 0)
        except NoAnswer as error:
            return str(error)
        self.service = read_service()
        return None

    def _remember(self, file: DaemonFile, known: Record | None) -> None:
        """Note what the engine has read; `known` is the note that there is on the same start."""
        driver = known.driver if known and known.driver else loaded_driver(ROOT)
        record = Record(self.service.invocation, file.text(), driver, proxies(ROOT))
        if not self._check and record != docker_engine_record.read(ROOT + RECORD):
            docker_engine_record.write(ROOT + RECORD, record)

    def _verify(self) -> None:
        info = self.info
        if info is None:
            return
        wrong = mismatches(info, self._expected._replace(version=self._installed()))
        if wrong:
            cgroup = any(line.startswith("cgroup") for line in wrong)
            raise DockerError(
                f"the engine runs, but {'; '.join(wrong)}",
                "kernel parameter systemd.unified_cgroup_hierarchy chooses the version of control groups"
                if cgroup
                else "see journalctl -u docker.service on the node for what it makes of /etc/docker/daemon.json",
            )

    def _installed(self) -> str | None:
        if self._package is None:
            return None
        try:
            version = read_state(self._package, self._run).version
        except PackageError:
            return None
        return upstream_version(version) if version else None

    def _process_proxies(self) -> dict[str, str]:
        words = _read(f"{ROOT}/proc/{self.service.pid}/environ").split("\0")
        values = dict(word.partition("=")[::2] for word in words if "=" in word)
        return {name: values[name] for name in PROXY_VARIABLES if name in values}

    def _names(self) -> str:
        try:
            return names(self._api.running())
        except NoAnswer:
            return "which ones, the engine does not say"
