# SPDX-License-Identifier: Apache-2.0
"""apt-get, apt-cache, apt-mark and dpkg as a stack uses them: bounded, on the node or on a trial of its sources."""

from __future__ import annotations

import os
import re
import shutil
import time
from collections.abc import Iterable, Mapping, Sequence

from .apt_lock import wait_for_locks
from .apt_packages import ENVIRONMENT, PackageState, read_all_states
from .apt_plan import (
    Permission,
    Step,
    matches,
    packages_in,
    parse_simulation,
    refuse,
    unmet_dependencies,
    unsolvable,
)
from .apt_sources_refresh import complaints, conflict_of_keys, fault_of, transaction_complaints
from .apt_sources_trial import Trial
from .apt_stack_error import AptStackError
from .apt_stack_files import StackFiles
from .apt_stack_pins import Policy, parse_policy
from .bounded_command import CommandResult, run_bounded

# Seconds. Lists behind a slow uplink; packages of some 500 MB; dkms builds minutes for each kernel, within dpkg.
QUERY_LIMIT_S, REFRESH_LIMIT_S, DOWNLOAD_LIMIT_S, INSTALL_LIMIT_S = 120, 900, 3600, 7200
# Dependencies of dependencies at an exact version; the driver's go four deep.
MAX_DEPTH = 10
MAX_TRIES = 20
DPKG_UPDATES = "/var/lib/dpkg/updates"
KEEP_CONFFILES = ("--force-confdef", "--force-confold")


class Apt:
    """The commands; `deadline` (time.monotonic()) bounds all waiting for locks together."""

    def __init__(self, timeout_s: float, deadline: float) -> None:
        self._timeout_s, self._deadline = timeout_s, deadline

    def _run(self, argv: Sequence[str], limit_s: float, trial: Trial | None = None) -> CommandResult:
        result = run_bounded([*(trial.command if trial else []), *argv], limit_s, ENVIRONMENT)
        if result.outcome == "missing":
            raise AptStackError(f"{argv[0]} cannot be run: {result.stderr}", "is this a Debian or Ubuntu system?")
        if result.outcome == "timeout":
            raise AptStackError(
                f"{' '.join(argv[:6])} did not end within {limit_s:g} s and was stopped",
                "see what it waited for (/var/log/apt/term.log), then run again: what was begun is finished first",
            )
        return result

    def _apt_get(self, limit_s: float, *arguments: str, trial: Trial | None = None) -> CommandResult:
        """apt-get that asks nothing and keeps the node's configuration files."""
        options = ["--yes", "--no-install-recommends", "--allow-downgrades"]
        for option in KEEP_CONFFILES:
            options += ["-o", f"Dpkg::Options::={option}"]
        return self._run(["apt-get", *options, *arguments], limit_s, trial)

    def wait(self) -> None:
        """Return when no other apt works."""
        wait_for_locks(self._deadline, self._timeout_s)

    def _locked(self, limit_s: float, *arguments: str, trial: Trial | None = None) -> CommandResult:
        """apt-get that takes a lock; tried again while another process holds it."""
        for _number in range(MAX_TRIES):
            self.wait()
            result = self._apt_get(limit_s, *arguments, trial=trial)
            if result.rc == 0 or not re.search(r"Could not get lock|Unable to (acquire|lock)", result.stderr):
                break
            # Somebody came between; the wait above names who does not go.
            time.sleep(1)
        return result

    def states(self) -> dict[str, PackageState]:
        """What dpkg has on record for every package."""

        def run(argv: Sequence[str]) -> tuple[int, str, str]:
            result = self._run(argv, QUERY_LIMIT_S)
            return result.rc or 0, result.stdout, result.stderr

        return read_all_states(run)

    @staticmethod
    def unfinished(states: Mapping[str, PackageState]) -> list[str]:
        """Packages that an interrupted run left half done; one word where dpkg's own journal was left."""
        found = [name for name, state in states.items() if state.unfinished]
        if not found and os.path.isdir(DPKG_UPDATES) and any(name.isdigit() for name in os.listdir(DPKG_UPDATES)):
            found = ["dpkg's journal"]
        return found

    def configure(self) -> str:
        """dpkg --configure -a; returns the end of what it said."""
        return self._run(["dpkg", *KEEP_CONFFILES, "--configure", "-a"], INSTALL_LIMIT_S).said()

    def mark(self, verb: str, names: Iterable[str]) -> None:
        """Hold or unhold packages."""
        result = self._run(["apt-mark", verb, *sorted(names)], QUERY_LIMIT_S)
        if result.rc != 0:
            raise AptStackError(f"apt-mark {verb} failed: {result.said()}", "see whether dpkg works on the node")

    def refresh(self, trial: Trial, files: StackFiles) -> str:
        """Read the trial's lists. Returns what to add to the message of a later error: "" where all went well.

        A source of others that does not answer is no error by itself. Raises AptStackError for the stack's own.
        """
        result = self._apt_get(REFRESH_LIMIT_S, "update", trial=trial)
        text = f"{result.stdout}\n{result.stderr}"
        conflict = conflict_of_keys(text, files.other_sources)
        if conflict:
            raise conflict
        fault = fault_of(files.repository, text) if files.repository else None
        if fault:
            raise fault
        said = "; ".join(complaints(text))
        if "No space left on device" in text:
            raise full_disk(said)
        return f" The refresh of the package lists said: {said}" if said or result.rc else ""

    def policies(self, trial: Trial, names: Iterable[str]) -> dict[str, Policy]:
        """What the trial's lists offer of packages."""
        result = self._run(["apt-cache", "policy", *names], QUERY_LIMIT_S, trial)
        if result.rc != 0:
            raise AptStackError(f"apt-cache policy failed: {result.said()}", "correct what it names below /etc/apt")
        return parse_policy(result.stdout)

    def bring_pins(self, trial: Trial, chosen: Mapping[str, str]) -> None:
        """Lay the preferences files that packages would bring over the trial, as if those were installed already."""
        folder = os.path.join(trial.folder, "brought")
        os.makedirs(folder)
        for name, version in chosen.items():
            argv = ["env", "-C", folder, *trial.command, "apt-get", "--quiet", "download", f"{name}={version}"]
            result = self._run(argv, DOWNLOAD_LIMIT_S)
            if result.rc != 0:
                raise _not_fetched(result)
        for package in [entry for entry in os.listdir(folder) if entry.endswith(".deb")]:
            result = self._run(["dpkg-deb", "--extract", os.path.join(folder, package), folder], QUERY_LIMIT_S)
            if result.rc != 0:
                raise AptStackError(f"{package} cannot be unpacked: {result.said()}", "is the mirror's copy whole?")
        brought = os.path.join(folder, "etc", "apt", "preferences.d")
        if os.path.isdir(brought):
            for entry in os.listdir(brought):
                shutil.copy(os.path.join(brought, entry), os.path.join(trial.folder, "preferences.d"))

    def bound_dependencies(self, trial: Trial | None, chosen: Mapping[str, str]) -> dict[str, str]:
        """Dependencies at one exact version, of their dependencies too, where apt would take another by itself."""
        found: dict[str, str] = {}
        ask = dict(chosen)
        for _depth in range(MAX_DEPTH):
            argv = ["apt-cache", "show", *(f"{name}={version}" for name, version in ask.items())]
            wanted: dict[str, str] = {}
            for record in self._run(argv, QUERY_LIMIT_S, trial).stdout.split("\n\n"):
                wanted.update(exact_dependencies(record, ask))
            wanted = {name: version for name, version in wanted.items() if name not in found and name not in chosen}
            if not wanted:
                return found
            result = self._run(["apt-cache", "policy", *wanted], QUERY_LIMIT_S, trial)
            policies = parse_policy(result.stdout)
            ask = {}
            for name, version in wanted.items():
                policy = policies.get(name)
                if policy and version in policy.offered:
                    ask[name] = version
                    if policy.candidate != version:
                        found[name] = version
            if not ask:
                return found
        return found

    def foresee(
        self,
        trial: Trial,
        targets: Mapping[str, str],
        states: Mapping[str, PackageState],
        may: Permission,
        files: StackFiles,
        doubts: str,
    ) -> tuple[list[Step], list[str]]:
        """What apt would do, and the words after `install` that make it do so.

        apt's own search gives up on packages of another branch that conflict ("generated breaks, this may be caused by
        held packages"), so in a second try it is told that what stands against it goes; whether that may go is for
        refuse() to say. Raises AptStackError where apt sees no way then either.
        """
        words = transaction_words(targets)
        result = self._apt_get(QUERY_LIMIT_S, "--simulate", "install", *words, trial=trial)
        if result.rc == 0:
            return parse_simulation(result.stdout), words
        named = packages_in(unmet_dependencies(f"{result.stdout}\n{result.stderr}"))
        held = [name for name, state in states.items() if state.held and name not in may.stack]
        against = [
            f"{name}-"
            for name, state in states.items()
            if state.version and name not in targets and name not in held
            if name in named or matches(name, may.may_remove)
        ]
        if against:
            second = self._apt_get(QUERY_LIMIT_S, "--simulate", "install", *words, *against, trial=trial)
            if second.rc == 0:
                return parse_simulation(second.stdout), [*words, *against]
        raise unsolvable(result.stdout, result.stderr, held, files.blockers(sorted(named)), doubts)

    def download(self, trial: Trial, words: Sequence[str]) -> None:
        """Fetch the packages into the node's cache; nothing is unpacked."""
        result = self._locked(DOWNLOAD_LIMIT_S, "--download-only", "install", *words, trial=trial)
        if result.rc != 0:
            raise _not_fetched(result)

    def install(self, words: Sequence[str], may: Permission) -> None:
        """One transaction on the node. What it would do is judged again, since packages that came before carry pins."""
        simulated = self._apt_get(QUERY_LIMIT_S, "--simulate", "install", *words)
        if simulated.rc == 0:
            refuse(parse_simulation(simulated.stdout), may)
        result = self._locked(INSTALL_LIMIT_S, "install", *words)
        if result.rc != 0:
            said = "; ".join(transaction_complaints(f"{result.stdout}\n{result.stderr}")) or result.said()
            if is_full(said):
                raise full_disk(said)
            raise AptStackError(
                f"{' '.join(words)} could not be installed (apt-get exit status {result.rc}): {said}",
                "see /var/log/apt/term.log on the node; a further run finishes what was begun",
            )


def _not_fetched(result: CommandResult) -> AptStackError:
    said = "; ".join(complaints(f"{result.stdout}\n{result.stderr}")) or result.said()
    if is_full(said):
        return full_disk(f"{said}. Nothing was changed")
    return AptStackError(
        f"packages could not be fetched: {said}. Nothing was changed",
        "check the node's way to that server; a mirror may be in the middle of an update",
    )


def transaction_words(targets: Mapping[str, str]) -> list[str]:
    """Packages at exact versions, as apt-get install takes them."""
    return [f"{name}={version}" for name, version in targets.items()]


def exact_dependencies(record: str, asked: Mapping[str, str]) -> dict[str, str]:
    """Packages that a record of `apt-cache show` wants at one exact version, without an alternative."""
    fields = dict(re.findall(r"^(Package|Version|Depends|Pre-Depends): (.*)$", record, re.MULTILINE))
    if asked.get(fields.get("Package", "")) != fields.get("Version"):
        return {}
    found = {}
    for group in f"{fields.get('Pre-Depends', '')},{fields.get('Depends', '')}".split(","):
        match = re.fullmatch(r"\s*([a-z0-9][a-z0-9+.-]+)(?::\w+)? \(= ([^)\s]+)\)\s*", group)
        if match:
            found[match.group(1)] = match.group(2)
    return found


def is_full(said: str) -> bool:
    """Whether apt ran out of space."""
    return re.search(r"No space left on device|enough free space", said) is not None


def full_disk(said: str) -> AptStackError:
    """The error for a full disk."""
    return AptStackError(f"the node's disk is full: {said}", "free some space (df -h), then run again")
