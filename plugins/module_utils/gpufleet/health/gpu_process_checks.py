# SPDX-License-Identifier: Apache-2.0
"""What runs on the GPUs, and what is left over from before."""

from __future__ import annotations

from collections.abc import Iterator

from .check import Check, Profile
from .finding import Evidence, Finding
from .gpu_clock_checks import is_busy
from .gpu_facts import Absent, Gpu, GpuReport
from .gpu_findings import judge_each, no_gpus, rows, value_of
from .gpu_models import expected_of
from .node_evidence import NodeEvidence
from .nvidia_smi_query import QUERY
from .probe import NoEvidence


def check_processes(evidence: NodeEvidence, profile: Profile) -> Iterator[Finding]:
    """No process is left over on an idle GPU, and no memory or load is there without a process.

    A node in use is no fault: where a process keeps the GPU busy, or every GPU has one, a job runs. nvidia-smi lists
    no processes of other containers when it runs inside one.

    Source: facebookresearch/gcm (running_procs); recordings gpu6-leftover-process, gpu6-leaked-memory, gpu6-stuck-util.
    """
    nothing = no_gpus(profile)
    if nothing is not None:
        yield nothing
        return
    report: GpuReport = evidence.facts(QUERY)
    all_in_use = all(gpu.processes for gpu in report.gpus)

    def judge(gpu: Gpu) -> Iterator[Finding]:
        if isinstance(gpu.processes, Absent):
            raise NoEvidence(QUERY, f"Processes: {gpu.processes.reason}")
        for process in gpu.processes:
            if isinstance(process.pid, Absent):
                raise NoEvidence(QUERY, f"Processes > Process ID: {process.pid.reason}")
        used, busy = value_of(gpu, "memory.used"), is_busy(gpu, profile)
        names = ", ".join(f"{process.name} (pid {process.pid}, {process.memory} MiB)" for process in gpu.processes[:5])
        most = expected_of(profile, gpu, "idle_memory_mib")
        if gpu.processes and busy is False and not all_in_use:
            advice = "if no job is assigned to this node, the process is left over: look at it (ps), then end it"
            yield _left(gpu, f"idle, but in use by {names}", "no process on an idle GPU", "observe", advice)
        elif not gpu.processes and busy:
            advice = "look again in a minute; if nothing runs on the node, drain it and reset the GPU"
            yield _left(gpu, f"{gpu.utilization} % busy without a process", "0 %", "reset_gpu", advice)
        elif not gpu.processes and most is not None and used > most:
            advice = (
                "a job ended without giving its memory back: look for processes in state D or Z and for containers "
            )
            advice += "whose processes nvidia-smi does not see, then drain the node and reset the GPU"
            expected = f"at most {most:.0f} MiB (limits.gpu.idle_memory_mib)"
            yield _left(gpu, f"{used} MiB in use without a process", expected, "reset_gpu", advice)

    def well(gpus: object) -> str:
        total = sum(len(gpu.processes) for gpu in report.gpus if not isinstance(gpu.processes, Absent))
        return f"{total} processes" + (", the node is in use" if total else ", no memory and no load left over")

    yield from judge_each(evidence, profile, judge, well, "memory.used", "utilization")


def _left(gpu: Gpu, observed: str, expected: str, action: str, advice: str) -> Finding:
    listed = gpu.processes if not isinstance(gpu.processes, Absent) else ()
    names = "\n".join(f"{process.pid} {process.type} {process.name}" for process in listed)
    shown = (rows(gpu, "memory.used", "utilization"), Evidence(QUERY, f"Processes : {names or 'None'}"))
    return Finding(
        gpu.component, "warn", observed, expected, action, advice, shown, "facebookresearch/gcm, running_procs"
    )


CHECKS: tuple[Check, ...] = (Check("gpu.processes", check_processes, needs=(QUERY,)),)
