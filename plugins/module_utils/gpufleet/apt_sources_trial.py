# SPDX-License-Identifier: Apache-2.0
"""Ask apt what it would do with other sources, pins, keys and holds, while the node's own stay as they are.

A copy of the configuration lies in a temporary folder, apt is pointed to it by APT_CONFIG, and the package lists of the
node are linked into it, so that only what has changed is fetched. Lists that were good can be taken over afterwards.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
from collections.abc import Collection, Mapping

# apt runs these after it has read the lists; they may write elsewhere.
HOOKS = ("APT::Update::Pre-Invoke", "APT::Update::Post-Invoke", "APT::Update::Post-Invoke-Success")


class Roots:
    """Where apt and dpkg keep what a trial copies; tests put them elsewhere."""

    etc = "/etc/apt"
    lists = "/var/lib/apt/lists"
    dpkg_status = "/var/lib/dpkg/status"


class Trial:
    """A folder that apt takes for its own. `command` before an apt command makes it use it."""

    def __init__(self, folder: str, files: Mapping[str, bytes | None], lift: Collection[str]) -> None:
        """`files` (path below /etc/apt -> content, None = absent) are laid over a copy of the node's configuration, and
        the holds of the packages in `lift` are off."""
        self.folder = folder
        # apt drops to the user _apt for downloads and signatures.
        os.chmod(folder, 0o755)
        self.lists = os.path.join(folder, "lists")
        for name in ("sources.list.d", "preferences.d", "apt.conf.d", "keyrings"):
            source = os.path.join(Roots.etc, name)
            if os.path.isdir(source):
                shutil.copytree(source, os.path.join(folder, name), ignore_dangling_symlinks=True)
            else:
                os.makedirs(os.path.join(folder, name))
        with contextlib.suppress(FileNotFoundError):
            shutil.copy(os.path.join(Roots.etc, "sources.list"), folder)
        for path, content in files.items():
            self._write(self.place_of(path), content)
        self._link_lists()
        self._write(os.path.join(folder, "status"), self._status_without_holds(lift))
        self._write(os.path.join(folder, "apt.conf.d", "zzzz-gpufleet-trial"), self._settings())
        self._write(os.path.join(folder, "apt.conf"), f'Dir::Etc::Parts "{folder}/apt.conf.d";\n')

    @property
    def command(self) -> list[str]:
        """What goes before apt-get or apt-cache."""
        return ["env", f"APT_CONFIG={self.folder}/apt.conf"]

    def place_of(self, path: str) -> str:
        """Where a path below /etc/apt lies in the trial."""
        return os.path.join(self.folder, os.path.relpath(path, Roots.etc))

    def take_over_lists(self) -> None:
        """Make the trial's package lists the node's. The lock is apt's own; the caller has waited for it."""
        os.makedirs(Roots.lists, exist_ok=True)
        with open(os.path.join(Roots.lists, "lock"), "a", encoding="ascii") as lock:
            fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            for name in self._list_names(self.lists):
                target = os.path.join(Roots.lists, name)
                temporary = f"{target}.gpufleet"
                _link_or_copy(os.path.join(self.lists, name), temporary)
                os.replace(temporary, target)

    @staticmethod
    def _list_names(folder: str) -> list[str]:
        try:
            names = sorted(os.listdir(folder))
        except FileNotFoundError:
            return []
        return [name for name in names if name != "lock" and os.path.isfile(os.path.join(folder, name))]

    def _link_lists(self) -> None:
        os.mkdir(self.lists)
        for name in self._list_names(Roots.lists):
            _link_or_copy(os.path.join(Roots.lists, name), os.path.join(self.lists, name))

    def _status_without_holds(self, lift: Collection[str]) -> str:
        with open(Roots.dpkg_status, encoding="utf-8", errors="surrogateescape") as file:
            stanzas = file.read().split("\n\n")
        for number, stanza in enumerate(stanzas):
            name = re.search(r"^Package: (\S+)$", stanza, re.MULTILINE)
            if name and name.group(1) in lift:
                stanzas[number] = re.sub(r"^Status: hold ", "Status: install ", stanza, flags=re.MULTILINE)
        return "\n\n".join(stanzas)

    def _settings(self) -> str:
        clear = "".join(f"#clear {name};\n" for name in HOOKS)
        return (
            f'{clear}Dir::Etc::SourceList "{self.folder}/sources.list";\n'
            f'Dir::Etc::SourceParts "{self.folder}/sources.list.d";\n'
            f'Dir::Etc::PreferencesParts "{self.folder}/preferences.d";\n'
            f'Dir::State::Lists "{self.lists}";\nDir::State::Status "{self.folder}/status";\n'
            f'Dir::Cache::PkgCache "{self.folder}/packages.bin";\n'
            f'Dir::Cache::SrcPkgCache "{self.folder}/sources.bin";\n'
        )

    @staticmethod
    def _write(path: str, content: str | bytes | None) -> None:
        if content is None:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)
            return
        data = content if isinstance(content, bytes) else content.encode("utf-8", "surrogateescape")
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)  # a link in the copy must not be written through
        with open(path, "wb") as file:
            file.write(data)
        os.chmod(path, 0o644)


def _link_or_copy(source: str, target: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(target)
    try:
        os.link(source, target)
    except OSError:  # another file system
        shutil.copy2(source, target)
