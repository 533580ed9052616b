# SPDX-License-Identifier: Apache-2.0
"""modinfo of the file that modprobe would load, also where a line of /etc/modprobe.d puts another in its place."""

from __future__ import annotations

from .probe import ParseError

# modinfo_of <release> <module>. Debian renames NVIDIA's files and has "install nvidia modprobe -i nvidia-current-open
# $CMDLINE_OPTS", which modinfo knows nothing of; modprobe shows it (the same way as kernel_modules.parse_show_depends).
MODINFO_OF = r"""
modinfo_of() {
  last=$(modprobe --set-version "$1" --show-depends "$2" 2>/dev/null | tail -n 1)
  case $last in
    'insmod '*) name=$(echo "$last" | cut -d ' ' -f 2) ;;
    'install '*) name=$(echo "$last" | grep -oE -e '(-i|--ignore-install) [^ ]+' | tail -n 1 | cut -d ' ' -f 2) ;;
    *) name=$2 ;;
  esac
  modinfo -k "$1" "${name:-$2}" 2>&1
}
"""


def described(lines: list[str]) -> str | None:
    """What modinfo said of the module; None where there is none. Raises ParseError."""
    text = "\n".join(lines)
    if not text:
        raise ParseError("modinfo said nothing (is package kmod installed?)")
    if not text.startswith("modinfo: ERROR"):
        return text
    if len(lines) == 1 and text.startswith("modinfo: ERROR: Module ") and text.endswith(" not found."):
        return None
    raise ParseError(text[:200])
