# SPDX-License-Identifier: Apache-2.0
"""Apt packages at exact versions, held: read the state, bring it about, verify it.

For one package there is ensure_present; packages that belong together (one version, one transaction) are read by
read_states and read_offers and brought by install_together, so that a group costs as many commands as one package.

Written for roles that pin: ansible.builtin.apt needs three tasks for install, hold and verification, refreshes the
package lists on every run unless it is told a cache age (and then installs nothing on a fresh image, whose lists are
empty although their folder is new), and its check mode needs python3-apt on the node.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
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


class UnknownPackages(PackageError):
    """The package lists know nothing of these `names`."""

    def __init__(self, names: Sequence[str], message: str) -> None:
        super().__init__(message)
        self.names = list(names)


class PackageState(NamedTuple):
    """version is None where the package is not installed; unfinished = an installation began and did not end."""

    version: str | None
    held: bool
    unfinished: bool = False

    def __str__(self) -> str:
        if self.version is None:
            return "installation unfinished" if self.unfinished else "not installed"
        return f"{self.version}, held" if self.held else self.version


class Offer(NamedTuple):
    """What the package lists offer; candidate is None where they know no version to install."""

    candidate: str | None
    versions: list[str]


def read_state(name: str, run: Run) -> PackageState:
    """What dpkg has on record for the package; one command."""
    rc, out, dummy = run(["dpkg-query", "--show", "--showformat=${db:Status-Abbrev}|${Version}\n", name])
    if rc != 0:
        return PackageState(None, False)
    abbreviation, dummy, version = out.strip().partition("|")
    return _state(abbreviation, version)


def _state(abbreviation: str, version: str) -> PackageState:
    # dpkg-query(1): first letter = what is wanted (h = hold), second = what is there (i = installed)
    status = abbreviation[1:2]
    # half-installed, unpacked, half-configured: what a script that failed or a power cut leaves
    if status in ("H", "U", "F"):
        return PackageState(None, False, True)
    installed = status == "i"
    return PackageState(version if installed else None, installed and abbreviation[:1] == "h")


def read_states(names: Collection[str], run: Run) -> dict[str, PackageState]:
    """What dpkg has on record for each of the packages; one command. Raises PackageError where dpkg cannot say."""
    states = {name: PackageState(None, False) for name in names}
    if not states:
        return states
    form = "--showformat=${Package}|${db:Status-Abbrev}|${Version}\n"
    rc, out, err = run(["dpkg-query", "--show", form, *states])
    # dpkg-query(1): 1 = one of the packages is unknown, which is an answer; 2 and more = no answer at all.
    if rc not in (0, 1):
        raise PackageError(
            f"dpkg-query cannot tell what is installed (exit status {rc}): {err.strip()} Look after the node's dpkg "
            "database (/var/lib/dpkg), then run again."
        )
    for line in out.splitlines():
        name, dummy, rest = line.partition("|")
        abbreviation, dummy, version = rest.partition("|")
        state = _state(abbreviation, version)
        # A package may be on record for a second architecture too.
        if name in states and states[name].version is None:
            states[name] = state
    return states


def read_all_states(run: Run) -> dict[str, PackageState]:
    """What dpkg has on record for every package; one command. Raises PackageError where dpkg cannot say.

    `unfinished` also stands for triggers that have not run; such a package has its version.
    """
    form = "--showformat=${Package}|${db:Status-Abbrev}|${Version}\n"
    rc, out, err = run(["dpkg-query", "--show", form])
    if rc != 0:
        raise PackageError(
            f"dpkg-query cannot tell what is installed (exit status {rc}): {err.strip()} Look after the node's dpkg "
            "database (/var/lib/dpkg), then run again."
        )
    states: dict[str, PackageState] = {}
    for line in out.splitlines():
        name, dummy, rest = line.partition("|")
        abbreviation, dummy, version = rest.partition("|")
        state = _state(abbreviation, version)
        # dpkg-query(1): W, t = triggers awaited or pending; a third letter R = has to be installed again
        if abbreviation[1:2] in ("W", "t") or abbreviation[2:3] == "R":
            state = PackageState(version or None, abbreviation[:1] == "h", True)
        # A package may be on record for a second architecture too.
        if name not in states or states[name].version is None:
            states[name] = state
    return states


def read_versions(name: str, run: Run) -> tuple[str | None, list[str]]:
    """Candidate and all versions that the package lists offer; (None, []) where the lists know none."""
    offer = read_offers([name], run)[name]
    return offer.candidate, offer.versions


def read_offers(names: Collection[str], run: Run) -> dict[str, Offer]:
    """What the package lists offer of each package; one command, no network."""
    offers = {name: Offer(None, []) for name in names}
    rc, out, dummy = run(["apt-cache", "policy", *offers])
    if rc != 0:
        return offers
    for block in re.split(r"^(?=\S)", out, flags=re.MULTILINE):
        name = block.partition(":\n")[0]
        candidate = re.search(r"^  Candidate: (\S+)$", block, re.MULTILINE)
        versions = re.findall(r"^ (?:\*\*\*|   ) (\S+) -?\d+$", block, re.MULTILINE)
        if name in offers:
            found = candidate is not None and candidate.group(1) != "(none)"
            offers[name] = Offer(candidate.group(1) if candidate and found else None, versions)
    return offers


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


def update_lists(run: Run) -> str:
    """Refresh the package lists. Returns what to add to the message of a later error: "" where all went well.

    A mirror that does not answer is no error by itself, since the lists of the other sources may do.
    """
    return _update_hint(*_install(["update"], run))


def refuse_unoffered(wanted: Mapping[str, str | None], offers: Mapping[str, Offer], update_hint: str) -> None:
    """Raise UnknownPackages or PackageError unless each package is offered, at its exact version where it has one."""
    unknown = [name for name in wanted if not offers[name].versions and offers[name].candidate is None]
    if unknown:
        what = "package {} is" if len(unknown) == 1 else "packages {} are"
        raise UnknownPackages(
            unknown,
            f"{what.format(', '.join(unknown))} not known to the node's package sources. Check the node's apt sources "
            f"and their network.{update_hint}",
        )
    for name, version in wanted.items():
        if version is not None and version not in offers[name].versions:
            raise PackageError(
                f"package {name}={version} is not offered by the node's package sources (offered: "
                f"{', '.join(offers[name].versions)}). Correct the version in the profile, or the node's apt sources."
                f"{update_hint}"
            )


def _bound_dependencies(wanted: Mapping[str, str | None], offers: Mapping[str, Offer], run: Run) -> dict[str, str]:
    """Dependencies that a package wants at its own version (its libraries), for those that are not the candidate.

    apt-get takes the candidate of whatever is not named, and gives up where an older one is needed.
    """
    old = {name: version for name, version in wanted.items() if version not in (None, offers[name].candidate)}
    found: dict[str, str] = {}
    if not old:
        return found
    dummy, out, dummy = run(["apt-cache", "show", *(f"{name}={version}" for name, version in old.items())])
    for record in out.split("\n\n"):
        fields = dict(re.findall(r"^(Package|Version|Depends|Pre-Depends): (.*)$", record, re.MULTILINE))
        version = old.get(fields.get("Package", ""))
        if version is None or fields.get("Version") != version:
            continue
        for field in ("Depends", "Pre-Depends"):
            for name, bound in re.findall(r"([a-z0-9][a-z0-9.+-]+)(?::\w+)? \(= ([^)]+)\)", fields.get(field, "")):
                if bound == version and name not in wanted:
                    found[name] = version
    return found


def install_together(
    wanted: Mapping[str, str | None],
    offers: Mapping[str, Offer],
    run: Run,
    *,
    update_hint: str = "",
    reinstall: bool = False,
    without: Iterable[str] = (),
    may_remove: Collection[str] = (),
) -> list[str]:
    """Install packages in one transaction: each at its exact version, else (None) at the candidate.

    `reinstall` unpacks those again that have that version. `without` names packages that must not come in as a
    dependency. apt is asked first what it would do: whatever is not in `may_remove` is never removed. Returns the names
    of those that went. Raises PackageError, before anything is changed where apt knows it beforehand.
    """
    targets = {**wanted, **_bound_dependencies(wanted, offers, run)}
    arguments = ["install", *(["--reinstall"] if reinstall else [])]
    arguments += [name if version is None else f"{name}={version}" for name, version in targets.items()]
    arguments += [f"{name}-" for name in without]
    what = " ".join(wanted)
    removed = _foresee_removals(arguments, what, run, update_hint, may_remove)
    rc, said = _install(arguments, run)
    if rc != 0:
        raise PackageError(
            f"{what} could not be installed (apt-get exit status {rc}): {said}{_space_hint(said) or update_hint}"
        )
    return removed


def _foresee_removals(
    arguments: Sequence[str], what: str, run: Run, update_hint: str, may_remove: Collection[str]
) -> list[str]:
    """Names that apt would remove; raises PackageError where that is more than may_remove, or where apt sees no way."""
    rc, out, err = run([*APT_GET, "--simulate", *arguments])
    if rc != 0 and "dpkg --configure -a" in err:
        return []  # the transaction itself repairs this, and a removal that was not foreseen is found afterwards
    if rc != 0:
        unmet = re.search(r"^The following packages have unmet dependencies:\n((?:^ .*\n)+)", out, re.MULTILINE)
        said = " ".join((unmet.group(1) if unmet else "").split())
        errors = " ".join(line for line in err.splitlines() if line.startswith("E: "))
        raise PackageError(
            f"apt-get sees no way to {arguments[0]} {what}: {said + ' ' if said else ''}{errors}. Nothing was changed "
            f"by this step.{update_hint}"
        )
    removed = re.findall(r"^(?:Remv|Purg) (\S+)", out, re.MULTILINE)
    others = sorted(set(removed) - set(may_remove))
    if others:
        raise PackageError(
            f"to {arguments[0]} {what}, apt-get would remove {', '.join(others)}. Nothing was changed by this step. "
            f"See on the node what stands against it (apt-get --simulate {' '.join(arguments)}), and remove those "
            "packages by hand if they are not needed."
        )
    return sorted(set(removed))


def hold(names: Sequence[str], run: Run) -> None:
    """Put packages on hold, so that no upgrade of the system moves them; one command. Raises PackageError."""
    rc, dummy, err = run(["apt-mark", "hold", *names])
    if rc != 0:
        raise PackageError(f"the hold of package {', '.join(names)} could not be set: {err.strip()}")


def purge_together(names: Sequence[str], run: Run) -> None:
    """Remove packages with their configuration files, and nothing else with them. Raises PackageError."""
    arguments = ["purge", *names]
    _foresee_removals(arguments, " ".join(names), run, "", names)
    rc, said = _install(arguments, run)
    if rc != 0:
        raise PackageError(f"package {', '.join(names)} could not be removed: {said}{_space_hint(said)}")


def ensure_absent(name: str, run: Run, check_mode: bool) -> PackageState:
    """Remove the package, its configuration files stay. Returns the state that was there before."""
    state = read_state(name, run)
    if (state.version is not None or state.unfinished) and not check_mode:
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
