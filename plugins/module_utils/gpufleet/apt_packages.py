# SPDX-License-Identifier: Apache-2.0
"""One apt package at an exact version, held: read the state, bring it about, verify it.

Written for roles that pin: ansible.builtin.apt needs three tasks for install, hold and verification, refreshes the
package lists on every run unless it is told a cache age (and then installs nothing on a fresh image, whose lists are
empty although their folder is new), and its check mode needs python3-apt on the node.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import NamedTuple

# run(argv) -> (rc, stdout, stderr), with the C locale and no questions asked
Run = Callable[[Sequence[str]], "tuple[int, str, str]"]

# Unattended: keep the configuration files that are there, wait for another apt instead of failing.
APT_GET = (
    "apt-get",
    "--yes",
    "--no-install-recommends",
    "--allow-downgrades",
    "--allow-change-held-packages",
    "-o",
    "Dpkg::Options::=--force-confdef",
    "-o",
    "Dpkg::Options::=--force-confold",
    "-o",
    "DPkg::Lock::Timeout=300",
)
ENVIRONMENT = {
    "LC_ALL": "C",
    "LANGUAGE": "C",
    "DEBIAN_FRONTEND": "noninteractive",
    "APT_LISTCHANGES_FRONTEND": "none",
    "NEEDRESTART_SUSPEND": "1",
}


class PackageError(Exception):
    """A package could not be brought into the wanted state; the message says why and what to do."""


class PackageState(NamedTuple):
    """version is None where the package is not installed."""

    version: str | None
    held: bool

    def __str__(self) -> str:
        if self.version is None:
            return "not installed"
        return f"{self.version}, held" if self.held else self.version


def read_state(name: str, run: Run) -> PackageState:
    """What dpkg has on record for the package; one command."""
    rc, out, dummy = run(["dpkg-query", "--show", "--showformat=${db:Status-Abbrev}|${Version}\n", name])
    if rc != 0:
        return PackageState(None, False)
    abbreviation, dummy, version = out.strip().partition("|")
    # dpkg-query(1): first letter = what is wanted (h = hold), second = what is there (i = installed)
    installed = abbreviation[1:2] == "i"
    return PackageState(version if installed else None, installed and abbreviation[:1] == "h")


def read_versions(name: str, run: Run) -> tuple[str | None, list[str]]:
    """Candidate and all versions that the package lists offer; (None, []) where the lists know none."""
    rc, out, dummy = run(["apt-cache", "policy", name])
    if rc != 0:
        return None, []
    candidate = re.search(r"^  Candidate: (\S+)$", out, re.MULTILINE)
    versions = re.findall(r"^ (?:\*\*\*|   ) (\S+) -?\d+$", out, re.MULTILINE)
    if candidate is None or candidate.group(1) == "(none)":
        return None, versions
    return candidate.group(1), versions


def _install(arguments: Sequence[str], run: Run) -> tuple[int, str]:
    """apt-get with a repair of what an interrupted run left; returns rc and the lines that say what went wrong."""
    rc, out, err = run([*APT_GET, *arguments])
    if rc != 0 and "dpkg --configure -a" in err:
        run(["dpkg", "--force-confdef", "--force-confold", "--configure", "-a"])
        rc, out, err = run([*APT_GET, *arguments])
    lines = [line for line in (err + "\n" + out).splitlines() if re.match(r"(E|W|dpkg): ?", line)]
    return rc, "\n".join(lines[-8:]) or "\n".join(err.splitlines()[-8:])


def ensure_present(name: str, version: str | None, hold: bool, run: Run, check_mode: bool) -> PackageState:
    """Install the package (exactly `version`, else the candidate if it is missing) and set the hold.

    Returns the state afterwards; in check mode the state that a run would bring. Raises PackageError.
    """
    state = read_state(name, run)
    if state.version is None or version not in (None, state.version):
        if check_mode:
            wanted = version or read_versions(name, run)[0] or "the candidate of the package lists"
            return PackageState(wanted, hold)
        _install_version(name, version, run)
        state = read_state(name, run)
        if state.version is None or version not in (None, state.version):
            raise PackageError(
                f"package {name} is {state} after an installation that reported success; expected "
                f"{version or 'any version'}. Look at /var/log/apt/term.log on the node."
            )
    if state.held != hold:
        if not check_mode:
            rc, dummy, err = run(["apt-mark", "hold" if hold else "unhold", name])
            if rc != 0:
                raise PackageError(f"the hold of package {name} could not be changed: {err.strip()}")
        state = state._replace(held=hold)
    return state


def _install_version(name: str, version: str | None, run: Run) -> None:
    # Only here, where something has to be installed, are the lists worth their download.
    update_rc, update_said = _install(["update"], run)
    candidate, versions = read_versions(name, run)
    if version is not None and version not in versions:
        offered = ", ".join(versions) or "none"
        raise PackageError(
            f"package {name}={version} is not offered by the node's package sources (offered: {offered}). Correct the "
            f"version in the profile, or the node's apt sources.{_update_hint(update_rc, update_said)}"
        )
    if candidate is None:
        raise PackageError(
            f"package {name} is not known to the node's package sources. Check the node's apt sources and their "
            f"network.{_update_hint(update_rc, update_said)}"
        )
    rc, said = _install(["install", name if version is None else f"{name}={version}"], run)
    if rc != 0:
        raise PackageError(
            f"package {name} could not be installed (apt-get exit status {rc}): {said}"
            f"{_space_hint(said) or _update_hint(update_rc, update_said)}"
        )


def ensure_absent(name: str, run: Run, check_mode: bool) -> PackageState:
    """Remove the package, its configuration files stay. Returns the state that was there before."""
    state = read_state(name, run)
    if state.version is not None and not check_mode:
        rc, said = _install(["remove", name], run)
        if rc != 0:
            raise PackageError(f"package {name} could not be removed: {said}{_space_hint(said)}")
    return state


def _update_hint(rc: int, said: str) -> str:
    if rc == 0 and not said:
        return ""
    return f" The refresh of the package lists said: {said or f'exit status {rc}'}"


def _space_hint(said: str) -> str:
    if "No space left on device" in said or "don't have enough free space" in said:
        return " The node's disk is full: free some space (df -h), then run again."
    return ""
