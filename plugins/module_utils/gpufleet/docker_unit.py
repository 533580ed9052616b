# SPDX-License-Identifier: Apache-2.0
"""Flags that systemd starts dockerd with, and in which file each stands.

dockerd refuses to start where a key of daemon.json is a flag as well, even with the same value (moby,
daemon/config/config.go; NVIDIA/nvidia-docker#787; DGX systems have -H and --data-root in a drop-in). Units are read as
systemd.unit(5), systemd.service(5) and systemd.exec(5) say, without systemd, since the unit may not be loaded yet.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
from collections.abc import Mapping, Sequence
from typing import NamedTuple

UNIT = "docker.service"
# In the order in which one hides the next.
FOLDERS = (
    "/etc/systemd/system",
    "/run/systemd/system",
    "/usr/local/lib/systemd/system",
    "/usr/lib/systemd/system",
    "/lib/systemd/system",
)
# Flags whose key in daemon.json has another name (moby, opts.Named*Opts in daemon/command/config*.go).
KEY_OF_FLAG = {
    "add-runtime": "runtimes",
    "authorization-plugin": "authorization-plugins",
    "cdi-spec-dir": "cdi-spec-dirs",
    "cluster-store-opt": "cluster-store-opts",
    "default-address-pool": "default-address-pools",
    "default-network-opt": "default-network-opts",
    "default-ulimit": "default-ulimits",
    "dns-opt": "dns-opts",
    "exec-opt": "exec-opts",
    "feature": "features",
    "graph": "data-root",
    "host": "hosts",
    "insecure-registry": "insecure-registries",
    "label": "labels",
    "log-opt": "log-opts",
    "node-generic-resource": "node-generic-resources",
    "registry-mirror": "registry-mirrors",
    "storage-opt": "storage-opts",
}
SHORT = {
    "D": "debug",
    "G": "group",
    "H": "hosts",
    "b": "bridge",
    "g": "data-root",
    "l": "log-level",
    "p": "pidfile",
    "s": "storage-driver",
}
# Flags without a value behind a blank (dockerd(8)); `--debug=false` is one word.
SWITCHES = frozenset(
    {
        "debug",
        "experimental",
        "icc",
        "init",
        "ip-forward",
        "ip-masq",
        "ip6tables",
        "iptables",
        "ipv6",
        "live-restore",
        "no-new-privileges",
        "raw-logs",
        "rootless",
        "selinux-enabled",
        "tls",
        "tlsverify",
        "userland-proxy",
        "validate",
    }
)


class Flag(NamedTuple):
    """`key` is the name in daemon.json; `word` as it stands in the file `path`, line `line`."""

    key: str
    value: str
    word: str
    path: str
    line: int

    @property
    def place(self) -> str:
        """Where to look for it."""
        return f"{self.path}, line {self.line}"


class _Setting(NamedTuple):
    key: str
    value: str
    path: str
    line: int


def _read(path: str) -> str | None:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        return None


def unit_files(root: str = "", unit: str = UNIT) -> list[str]:
    """The unit's file and its drop-ins in the order in which systemd reads them, without `root` before them."""
    fragment = next((f"{folder}/{unit}" for folder in FOLDERS if os.path.isfile(f"{root}{folder}/{unit}")), None)
    drop_ins: dict[str, str] = {}
    for folder in (f"{place}/{name}.d" for name in (unit, "service") for place in FOLDERS):
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            for name in os.listdir(root + folder):
                if name.endswith(".conf"):
                    drop_ins.setdefault(name, f"{folder}/{name}")
    return ([fragment] if fragment else []) + [drop_ins[name] for name in sorted(drop_ins)]


def _settings(text: str, path: str) -> list[_Setting]:
    """Assignments of section [Service]."""
    found, section, pending, begun = [], "", "", 0
    for number, raw in enumerate(text.splitlines(), 1):
        line = raw.strip()
        if not line or line[0] in "#;":
            continue  # also between continued lines
        if not pending:
            begun = number
        if raw.endswith("\\"):
            pending += raw[:-1] + " "
            continue
        line, pending = (pending + raw).strip(), ""
        if line.startswith("["):
            section = line
        elif section == "[Service]" and "=" in line:
            key, _equals, value = line.partition("=")
            found.append(_Setting(key.strip(), value.strip(), path, begun))
    return found


def _words(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError:
        return text.split()


class _Variables:
    """Environment= and EnvironmentFile= of the unit, each value with its place."""

    def __init__(self, settings: Sequence[_Setting], root: str) -> None:
        self.found: dict[str, _Setting] = {}
        from_files: list[_Setting] = []
        for setting in settings:
            if setting.key == "Environment":
                if not setting.value:
                    self.found.clear()
                for word in _words(setting.value):
                    name, _equals, value = word.partition("=")
                    self.found[name] = setting._replace(key=name, value=value)
            elif setting.key == "EnvironmentFile":
                path = setting.value.lstrip("-")
                if not path:
                    from_files.clear()
                for number, line in enumerate((_read(root + path) or "").splitlines(), 1):
                    match = re.match(r"\s*(?:export\s+)?([A-Za-z_]\w*)=(.*)", line)
                    if match:
                        value = " ".join(_words(match.group(2)))
                        from_files.append(_Setting(match.group(1), value, path, number))
        # systemd.exec(5): files win over Environment=.
        self.found.update({setting.key: setting for setting in from_files})

    def values(self) -> dict[str, str]:
        return {name: setting.value for name, setting in self.found.items()}

    def expand(self, word: str, place: _Setting) -> list[tuple[str, _Setting]]:
        """Words that one word of a command line becomes, with where each comes from."""
        whole = re.fullmatch(r"\$([A-Za-z_]\w*)", word)
        if whole:  # a variable that is a word by itself is split
            setting = self.found.get(whole.group(1))
            return [(part, setting) for part in setting.value.split()] if setting else []
        used = [self.found[name] for name in re.findall(r"\$\{(\w+)\}", word) if name in self.found]
        text = re.sub(r"\$\{(\w+)\}", lambda match: self.found[match.group(1)].value
                      if match.group(1) in self.found else "", word)  # fmt: skip
        return [(text.replace("$$", "$"), used[0] if used else place)]


def engine_flags(root: str = "") -> list[Flag]:
    """Flags of dockerd in the unit and its drop-ins; none where there is no unit yet.

    Words behind the last ExecStart= that clears the list count, as in systemd.
    """
    settings = [setting for path in unit_files(root) for setting in _settings(_read(root + path) or "", path)]
    variables = _Variables(settings, root)
    starts: list[_Setting] = []
    for setting in settings:
        if setting.key == "ExecStart":
            starts = [*starts, setting] if setting.value else []
    flags: list[Flag] = []
    for start in starts:
        words = [pair for word in _words(start.value) for pair in variables.expand(word, start)]
        flags += _flags(words[1:])
    return flags


def _flags(words: Sequence[tuple[str, _Setting]]) -> list[Flag]:
    found, index = [], 0
    while index < len(words):
        word, place = words[index]
        index += 1
        long = re.fullmatch(r"--([a-z][\w.-]*)(?:=(.*))?", word, re.DOTALL)
        short = re.fullmatch(r"-([A-Za-z])=?(.*)", word, re.DOTALL)
        if long:
            name, value = long.group(1), long.group(2)
            key = KEY_OF_FLAG.get(name, name)
        elif short and short.group(1) in SHORT:
            key, value = SHORT[short.group(1)], short.group(2) or None
        else:
            continue
        if value is None and key not in SWITCHES and index < len(words):
            value = words[index][0]
            word, index = f"{word} {value}", index + 1
        found.append(Flag(key, value or "", word, place.path, place.line))
    return found


def clashes(settings: Mapping[str, object], flags: Sequence[Flag]) -> list[str]:
    """A line for each key of daemon.json that is a flag as well, with the place of the flag."""
    return [f"{flag.key} ({flag.word} in {flag.place})" for flag in flags if flag.key in settings]


PROXY_VARIABLES = ("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy")


def proxies(root: str = "") -> dict[str, str]:
    """Proxy variables that the unit gives dockerd, of Environment= and EnvironmentFile=."""
    settings = [setting for path in unit_files(root) for setting in _settings(_read(root + path) or "", path)]
    values = _Variables(settings, root).values()
    return {name: values[name].replace("%%", "%") for name in PROXY_VARIABLES if values.get(name)}
