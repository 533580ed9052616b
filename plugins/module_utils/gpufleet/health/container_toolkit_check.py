# SPDX-License-Identifier: Apache-2.0
"""Whether containers can get the GPUs: the toolkit's packages, its runtime, and the CDI specification."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from .check import Check, Profile
from .counted_output import counted, parts_of
from .docker_engine import ENGINE, TIMED_OUT, Engine, engine_of, is_version, not_judged, said_and_status
from .finding import Evidence, Finding
from .gpu_findings import no_gpus
from .node_evidence import NodeEvidence
from .nvidia_driver_version import DRIVER_VERSION
from .nvidia_smi_query import QUERY
from .probe import ParseError, Probe, ProbeResult

TOOLKIT = "containers.toolkit"
PACKAGES = ("libnvidia-container1", "libnvidia-container-tools", "nvidia-container-toolkit-base",
            "nvidia-container-toolkit")  # fmt: skip
# nvidia-ctk reads the specifications as the engine does, both folders and all errors. The driver's version stands in
# the names of the libraries that are mounted.
_SCRIPT = f"""
echo '== packages'
dpkg-query -W -f '${{Package}} ${{db:Status-Status}} ${{Version}}\\n' {" ".join(PACKAGES)} 2>/dev/null
echo '== runtime'
command -v nvidia-container-runtime
echo '== devices'
timeout 20 nvidia-ctk cdi list 2>&1
echo "exit status $?"
echo '== libraries'
grep -aHsoE 'lib(cuda|nvidia-ml)\\.so\\.[0-9]+\\.[0-9.]*[0-9]' /etc/cdi/* /var/run/cdi/* | sort -u
"""
_DEVICE = re.compile(r"nvidia\.com/gpu=(\S+)")
_LIBRARY = re.compile(r"(/[^:]+):lib[a-z-]+\.so\.([0-9.]+)")
_ROLE = "role nvidia_container_toolkit"


class Toolkit(NamedTuple):
    """packages: version by name. runtime: whether nvidia-container-runtime is there. devices: names of GPUs in the
    CDI specifications: numbers, UUIDs, "all". fault: what is wrong with them, "" for nothing. drivers: versions of the
    driver that a specification names, by its path."""

    packages: Mapping[str, str]
    runtime: bool
    devices: tuple[str, ...]
    fault: str
    drivers: Mapping[str, frozenset[str]]


def parse_toolkit(result: ProbeResult) -> Toolkit:
    """Raises ParseError."""
    parts = parts_of(result, ("packages", "runtime", "devices", "libraries"))
    packages = {}
    for line in parts["packages"]:
        words = line.split(" ")
        if len(words) != 3 or words[0] not in PACKAGES:
            raise ParseError(f"expected package, state and version, got {line[:100]!r}")
        if words[1] == "installed":
            packages[words[0]] = words[2]
    said, status = said_and_status(parts["devices"], "devices")
    if status == TIMED_OUT:
        raise ParseError("nvidia-ctk cdi list gave no answer within 20 s")
    devices = tuple(found[1] for line in said if (found := _DEVICE.fullmatch(line)))
    at = next((number for number, line in enumerate(said) if "registry errors were reported" in line), None)
    fault = " ".join(said)[-200:] if status else "" if at is None else " ".join(said[at + 1 : at + 2])
    drivers: dict[str, set[str]] = {}
    for line in parts["libraries"]:
        found = _LIBRARY.fullmatch(line)
        if found is None:
            raise ParseError(f"no library of a specification: {line[:100]!r}")
        drivers.setdefault(found[1], set()).add(found[2])
    versions = {path: frozenset(seen) for path, seen in drivers.items()}
    return Toolkit(packages, bool(parts["runtime"]), devices, fault, versions)


def check_gpu_runtime(evidence: NodeEvidence, profile: Profile) -> Iterable[Finding]:
    """Containers can get all GPUs: the engine has the runtime nvidia, and the CDI specification is today's.

    A specification that was written before an upgrade of the driver names libraries that are gone, and no container
    with a GPU starts. The four packages of the toolkit must be of one version.

    Source: packages.container_toolkit of the profile; NVIDIA Container Toolkit, CDI support
    """
    wanted = profile["packages"]["container_toolkit"]
    skipped = not_judged(profile, "container_toolkit", of_gpus=False)
    if skipped:
        yield skipped
        return
    toolkit: Toolkit = evidence.facts(TOOLKIT)
    seen = (Evidence(TOOLKIT), Evidence(ENGINE))
    # Without Docker they go to another engine (containerd), which is not asked.
    engine = engine_of(evidence) if profile["packages"]["docker"]["manage"] else None
    troubles = list(_installation(toolkit, engine, wanted["version"]))
    text = f"toolkit {next(iter(toolkit.packages.values()), '')}" + ", runtime nvidia" * (engine is not None)
    if no_gpus(profile) is None:
        driver, gpus = evidence.facts(DRIVER_VERSION).version, len(evidence.facts(QUERY).gpus)
        troubles += _specification(toolkit, driver, gpus)
        text += f", CDI specification of driver {driver} with {gpus} GPUs"
    for status, observed, expected in troubles:
        advice = (
            "run the role nvidia_container_toolkit on this node; nvidia-ctk cdi list shows what containers can ask for"
        )
        yield Finding("node", status, observed, expected, "none", advice, seen, _ROLE)
    if not troubles:
        yield Finding("node", "ok", text, evidence=seen)


def _installation(toolkit: Toolkit, engine: Engine | None, version: str | None) -> Iterator[tuple[str, str, str]]:
    """Status, observed and expected of what is wrong with packages and runtime."""
    missing = [name for name in PACKAGES if name not in toolkit.packages]
    if missing:
        yield "fail", f"not installed: {', '.join(missing)}", "all four packages of the toolkit"
    if len(set(toolkit.packages.values())) > 1:
        found = ", ".join(f"{name} {value}" for name, value in toolkit.packages.items())
        yield "warn", f"packages of several versions: {found}", "one version"
    other = [f"{name} {value}" for name, value in toolkit.packages.items() if not is_version(value, version)]
    if other:
        yield "warn", f"{', '.join(other)}", f"version {version}"
    if not toolkit.runtime:
        yield "fail", "there is no program nvidia-container-runtime", "it is there"
    if engine is not None and "nvidia" not in engine.runtimes:
        yield "fail", f"the engine has the runtimes {', '.join(sorted(engine.runtimes))}", "also nvidia"


def _specification(toolkit: Toolkit, driver: str, gpus: int) -> Iterator[tuple[str, str, str]]:
    """The same of the CDI specification. driver: version of the loaded module. gpus: how many nvidia-smi lists."""
    if toolkit.fault:
        yield "fail", f"CDI specifications cannot be read: {toolkit.fault}", "nvidia-ctk cdi list reads them"
        return
    numbers = [name for name in toolkit.devices if name.isdigit()]
    named = numbers or [name for name in toolkit.devices if name.startswith("GPU-")]
    if len(named) != gpus:
        what = f"CDI specifications have {len(named)} GPUs" if toolkit.devices else "no CDI specification names a GPU"
        yield "fail", what, f"the {gpus} that nvidia-smi lists"
        return
    if not toolkit.drivers:
        yield "fail", "no CDI specification names a library of the driver", f"those of driver {driver}"
    for path, versions in toolkit.drivers.items():
        if versions != {driver}:
            # That of /var/run/cdi counts where both folders have one (CDI, order of spec-dirs).
            status = "fail" if path == max(toolkit.drivers) else "warn"
            yield status, f"{path} is of driver {', '.join(sorted(versions))}", f"{driver}, which is loaded"


PROBES: tuple[Probe, ...] = (Probe(TOOLKIT, parse_toolkit, argv=counted(_SCRIPT), deadline_s=30),)
CHECKS: tuple[Check, ...] = (
    Check("containers.gpu_runtime", check_gpu_runtime, needs=(TOOLKIT, ENGINE, DRIVER_VERSION, QUERY)),
)
