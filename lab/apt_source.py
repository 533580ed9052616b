# SPDX-License-Identifier: Apache-2.0
"""Where the image's packages come from: this machine's own apt sources, or a variable.

No mirror is named in the repository. On a Debian machine the mirror that the
machine itself uses is taken; elsewhere GPUFLEET_APT_MIRROR must name one.
"""

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from lab.errors import LabError

SUITE = "bookworm"
COMPONENTS = "main contrib non-free non-free-firmware"
MIRROR_VARIABLE = "GPUFLEET_APT_MIRROR"
SECURITY_VARIABLE = "GPUFLEET_APT_SECURITY_MIRROR"


@dataclass(frozen=True)
class AptMirrors:
    """Base addresses of the Debian archive and of its security archive."""

    main: str
    security: str

    def sources_list(self) -> str:
        """The guest's /etc/apt/sources.list, which is also what mmdebstrap installs from."""
        return "\n".join(
            (
                f"deb {self.main} {SUITE} {COMPONENTS}",
                f"deb {self.main} {SUITE}-updates {COMPONENTS}",
                f"deb {self.security} {SUITE}-security {COMPONENTS}",
            )
        )


def _entries(text: str, deb822: bool) -> Iterable[tuple[str, list[str]]]:
    """Yield (address, suites) of every enabled binary source in one apt sources file."""
    if not deb822:
        for line in text.splitlines():
            found = re.match(r"\s*deb\s+(?:\[[^\]]*\]\s+)?(\S+)\s+(\S+)", line)
            if found:
                yield found[1], [found[2]]
        return
    for stanza in re.split(r"\n\s*\n", text):
        fields: dict[str, str] = {}
        for line in stanza.splitlines():
            if line.startswith("#") or ":" not in line or line[0].isspace():
                continue
            name, value = line.split(":", 1)
            fields[name.strip().lower()] = value.strip()
        if "deb" in fields.get("types", "").split() and fields.get("enabled", "yes") != "no":
            for address in fields.get("uris", "").split():
                yield address, fields.get("suites", "").split()


def _os_release(root: Path) -> dict[str, str]:
    pairs = (line.split("=", 1) for line in (root / "etc/os-release").read_text().splitlines() if "=" in line)
    return {name: value.strip('"') for name, value in pairs}


def find_mirrors(environment: Mapping[str, str] | None = None, root: Path = Path("/")) -> AptMirrors:
    """The mirrors to build from. Raises LabError when neither variable nor machine names one."""
    environment = os.environ if environment is None else environment
    main = environment.get(MIRROR_VARIABLE, "").rstrip("/")
    security = environment.get(SECURITY_VARIABLE, "").rstrip("/")
    release = _os_release(root)
    if not main and release.get("ID") == "debian":
        codename = release.get("VERSION_CODENAME", "")
        files = [root / "etc/apt/sources.list", *sorted((root / "etc/apt/sources.list.d").glob("*"))]
        for path in (path for path in files if path.suffix in (".list", ".sources") and path.is_file()):
            for address, suites in _entries(path.read_text(), deb822=path.suffix == ".sources"):
                if codename in suites or "stable" in suites:
                    main = main or address.rstrip("/")
                if f"{codename}-security" in suites or "stable-security" in suites:
                    security = security or address.rstrip("/")
    if not main:
        raise LabError(
            f"no Debian mirror found in this machine's apt sources; set {MIRROR_VARIABLE} to one that has {SUITE}"
        )
    # Mirrors carry the security archive beside the main one by convention.
    return AptMirrors(main, security or re.sub(r"/debian$", "/debian-security", main))
