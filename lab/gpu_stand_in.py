# SPDX-License-Identifier: Apache-2.0
"""Put a stand-in for nvidia-smi on a node: it answers with what the real program printed in a recorded state.

No GPU can be emulated. The recordings (tests/fixtures/nvidia-smi) come from the real program over mocked GPUs.
"""

import difflib
import io
import subprocess
import tarfile
from pathlib import Path

from lab import life_cycle
from lab.errors import LabError
from lab.lab_directory import LabDirectory

REPOSITORY = Path(__file__).resolve().parents[1]
RECORDINGS = REPOSITORY / "tests" / "fixtures" / "nvidia-smi" / "recordings.tar.xz"
STAND_IN = Path(__file__).parent / "nvidia_smi_stand_in.sh"
REMOVE = "none"
# On an emulated node, as long as it takes to log in under load.
INSTALL_LIMIT_S = 300
INSTALL = (
    "set -e; rm -rf /opt/gpufleet-lab/nvidia-smi; mkdir -p /opt/gpufleet-lab/nvidia-smi;"
    " tar -xz --no-same-owner -C /opt/gpufleet-lab/nvidia-smi;"
    " mv /opt/gpufleet-lab/nvidia-smi/stand-in /usr/local/bin/nvidia-smi"
)
UNINSTALL = "rm -rf /opt/gpufleet-lab/nvidia-smi /usr/local/bin/nvidia-smi"


def states(recordings: Path = RECORDINGS) -> list[str]:
    """Names of the recorded states, such as 550.163.01-h100-healthy."""
    with tarfile.open(recordings) as archive:
        return sorted({name.removeprefix("./").partition("/")[0] for name in archive.getnames()} - {".", ""})


def pack(state: str, recordings: Path = RECORDINGS) -> bytes:
    """A .tar.gz with the stand-in and one state's recording. Raises LabError for a state that nobody recorded."""
    packed = io.BytesIO()
    found = False
    with tarfile.open(recordings) as archive, tarfile.open(fileobj=packed, mode="w:gz") as new:
        for member in archive:
            folder, _slash, rest = member.name.removeprefix("./").partition("/")
            if folder != state or not rest or not member.isfile():
                continue
            content = archive.extractfile(member)
            assert content is not None
            entry = tarfile.TarInfo(rest)
            entry.size, entry.mode = member.size, 0o644
            new.addfile(entry, content)
            found = True
        program = tarfile.TarInfo("stand-in")
        program.size, program.mode = STAND_IN.stat().st_size, 0o755
        new.addfile(program, io.BytesIO(STAND_IN.read_bytes()))
    if not found:
        known = states(recordings)
        near = difflib.get_close_matches(state, known, n=5, cutoff=0.4)
        raise LabError(
            f"no state {state!r} was recorded; near it: {', '.join(near) or 'nothing'} (all {len(known)}: "
            "tests/fixtures/nvidia-smi/MANIFEST.tsv)"
        )
    return packed.getvalue()


def install(lab: LabDirectory, node: str, state: str) -> None:
    """Let the node's nvidia-smi answer as in this state; REMOVE takes it away again."""
    command, data = (UNINSTALL, b"") if state == REMOVE else (INSTALL, pack(state))
    try:
        done = subprocess.run(
            life_cycle.ssh_command(lab, node, command),
            input=data, capture_output=True, timeout=INSTALL_LIMIT_S, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise LabError(
            f"{node} did not take the stand-in within {INSTALL_LIMIT_S} s; see: python -m lab status"
        ) from None
    if done.returncode != 0:
        raise LabError(f"the stand-in for nvidia-smi could not be put on {node}: {done.stderr.decode().strip()}")
