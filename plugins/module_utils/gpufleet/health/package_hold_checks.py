# SPDX-License-Identifier: Apache-2.0
"""Whether anything could change the packages of the GPU stack by the way: holds, pins, unattended-upgrades."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from .check import Check, Profile
from .counted_output import counted, parts_of
from .finding import Evidence, Finding
from .node_evidence import NodeEvidence
from .probe import ParseError, Probe, ProbeResult

HOLDS = "apt.holds"

_SCRIPT = r"""
echo '== packages'
dpkg-query -W -f '${db:Status-Want} ${db:Status-Status} ${Package}\n' | grep -avE ' (not-installed|config-files) '
echo '== blacklist'
apt-config dump Unattended-Upgrade::Package-Blacklist
echo '== files'
grep -aHs '' /etc/apt/apt.conf.d/52gpufleet-* /etc/apt/preferences.d/gpufleet-*
"""
# deb-triggers(5), dpkg(1): states of a package that a cut off run leaves behind
_HALF = ("half-installed", "unpacked", "half-configured", "triggers-awaited", "triggers-pending")
_PATTERN = re.compile(r'Unattended-Upgrade::Package-Blacklist(?:::\S*)? "(.*)";')


class _Stack(NamedTuple):
    """key: of packages.<key>. files: the end of its files' names. core: packages that are of it for sure, whatever the
    node's files say."""

    key: str
    files: str
    core: re.Pattern[str]


_DRIVER = _Stack(
    "nvidia_driver",
    "nvidia-driver",
    re.compile(
        r"nvidia-(?:open|driver|kernel|dkms|fabricmanager|smi|persistenced|modules)|cuda-drivers|libcuda1"
        r"|libnvidia-(?:ml|compute|cfg|common)"
    ),
)
_RDMA = _Stack("rdma", "rdma", re.compile(r"doca-ofed|mlnx-ofed|rdma-core|ibverbs-providers|libibverbs1|librdmacm1"))
_DOCKER = _Stack("docker", "docker", re.compile(r"docker-ce|docker\.io$|containerd\.io$"))
_TOOLKIT = _Stack("container_toolkit", "toolkit", re.compile(r"nvidia-container-toolkit|libnvidia-container"))
_DCGM = _Stack("dcgm", "dcgm", re.compile(r"datacenter-gpu-manager(?!-exporter)"))
_EXPORTER = _Stack("dcgm_exporter", "dcgm-exporter", re.compile(r"datacenter-gpu-manager-exporter"))


class Holds(NamedTuple):
    """held: names on hold. installed: all other names. half: state by name of packages that are not whole.

    blacklist: patterns that unattended-upgrades goes by. files: content by path of the files that apt_stack wrote.
    """

    held: frozenset[str]
    installed: frozenset[str]
    half: Mapping[str, str]
    blacklist: tuple[str, ...]
    files: Mapping[str, str]


def parse_holds(result: ProbeResult) -> Holds:
    """Raises ParseError."""
    parts = parts_of(result, ("packages", "blacklist", "files"))
    held: set[str] = set()
    installed: set[str] = set()
    half = {}
    for line in parts["packages"]:
        words = line.split(" ")
        if len(words) != 3 or not all(words):
            raise ParseError(f"expected selection, state and package, got {line[:100]!r}")
        want, state, name = words
        (held if want == "hold" else installed).add(name)
        if state in _HALF:
            half[name] = state
    if not held | installed:
        raise ParseError("dpkg-query lists no package")
    blacklist = []
    for line in parts["blacklist"]:
        found = _PATTERN.fullmatch(line)
        if found is None:
            raise ParseError(f"no line of apt-config about the blacklist: {line[:100]!r}")
        blacklist += [found[1]] * bool(found[1])
    files: dict[str, list[str]] = {}
    for line in parts["files"]:
        path, colon, text = line.partition(":")
        if not colon or not path.startswith("/etc/apt/"):
            raise ParseError(f"no line of a file of apt: {line[:100]!r}")
        files.setdefault(path, []).append(text)
    contents = {path: "\n".join(lines) for path, lines in files.items()}
    return Holds(frozenset(held), frozenset(installed), half, tuple(blacklist), contents)


def check_driver_holds(evidence: NodeEvidence, profile: Profile) -> Iterable[Finding]:
    """Every package of the driver is held, at the pinned version, and out of the reach of unattended-upgrades.

    One night's upgrade of a library leaves GPUs that no program can use until a reboot, on all nodes at once.

    Source: packages.nvidia_driver of the profile; module apt_stack; bug 098
    """
    return _judge(evidence, profile, _DRIVER)


def check_rdma_holds(evidence: NodeEvidence, profile: Profile) -> Iterable[Finding]:
    """Every package of the RDMA stack is held, at the pinned version, and out of the reach of unattended-upgrades.

    Peer memory is built against this one stack: another version of it takes the GPUs off the fabric.

    Source: packages.rdma of the profile; module apt_stack
    """
    return _judge(evidence, profile, _RDMA)


def check_docker_holds(evidence: NodeEvidence, profile: Profile) -> Iterable[Finding]:
    """Every package of the engine is held, at the pinned version, and out of the reach of unattended-upgrades.

    An upgrade by the way restarts the engine under all jobs at once.

    Source: packages.docker of the profile; module apt_stack
    """
    return _judge(evidence, profile, _DOCKER)


def check_toolkit_holds(evidence: NodeEvidence, profile: Profile) -> Iterable[Finding]:
    """The toolkit's four packages are held, at the pinned version, and out of the reach of unattended-upgrades.

    Source: packages.container_toolkit of the profile; module apt_stack
    """
    return _judge(evidence, profile, _TOOLKIT)


def check_dcgm_holds(evidence: NodeEvidence, profile: Profile) -> Iterable[Finding]:
    """Every package of DCGM is held, at the pinned version, and out of the reach of unattended-upgrades.

    Source: packages.dcgm of the profile; module apt_stack; bug 090
    """
    return _judge(evidence, profile, _DCGM)


def check_exporter_holds(evidence: NodeEvidence, profile: Profile) -> Iterable[Finding]:
    """The exporter's package is held, at the pinned version, and out of the reach of unattended-upgrades.

    It fits one version of DCGM. With run_as container there is no package.

    Source: packages.dcgm_exporter of the profile; module apt_stack; bug 090
    """
    if profile["packages"]["dcgm_exporter"]["run_as"] == "container":
        return [Finding("node", "skipped", "the exporter is an image, which nothing upgrades by the way")]
    return _judge(evidence, profile, _EXPORTER)


def _judge(evidence: NodeEvidence, profile: Profile, stack: _Stack) -> Iterable[Finding]:
    wanted = profile["packages"][stack.key]
    if not wanted["manage"]:
        yield Finding("node", "skipped", f"the packages are somebody else's (packages.{stack.key}.manage is false)")
        return
    holds: Holds = evidence.facts(HOLDS)
    listed = _patterns(holds, stack)
    names = {
        name
        for name in holds.held | holds.installed
        if stack.core.match(name) or any(pattern.match(name) for pattern in listed)
    }
    troubles = list(_troubles(holds, stack, names, listed, wanted["version"]))
    for observed, expected, excerpt in troubles:
        yield Finding(
            "node",
            "warn",
            observed,
            expected,
            "none",
            "run playbooks/gpu_stack.yml on this node; it alone changes these packages",
            (Evidence(HOLDS, excerpt),),
            "module apt_stack",
        )
    if not troubles:
        pinned = f", pinned to {wanted['version']}" if wanted["version"] else ""
        text = f"{len(names)} packages held{pinned}, and kept from unattended-upgrades"
        yield Finding("node", "ok", text, evidence=(Evidence(HOLDS, ", ".join(sorted(names))),))


def _patterns(holds: Holds, stack: _Stack) -> list[re.Pattern[str]]:
    """What the stack's own file says, where apt reads it."""
    texts = [text for path, text in holds.files.items() if "/52gpufleet-" in path and path.endswith(stack.files)]
    written = {pattern for text in texts for pattern in re.findall(r'^\s*"(.+)";$', text, re.MULTILINE)}
    return [re.compile(pattern) for pattern in holds.blacklist if pattern in written and _is_pattern(pattern)]


def _is_pattern(text: str) -> bool:
    try:
        re.compile(text)
    except re.error:
        return False
    return True


def _troubles(
    holds: Holds, stack: _Stack, names: set[str], listed: list[re.Pattern[str]], version: str | None
) -> Iterable[tuple[str, str, str]]:
    """Observed, expected and excerpt of all that is not as apt_stack leaves it."""
    if not names:
        yield "no package of it is installed", f"packages.{stack.key} is installed", ""
        return
    loose = sorted(names - holds.held)
    if loose:
        yield f"{len(loose)} of {len(names)} packages are not held: {_some(loose)}", "all on hold", "\n".join(loose)
    broken = [f"{name} ({holds.half[name]})" for name in sorted(names & set(holds.half))]
    if broken:
        yield f"packages are not whole: {_some(broken)}", "all installed and configured", "\n".join(broken)
    # unattended-upgrades compares as re.match does, with the beginning of the name
    open_to = sorted(name for name in names if not any(pattern.match(name) for pattern in listed))
    if open_to:
        text = f"unattended-upgrades may change {_some(open_to)}"
        yield text, "a pattern for each, in a file /etc/apt/apt.conf.d/52gpufleet-*", "\n".join(holds.blacklist)
    pins = "\n".join(
        text for path, text in holds.files.items() if "/preferences.d/" in path and path.endswith(stack.files)
    )
    if version is not None and not re.search(rf"^Pin: version \S*{re.escape(version)}", pins, re.MULTILINE):
        yield f"nothing pins version {version}", f"a pin in /etc/apt/preferences.d/gpufleet-* for {version}", pins


def _some(names: list[str]) -> str:
    more = len(names) - 5
    return ", ".join(names[:5]) + (f" and {more} more" if more > 0 else "")


PROBES: tuple[Probe, ...] = (Probe(HOLDS, parse_holds, argv=counted(_SCRIPT)),)
CHECKS: tuple[Check, ...] = (
    Check("driver.holds", check_driver_holds, needs=(HOLDS,)),
    Check("rdma.holds", check_rdma_holds, needs=(HOLDS,)),
    Check("docker.holds", check_docker_holds, needs=(HOLDS,)),
    Check("containers.toolkit_holds", check_toolkit_holds, needs=(HOLDS,)),
    Check("dcgm.holds", check_dcgm_holds, needs=(HOLDS,)),
    Check("dcgm_exporter.holds", check_exporter_holds, needs=(HOLDS,)),
)
