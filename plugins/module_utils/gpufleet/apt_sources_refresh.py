# SPDX-License-Identifier: Apache-2.0
"""Why `apt-get update` could not use a source: told from what it prints.

apt 2 (Debian 12, Ubuntu 22.04 and 24.04) verifies with gpgv, apt 3 (Debian 13) with sqv; they use other words.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from .apt_sources import Repository, parse_file
from .apt_stack_error import AptStackError

# How apt, and TLS where a key is fetched, tell that the node's clock is behind.
EARLY = r"is not valid yet|certificate is not yet valid"
# kind -> how apt tells it; the first that fits counts, since one fault draws further lines after it.
SIGNS = (
    ("early", EARLY),
    ("stale", r"Release file for \S+ is expired"),
    ("expired_key", r"EXPKEYSIG|KEYEXPIRED|[Ee]xpired on \d|key.*\bexpired|certificate.*\bexpired"),
    ("wrong_key", r"NO_PUBKEY|BADSIG|Missing key|not signed|[Nn]o good signature|signatures? couldn't be verified"),
    ("unreachable", r"Could not (?:connect|resolve|handshake)|Connection (?:failed|timed out|refused|reset)|"
     r"Unable to connect|Temporary failure resolving|Failed to fetch|does not have a Release file|File not found"),
)  # fmt: skip
STEPS = {
    "early": "the node's clock is behind: set it (playbooks/platform.yml does), then run again",
    "stale": "the server's Release file is past its Valid-Until: renew the mirror, or check the node's clock",
    "expired_key": "take the vendor's renewed key (repository.key_url and key_sha256 in the profile), or check the "
    "node's clock",
    "wrong_key": "compare repository.key_url and key_sha256 in the profile with the key that the vendor names",
    "unreachable": "check repository.uri, suites and components in the profile, and the node's way to that server "
    "(proxy, name resolution)",
    "other": "run apt-get update on the node and see what it says",
}
WORDS = {
    "early": "is not valid yet by this node's clock",
    "stale": "is out of date",
    "expired_key": "is signed with a key that has expired",
    "wrong_key": "is not signed with the key of the profile",
    "unreachable": "cannot be read",
    "other": "cannot be used",
}


def is_clock_behind(text: str) -> bool:
    """Whether an error says that what was fetched is not valid yet."""
    return re.search(EARLY, text) is not None


def complaints(text: str) -> list[str]:
    """Error and warning lines of apt-get update, each once."""
    lines = [line.strip() for line in text.splitlines() if re.match(r"\s*(E|W|Err)\b ?:", line)]
    return list(dict.fromkeys(lines))


def transaction_complaints(text: str) -> list[str]:
    """Lines of apt-get install that say what went wrong, dpkg's and its scripts' too; the last ones."""
    pattern = r"\s*(E:|W:|dpkg\S*:|[Ee]rror\b)|.*(script subprocess|[Nn]o space left)"
    return list(dict.fromkeys(line.strip() for line in text.splitlines() if re.match(pattern, line)))[-8:]


def fault_of(repository: Repository, text: str) -> AptStackError | None:
    """What stops apt from using the repository, None where it can be used; `text` = what apt-get update printed."""
    address = re.escape(repository.uri.rstrip("/"))
    # The reason of an "Err:" line, and of sqv, stands on the lines after it.
    found = [line for line in complaints(text) if re.search(address + r"(?![^/\s'])", line)]
    if not found:
        return None
    said = "; ".join(found)
    around = text if re.search(r"^Err:\d+ " + address, text, re.MULTILINE) else said
    kind = next((name for name, sign in SIGNS if re.search(sign, said)), None)
    kind = kind or next((name for name, sign in SIGNS if re.search(sign, around)), None)
    if kind is None:
        # apt uses a source all the same where it only warns (Conflicting distribution, a weak algorithm).
        if all(line.startswith("W:") for line in found):
            return None
        kind = "other"
    return AptStackError(f"repository {repository.uri} {WORDS[kind]}: {said}. Nothing was changed", STEPS[kind])


def conflict_of_keys(text: str, files: Mapping[str, str]) -> AptStackError | None:
    """The error for two sources of one address with different keys, with the files that hold them."""
    match = re.search(r"Conflicting values set for option (\S+) regarding source (\S+) ([^:]*):", text)
    if not match:
        return None
    option, address = match.group(1), match.group(2).rstrip("/")
    holding = [
        path
        for path, content in sorted(files.items())
        if any(uri.rstrip("/") == address for source in parse_file(path, content) for uri in source.uris)
    ]
    return AptStackError(
        f"apt reads no source at all: {address} is listed with different {option} in {', '.join(holding) or '?'}"
        ". Nothing was changed",
        "leave one of them (older installations wrote a .list file beside the .sources file)",
    )
