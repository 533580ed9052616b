# SPDX-License-Identifier: Apache-2.0
"""What apt's source files say (sources.list(5)), and which of it is one repository spelled twice.

apt reads no source at all where two of one address and suite name different keys (NVIDIA/deepops#1166,
NVIDIA/ansible-role-nvidia-driver#59), so a repository has one source.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple
from urllib.parse import urlsplit

from .apt_stack_error import AptStackError


class Repository(NamedTuple):
    """An apt repository as the profile describes it; components are empty for a flat one (suites end in /)."""

    uri: str
    suites: tuple[str, ...]
    components: tuple[str, ...]

    @property
    def host(self) -> str:
        """Host name that a pin of origin compares; "" for file:."""
        return urlsplit(self.uri).hostname or ""


class Source(NamedTuple):
    """An enabled line or stanza of a file: the lines from `begin` up to `end` (exclusive, counted from 0)."""

    begin: int
    end: int
    uris: tuple[str, ...]
    suites: tuple[str, ...]
    signed_by: str


class Doubles(NamedTuple):
    """`files`: new content of each file that names the repository too (None = nothing is left of it, it goes);
    `taken_out`: a line of text for each source that is taken out."""

    files: dict[str, str | None]
    taken_out: list[str]


def _places(uris: Sequence[str], suites: Sequence[str]) -> set[tuple[str, str]]:
    """(address, suite) pairs in one spelling: no slash at the end, small letters in the host, a flat suite joined."""
    found = set()
    for uri in uris:
        parts = urlsplit(uri)
        for suite in suites:
            path, name = parts.path.rstrip("/"), suite
            if suite.endswith("/"):
                path, name = f"{path}/{re.sub('^[./]+', '', suite)}".rstrip("/"), "/"
            # file:/srv and file:///srv are one place
            found.add((f"{parts.scheme}://{parts.netloc.lower()}{re.sub('/+', '/', path)}", name))
    return found


def _without_scheme(places: set[tuple[str, str]]) -> set[tuple[str, str]]:
    return {(re.sub(r"^https?:", "", address), suite) for address, suite in places}


def parse_one_line(text: str) -> list[Source]:
    """Sources of a .list file."""
    found = []
    for number, line in enumerate(text.splitlines()):
        match = re.match(r"\s*deb(?:-src)?\s+(?:\[([^\]]*)\]\s+)?(\S+)\s+(\S+)", line)
        if match:
            options = dict(option.partition("=")[::2] for option in (match.group(1) or "").split())
            signed_by = {key.lower(): value for key, value in options.items()}.get("signed-by", "")
            found.append(Source(number, number + 1, (match.group(2),), (match.group(3),), signed_by))
    return found


def parse_deb822(text: str) -> list[Source]:
    """Sources of a .sources file; stanzas that are switched off are left out."""
    found = []
    lines = text.splitlines()
    begin = 0
    for number in range(len(lines) + 1):
        if number < len(lines) and lines[number].strip():
            continue
        stanza = lines[begin:number]
        fields: dict[str, str] = {}
        name = ""
        for line in stanza:
            if line.startswith("#"):
                continue
            if line[:1].isspace():
                fields[name] = f"{fields.get(name, '')} {line.strip()}"
                continue
            key, _colon, value = line.partition(":")
            name = key.strip().lower()
            fields[name] = value.strip()
        if fields.get("uris") and fields.get("enabled", "yes").lower() not in ("no", "false", "0", "without", "off"):
            found.append(
                Source(
                    begin,
                    number,
                    tuple(fields["uris"].split()),
                    tuple(fields.get("suites", "").split()),
                    fields.get("signed-by", ""),
                )
            )
        begin = number + 1
    return found


def parse_file(path: str, text: str) -> list[Source]:
    """Sources of a file, by its name."""
    return parse_deb822(text) if path.endswith(".sources") else parse_one_line(text)


def find_doubles(repository: Repository, files: Mapping[str, str]) -> Doubles:
    """What other source files (path -> text) say of the repository, and the files without it.

    Raises AptStackError for a source that cannot be taken out alone: it names other repositories too, or the same one
    with http in place of https, which may be meant.
    """
    mine = _places([repository.uri], repository.suites)
    changed: dict[str, str | None] = {}
    taken_out = []
    for path, text in files.items():
        goes: set[int] = set()
        sources = parse_file(path, text)
        for source in sources:
            theirs = _places(source.uris, source.suites)
            where = f"{path}, line {source.begin + 1}"
            if theirs & mine:
                if not theirs <= mine:
                    raise AptStackError(
                        f"{where} names {repository.uri} together with other repositories, and apt reads no source at "
                        "all where one repository is listed with two keys. Nothing was changed",
                        f"take {repository.uri} with suite {', '.join(repository.suites)} out of {path} by hand",
                    )
                goes.update(range(source.begin, source.end))
                key = f" (key {source.signed_by})" if source.signed_by else ""
                taken_out.append(f"{where}: {' '.join(source.uris)} {' '.join(source.suites)}{key}")
            elif _without_scheme(theirs) & _without_scheme(mine):
                raise AptStackError(
                    f"{where} names {' '.join(source.uris)}, which is {repository.uri} by another scheme, so packages "
                    "would come by either. Nothing was changed",
                    f"remove it from {path} by hand, or put the same address into the profile",
                )
        if not goes:
            continue
        kept = [line for number, line in enumerate(text.splitlines()) if number not in goes]
        meaningful = any(line.strip() and not line.lstrip().startswith("#") for line in kept)
        changed[path] = "\n".join(kept) + "\n" if meaningful else None
    return Doubles(changed, taken_out)


def render_source(repository: Repository, key_path: str, stack: str) -> str:
    """The .sources file of a stack."""
    lines = [
        f"# Written by gpufleet for the stack {stack}; changes made here are lost.",
        "Types: deb",
        f"URIs: {repository.uri}",
        f"Suites: {' '.join(repository.suites)}",
    ]
    if repository.components:
        lines.append(f"Components: {' '.join(repository.components)}")
    return "\n".join([*lines, f"Signed-By: {key_path}"]) + "\n"


def shared_source(repository: Repository, files: Mapping[str, str]) -> tuple[str, str] | None:
    """(file, path of its key) of another stack's own source of exactly this repository, or None.

    Two stacks may come from one repository (the driver and DCGM from NVIDIA's CUDA repository). The one that was there
    first keeps the source, the other uses it: each taking the other's out would change the node in every run.
    """
    for path, text in files.items():
        stack = re.fullmatch(r"gpufleet-(.+)\.sources", path.rpartition("/")[2])
        sources = parse_file(path, text)
        if not stack or len(sources) != 1:
            continue
        key_path = sources[0].signed_by
        if key_path and text == render_source(repository, key_path, stack.group(1)):
            return path, key_path
    return None


def render_blacklist(patterns: Sequence[str], stack: str) -> str:
    """The apt.conf.d file that keeps unattended-upgrades off packages."""
    entries = "".join(f'  "{pattern}";\n' for pattern in patterns)
    return (
        f"// Written by gpufleet for the stack {stack}; changes made here are lost.\n"
        f"Unattended-Upgrade::Package-Blacklist {{\n{entries}}};\n"
    )
