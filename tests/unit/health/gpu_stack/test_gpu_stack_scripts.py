# SPDX-License-Identifier: Apache-2.0
"""The scripts behind the probes, run by the real bash over stand-ins for the tools: what they print is read back."""

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.gpufleet.health import (
    driver_modules_check,
    gpu_peer_memory_check,
    package_hold_checks,
    rdma_stack,
)
from ansible.module_utils.gpufleet.health.counted_output import counted, parts_of
from ansible.module_utils.gpufleet.health.node_evidence import NodeEvidence
from ansible.module_utils.gpufleet.health.probe import NoEvidence, ParseError, Probe, ProbeResult
from ansible.module_utils.gpufleet.health.probe_runner import run_probes

RUNNING = "6.1.0-26-amd64"
# modinfo as kmod 30 prints it: columns, and one error where there is no module
MODINFO = """\
vermagic='vermagic:       6.1.0-26-amd64 SMP preempt mod_unload modversions '
driver() {
  printf '%s\\n' "filename:       $1" 'version:        580.105.08' 'license:        Dual MIT/GPL' "$vermagic" \\
    'alias:          char-major-195-*' 'parm:           NVreg_X:int' "${2:-}"
}
case "$*" in
  *" nvidia-current-open-peermem") driver "$ROOT/nvidia-current-open-peermem.ko" 'depends:        ib_core,nvidia' ;;
  *" nvidia-current-open") driver /lib/modules/6.1.0-26-amd64/updates/dkms/nvidia-current-open.ko ;;
  ib_core) printf '%s\\n' 'filename:       (builtin)' 'license:        Dual BSD/GPL' ;;
  *) echo "modinfo: ERROR: Module ${*: -1} not found." >&2; exit 1 ;;
esac
"""
# Debian's modprobe.d (nvidia-open-kernel-support 535.261.03), as kmod 30 shows it
MODPROBE = """\
case "$*" in
  *" --show-depends nvidia") echo 'install modprobe -i nvidia-current-open $CMDLINE_OPTS' ;;
  *" --show-depends nvidia-peermem")
    echo 'install modprobe nvidia ; modprobe -i nvidia-current-open-peermem $CMDLINE_OPTS' ;;
  "--dump-modversions $ROOT/"*) printf '%s\\tib_register_peer_memory_client\\n' 0x6de0ab5c ;;
  *) exit 1 ;;
esac
"""
DPKG_QUERY = """\
case "$*" in
  *doca-ofed*) printf '%s\\n' 'rdma-core installed 44.0-2' 'doca-ofed not-installed '; exit 1 ;;
  *) printf '%s\\n' 'hold installed rdma-core' 'install installed bash' 'deinstall config-files nvidia-old' ;;
esac
"""
APT_CONFIG = """\
printf '%s\\n' 'Unattended-Upgrade::Package-Blacklist "";' \\
  'Unattended-Upgrade::Package-Blacklist:: "libib(verbs|umad)";'
"""
LDCONFIG = """\
printf '\\t%s (libc6,x86-64) => %s\\n' libnvidia-ml.so.1 $ROOT/libnvidia-ml.so.1 libibverbs.so.1 $ROOT/libibverbs.so.1
"""
TOOLS = {
    "uname": f"echo {RUNNING}",
    "modinfo": MODINFO,
    "modprobe": MODPROBE,
    "ldconfig": LDCONFIG,
    "dpkg-query": DPKG_QUERY,
    "apt-config": APT_CONFIG,
    "systemctl": "echo enabled",
}


@pytest.fixture
def ask(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[Probe], Any]:
    """Runs a probe with the stand-ins in front of PATH, and parses what it printed."""
    tools = tmp_path / "tools"
    tools.mkdir()
    for name, script in TOOLS.items():
        (tools / name).write_text(f"#!/bin/bash\nROOT={tmp_path}\n{script}\n")
        (tools / name).chmod(0o755)
    (tmp_path / "libnvidia-ml.so.580.105.08").touch()
    (tmp_path / "libnvidia-ml.so.1").symlink_to("libnvidia-ml.so.580.105.08")
    (tmp_path / "libibverbs.so.1").write_bytes(b"\x7fELF\0ibv_reg_dmabuf_mr\0")
    (tmp_path / "nvidia-current-open-peermem.ko").touch()
    monkeypatch.setenv("PATH", f"{tools}:/usr/bin:/bin")

    def run(probe: Probe) -> Any:
        result = run_probes([probe])[probe.id]
        assert (result.outcome, result.stderr) == ("done", ""), result
        return probe.parse(result)

    return run


def test_modules_of_the_driver(ask: Callable[[Probe], Any]) -> None:
    (probe,) = driver_modules_check.PROBES
    found = ask(probe)
    assert (found.running, found.library) == (RUNNING, "580.105.08")
    module = found.modules[RUNNING]
    assert (module.version, module.license, module.vermagic.split()[0]) == ("580.105.08", "Dual MIT/GPL", RUNNING)


def test_the_rdma_stack(ask: Callable[[Probe], Any]) -> None:
    (probe,) = rdma_stack.PROBES
    found = ask(probe)
    assert found.packages == {"rdma-core": "44.0-2"}
    assert found.files["ib_core"].origin == "inbox" and found.files["mlx5_core"] is None


def test_peer_memory(ask: Callable[[Probe], Any]) -> None:
    (probe,) = gpu_peer_memory_check.PROBES
    found = ask(probe)
    assert found.module.depends == ("ib_core", "nvidia") and found.wanted_crc == "0x6de0ab5c"
    assert found.library_has_symbol and found.loaded_at_boot


def test_holds(ask: Callable[[Probe], Any]) -> None:
    (probe,) = package_hold_checks.PROBES
    found = ask(probe)
    assert (found.held, found.installed) == ({"rdma-core"}, {"bash"})
    assert found.blacklist == ("libib(verbs|umad)",)


def test_the_number_of_lines_tells_what_was_lost() -> None:
    whole = subprocess.run(
        counted("echo '== a'\necho 1\necho '== b'"), capture_output=True, text=True, check=True
    ).stdout
    result = ProbeResult("x", "done", 0, whole, "", 0.1, 0.0, True)
    assert parts_of(result, ("a", "b")) == {"a": ["1"], "b": []}
    lines = whole.splitlines(keepends=True)
    for number in range(len(lines)):
        with pytest.raises(ParseError):
            parts_of(result._replace(stdout="".join(lines[:number] + lines[number + 1 :])), ("a", "b"))
    with pytest.raises(ParseError, match="the part 'c' is missing"):
        parts_of(result, ("a", "c"))


def test_a_node_without_kmod_is_told(ask: Callable[[Probe], Any], tmp_path: Path) -> None:
    for tool in ("modinfo", "modprobe"):
        # as bash ends where there is no such program
        (tmp_path / "tools" / tool).write_text(f"#!/bin/bash\necho '{tool}: command not found' >&2\nexit 127\n")
    for module in (driver_modules_check, rdma_stack, gpu_peer_memory_check):
        with pytest.raises(ParseError, match="is package kmod installed"):
            ask(module.PROBES[0])


@pytest.mark.parametrize("outcome", ["timeout", "failed", "truncated"])
def test_a_script_that_gave_no_answer_is_not_printed(outcome: str) -> None:
    (probe,) = rdma_stack.PROBES
    result = ProbeResult(probe.id, outcome, 1, "", "", 30.0, 0.0, True)
    with pytest.raises(NoEvidence) as caught:
        NodeEvidence(rdma_stack.PROBES, {probe.id: result}).facts(probe.id)
    assert str(caught.value).startswith("probe rdma.stack: its script ") and len(str(caught.value)) < 100
