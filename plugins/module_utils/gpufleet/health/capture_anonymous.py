# SPDX-License-Identifier: Apache-2.0
"""Take out of a capture what tells whose it is: serials, MAC addresses, GUIDs, IP addresses, host names, UUIDs.

Each value has one placeholder of its own shape in all probes, so that parsers read it and checks that compare values
judge as before. Two captures have placeholders of their own: nodes cannot be told from them.
"""

from __future__ import annotations

import ipaddress
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from .probe import ProbeResult

_HEX2 = "[0-9a-fA-F]{2}"
_HEX4 = "[0-9a-fA-F]{4}"
_NO_HEX_AROUND = (r"(?<![0-9a-fA-F])", r"(?![0-9a-fA-F])")

# What a value looks like, whatever stands around it.
_SHAPES: dict[str, str] = {
    "uuid": rf"{_HEX4}{_HEX4}-{_HEX4}-{_HEX4}-{_HEX4}-{_HEX4}{_HEX4}{_HEX4}|[0-9a-fA-F]{{32}}",
    # PCI device serial numbers (EUI-64) have hyphens; 20 bytes: hardware address of IP over InfiniBand
    "bytes": rf"{_HEX2}(?:-{_HEX2}){{7}}|{_HEX2}(?::{_HEX2}){{19}}|{_HEX2}(?::{_HEX2}){{7}}|{_HEX2}(?::{_HEX2}){{5}}",
    "guid": rf"{_HEX4}(?::{_HEX4}){{7}}|{_HEX4}(?::{_HEX4}){{3}}",
    "ipv6": r"(?<!\w)(?:[0-9a-f]{1,4}:){1,7}(?::[0-9a-f]{1,4}){0,6}:?[0-9a-f]{0,4}",
    "ipv4": r"(?<![\d.])(?:(?:25[0-5]|2[0-4]\d|1\d\d|[1-9]?\d)\.){3}(?:25[0-5]|2[0-4]\d|1\d\d|[1-9]?\d)(?!\.?\d)",
}
# What is one only because of the word in front of it; the value is then replaced wherever it stands.
_LABELLED: dict[str, tuple[str, ...]] = {
    "serial": (
        r"(?i:serial)(?i:[ _-]?(?:number|no|num))?[^A-Za-z0-9\n]{1,40}([A-Za-z0-9][A-Za-z0-9_]{5,})",
        # names in /dev/disk/by-id end with the serial number
        r"\b(?:nvme|ata|scsi)-[A-Za-z0-9][\w.+-]*?_([A-Za-z0-9]{6,})(?=(?:_\d+)?(?:-part\d+)?(?![\w-]))",
    ),
    "number": (
        r"(?i:guid)[^A-Za-z0-9\n]{1,20}(?:0x)?([0-9a-fA-F]{16})\b",
        r"\b(?:wwn-0x|eui\.|nvme-eui\.)([0-9a-f]{16,32})\b",
    ),
    "host": (
        # a line of the journal or of syslog: the time in either form, the host
        r"^(?:[A-Z][a-z]{2} [ \d]\d [\d:.]{8,}|\d{4}-\d\d-\d\dT[\d:.,]+(?:Z|[+-]\d\d:?\d\d)) (\S+) kernel:",
        r"Hostname set to <([^>\s]+)>",
        r"nodename=\"([^\"]+)\"",
    ),
}
# A name without a digit or a hyphen may be any word: it is replaced only where it is known to be the host's.
_TELLING_NAME = re.compile(r"(?=.*[\d-])[A-Za-z0-9][\w.-]{3,}")
_NO_NAMES = ("localhost", "localhost.localdomain", "(none)")


def anonymous(
    results: Mapping[str, ProbeResult], profile: Mapping[str, Any], host_names: Iterable[str] = ()
) -> dict[str, ProbeResult]:
    """The results with placeholders. What the profile names (a time server) is kept, so that the verdict is the same.

    host_names: names of the node that may stand anywhere.
    """
    texts = [text for name in sorted(results) for text in _texts(results[name])]
    replacement = _Replacement(texts, set(_strings(profile)), host_names)
    replaced = {}
    for name in sorted(results):  # in one order, so that the placeholders of one node are always the same
        stdout, stderr, why = (replacement.of(text) for text in _texts(results[name]))
        replaced[name] = results[name]._replace(stdout=stdout, stderr=stderr, why=why)
    return replaced


def _texts(result: ProbeResult) -> tuple[str, str, str]:
    return result.stdout, result.stderr, result.why


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, Mapping):
        for inner in value.values():
            yield from _strings(inner)
    elif isinstance(value, (list, tuple)):
        for inner in value:
            yield from _strings(inner)
    elif isinstance(value, str):
        yield value


class _Replacement:
    """One placeholder for each value, numbered by kind in the order in which the values are met."""

    def __init__(self, texts: Iterable[str], keep: set[str], host_names: Iterable[str]) -> None:
        self._keep = keep
        self._placeholders: dict[tuple[str, str], str] = {}
        self._counts: Counter[str] = Counter()
        self._labelled: dict[str, str] = {}  # kind by value
        for name in host_names:
            self._learn("host", name)
            self._learn("host", name.partition(".")[0])
        for text in texts:
            for kind, patterns in _LABELLED.items():
                for pattern in patterns:
                    for match in re.finditer(pattern, text, re.MULTILINE):
                        self._learn(kind, match[1])
        shapes = [rf"(?P<{kind}>{pattern})" for kind, pattern in _SHAPES.items()]
        shapes = [_NO_HEX_AROUND[0] + shape + _NO_HEX_AROUND[1] for shape in shapes]
        known = sorted(map(re.escape, self._labelled), key=len, reverse=True)
        literal = [rf"(?:(?<![A-Za-z0-9])|(?<=0x))(?P<literal>{'|'.join(known)})(?![A-Za-z0-9])"] if known else []
        self._anywhere = re.compile("|".join(literal + shapes))
        self._host_positions = re.compile("|".join(f"(?:{pattern})" for pattern in _LABELLED["host"]), re.MULTILINE)

    def _learn(self, kind: str, value: str) -> None:
        if value in self._keep or value in _NO_NAMES or not value.strip("0"):
            return
        if kind == "host" and not _TELLING_NAME.fullmatch(value):
            return
        if kind == "serial" and not any(one.isdigit() for one in value):
            return
        self._labelled.setdefault(value, kind)

    def of(self, text: str) -> str:
        """The text with placeholders."""
        text = self._host_positions.sub(self._host_in_place, text)
        return self._anywhere.sub(self._found, text)

    def _host_in_place(self, match: re.Match[str]) -> str:
        number = match.lastindex or 0
        name = match[number]
        if name in self._keep or name in _NO_NAMES:
            return match[0]
        begin, end = match.start(number) - match.start(), match.end(number) - match.start()
        return match[0][:begin] + self._placeholder("host", name) + match[0][end:]

    def _found(self, match: re.Match[str]) -> str:
        kind, value = str(match.lastgroup), match[0]
        if value in self._keep:
            return value
        return self._placeholder(self._labelled[value] if kind == "literal" else kind, value)

    def _placeholder(self, kind: str, value: str) -> str:
        key = (kind, _CANONICAL.get(kind, str)(value))
        if key not in self._placeholders:
            self._counts[kind] += 1
            self._placeholders[key] = _MAKE[kind](value, self._counts[kind])
        made = self._placeholders[key]
        # a boot id is printed with and without hyphens, and both must stay one
        return made.replace("-", "") if kind == "uuid" and "-" not in value else made


def _digits_of(value: str, keep: int, number: int, form: str) -> str:
    """The first `keep` hexadecimal or other digits of a value, then the number, in the value's own layout."""
    places = [index for index, one in enumerate(value) if one.isalnum()]
    digits = format(number, form).zfill(len(places) - keep)[-(len(places) - keep) :]
    made = list(value)
    for index, digit in enumerate(digits):
        made[places[keep + index]] = digit
    return "".join(made)


def _is_nothing(value: str) -> bool:
    """All zeros or ones: no address, but the way to say that there is none."""
    return not value.strip("0:-.") or not value.lower().strip("f:-")


def _uuid(value: str, number: int) -> str:
    return value if _is_nothing(value) else f"00000000-0000-4000-8000-{number:012d}"


def _bytes(value: str, number: int) -> str:
    return value if _is_nothing(value) else _digits_of(value, 6, number, "x")  # the first three name the maker


def _guid(value: str, number: int) -> str:
    return value if _is_nothing(value) else _digits_of(value, 4, number, "x")


def _serial(value: str, number: int) -> str:
    return _digits_of(value, min(4, len(value) - 3), number, "d")  # profiles choose disks by how a serial begins


def _number(value: str, number: int) -> str:
    return value if _is_nothing(value) else _digits_of(value, 6, number, "x")


def _host(value: str, number: int) -> str:
    return f"node-{number}"


def _ipv4(value: str, number: int) -> str:
    address = ipaddress.IPv4Address(value)
    first = int(value.partition(".")[0])
    if address.is_loopback or first in (0, 255) or value.startswith("255."):
        return value
    # RFC 2544: addresses for tests of networks
    return str(ipaddress.IPv4Address("198.18.0.0") + number)


def _ipv6(value: str, number: int) -> str:
    try:
        address = ipaddress.IPv6Address(value)
    except ValueError:
        return value
    # RFC 3849: addresses for documentation
    return value if address.is_loopback or int(address) == 0 else str(ipaddress.IPv6Address("2001:db8::") + number)


_CANONICAL: dict[str, Callable[[str], str]] = {
    "uuid": lambda value: value.replace("-", "").lower(),
    "bytes": str.lower,
    "guid": str.lower,
    "number": str.lower,
    "ipv6": str.lower,
}
_MAKE: dict[str, Callable[[str, int], str]] = {
    "uuid": _uuid,
    "bytes": _bytes,
    "guid": _guid,
    "serial": _serial,
    "number": _number,
    "host": _host,
    "ipv4": _ipv4,
    "ipv6": _ipv6,
}
