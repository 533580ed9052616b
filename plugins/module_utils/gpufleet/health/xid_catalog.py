# SPDX-License-Identifier: Apache-2.0
"""What each Xid number of the NVIDIA driver means for a training node, and what to do first.

Which numbers exist, their names and on which GPUs they occur: driver header 595.45.04 (numbers 1 to 176) and the Xid
catalog workbook of 2025-09-30, merged in this project's research (xid_merged.tsv). What public systems do with them,
and where these disagree: healthchecks.md, section 2. Severity and action are this project's own choice: `fail` where
the GPU cannot be trusted until it has been reset, `warn` where a job was hurt and the GPU goes on. A number for which
nobody has published an action asks for a person, never for a replacement. Xid 154 and the words in a line (Fatal,
RST: Yes) stand above this table: see kernel_xid_checks.py.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple

NEWEST = 176
ALL_GPUS = ("A100", "H100", "B100", "GB200")
_FROM_HOPPER = ("H100", "B100", "GB200")
_BLACKWELL = ("B100", "GB200")

# application: the job first. gpu: the GPU or its memory. link: NVLink. driver: driver or firmware. notice: tells
# something that another check judges. unpublished: a name, but nobody says what to do. unused: not even that.
CAUSES = ("application", "gpu", "link", "driver", "notice", "unpublished", "unused")


class XidEntry(NamedTuple):
    """One number. name: the driver's own, "" where it has none. severity: warn or fail. action: a rung of the ladder.

    meaning, advice (what to do first), if_it_returns: sentences. gpus: of ALL_GPUS, those on which it can occur.
    """

    number: int
    name: str
    cause: str
    severity: str
    action: str
    meaning: str
    advice: str
    if_it_returns: str
    gpus: tuple[str, ...]


_JOB = "Restart the job, and look in its output for an illegal access, an assertion or a wrong tensor shape."
_JOB_RETURNS = (
    "Run another, known-good job on the same GPU: if that fails as well, run the GPU's diagnosis (dcgmi diag)."
)
_RESET = "Drain the node and reset the GPU, or reboot the node where a reset is refused."
_RESET_RETURNS = "Reboot the node, then run the GPU's diagnosis (dcgmi diag); if it fails, open a case with the maker."
_LOOK = "A person must look: read the lines around it in the kernel log and follow what Xid 154 or nvidia-smi demands."
_LOOK_RETURNS = "Keep the node's capture and open a case with the maker of the GPU."

# One entry: number and the driver's name (- = none), cause, severity, action, GPUs; then meaning, advice and what to do
# if it returns. "=job" and the like stand for sentences that many share: alone for advice and the rest.
_ENTRIES = """\
8 -: application, warn, observe: A100 H100 B100 GB200
  A channel of the GPU no longer answered and its work was stopped.
  =job
11 -: application, warn, observe: A100 H100 B100 GB200
  The stream of commands that a program sent to the GPU is invalid.
  =job
13 ROBUST_CHANNEL_GR_EXCEPTION: application, warn, observe: A100 H100 B100 GB200
  Compute kernels did something illegal, such as an access out of range; nearly always a fault of the program.
  Restart the job and debug it (compute-sanitizer shows the faulty access).
  Faults of several jobs on one processing cluster point to the hardware: run the GPU's diagnosis (dcgmi diag -r 3).
14 ROBUST_CHANNEL_FAKE_ERROR: notice, warn, observe: A100 H100 B100 GB200
  A made-up error for tests of the driver.
  Find out who runs such a test on this node.
  =look returns
25 -: application, warn, observe: A100 H100 B100 GB200
  The stream of commands that a program sent to the GPU holds an illegal command.
  =job
31 ROBUST_CHANNEL_FIFO_ERROR_MMU_ERR_FLT: application, warn, observe: A100 H100 B100 GB200
  A program touched GPU memory that is not mapped; nearly always a fault of the program.
  Restart the job and debug it (compute-sanitizer shows the faulty access).
  Faults of several jobs in one and the same engine point to the hardware: run the GPU's diagnosis (dcgmi diag -r 3).
32 ROBUST_CHANNEL_PBDMA_ERROR: application, warn, observe: A100 H100 B100 GB200
  The unit that fetches commands found them damaged: by the program, or on the way over PCIe.
  =job
  Look at the PCIe errors of this GPU (check kernel.pcie) and run the GPU's diagnosis (dcgmi diag).
37 -: driver, warn, observe: A100 H100 B100 GB200
  The driver's firmware reported an error and went on.
  Nothing at once; restart the job if it stopped.
  =look returns
38 -: driver, warn, observe: A100 H100 B100 GB200
  The driver's firmware reported an error and went on.
  Nothing at once; restart the job if it stopped.
  =look returns
43 ROBUST_CHANNEL_RESETCHANNEL_VERIF_ERROR: application, warn, observe: A100 H100 B100 GB200
  A program's channel was stopped after a fault of that program; other programs go on.
  Look for the fault that came just before on the same GPU, and restart the job.
  =job returns
44 ROBUST_CHANNEL_GR_FAULT_DURING_CTXSW: driver, warn, observe: A100 H100 B100 GB200
  A fault while the GPU changed from one program to another.
  =job
  =reset returns
45 ROBUST_CHANNEL_PREEMPTIVE_REMOVAL: application, warn, observe: A100 H100 B100 GB200
  Channels of a program were removed: since it was killed, or as a consequence of an earlier fault.
  Act on the fault before it, on this GPU or on its NVLink peers; alone it says that a job was killed.
  When jobs die this way without another Xid, restart the fabric manager and look at NVLink (checks nvlink and fabric).
46 -: gpu, fail, reset_gpu: A100 H100 B100 GB200
  The GPU stopped processing and did not recover by itself.
  =reset
48 ROBUST_CHANNEL_GPU_ECC_DBE: gpu, fail, reset_gpu: A100 H100 B100 GB200
  An uncorrectable memory error in the GPU; whatever used that memory is wrong or was stopped.
  Drain the node, reset the GPU, then look at ECC counters and row remapping (checks gpu.ecc and gpu.row_remap).
  If row remapping has failed or the SRAM threshold flag is set, the GPU is to be replaced: those checks say so.
54 -: gpu, fail, inspect: A100 H100 B100
  The board does not get its auxiliary power.
  Power the node off and check power cables, board seating and power supplies.
  Keep the node out of service and open a case with the maker.
60 ROBUST_CHANNEL_SEC2_ERROR: application, warn, observe: A100 H100 B100 GB200
  The security or video processor reported an exception.
  =job
62 PMU_HALT_ERROR: gpu, fail, reset_gpu: A100 H100 B100 GB200
  A micro-controller inside the GPU (power management) has halted.
  =reset
63 INFOROM_PAGE_RETIREMENT_EVENT: notice, warn, observe: A100 H100 B100 GB200
  A damaged row of GPU memory was noted for replacement by a spare row at the next reset.
  Reset the GPU when it is next idle; check gpu.row_remap says whether a remapping is pending.
  Many such rows in one bank use up its spares: watch check gpu.row_remap.
64 INFOROM_PAGE_RETIREMENT_FAILURE: gpu, fail, reset_gpu: A100 H100 B100 GB200
  A damaged row of GPU memory could not be replaced by a spare row.
  Drain the node, reset the GPU and read the row remapping state: check gpu.row_remap decides whether the GPU goes back.
  A remapping failure that stays after the reset means that the GPU is to be replaced.
66 -: driver, warn, observe: A100 H100 B100 GB200
  The driver made an access that is not allowed.
  Restart the job if it stopped, and note the driver's version.
  =look returns
67 -: driver, warn, observe: A100 H100 B100 GB200
  The driver made an access that is not allowed.
  Restart the job if it stopped, and note the driver's version.
  =look returns
69 ROBUST_CHANNEL_GR_CLASS_ERROR: application, warn, observe: A100 H100 B100 GB200
  A program used a compute class in a way that the GPU refuses.
  =job
74 NVLINK_ERROR: link, fail, reset_gpu: A100 H100
  An error on an NVLink link; the registers in the line say of which sort.
  Drain the node and reset all GPUs and NVSwitches together (they share the fabric), then look at the link's counters.
  Look at the same link on both ends: reseat the GPU board, then run the GPU's diagnosis (dcgmi diag).
78 VGPU_START_ERROR: driver, warn, observe: A100 H100 B100 GB200
  A virtual GPU could not be started; a training node has none.
  Find out who configured a virtual GPU, and check the driver's version.
  =look returns
79 ROBUST_CHANNEL_GPU_HAS_FALLEN_OFF_THE_BUS: gpu, fail, reboot: A100 H100 B100 GB200
  The GPU no longer answers on PCIe: it is lost until the node has been restarted.
  Drain and reboot the node; where the GPU is not back then, switch the power off and on.
  Power-cycle the node, reseat the GPU board, and look for heat, power and PCIe errors before the GPU is blamed.
80 PBDMA_PUSHBUFFER_CRC_MISMATCH: application, warn, observe: A100 H100
  Commands arrived at the GPU with a wrong checksum.
  =job
  Look at the PCIe errors of this GPU (check kernel.pcie) and run the GPU's diagnosis (dcgmi diag).
92 EXCESSIVE_SBE_INTERRUPTS: gpu, warn, observe: A100 H100 B100 GB200
  Corrected single-bit memory errors come at a high rate.
  Nothing at once; look at the corrected errors of this GPU (check gpu.ecc).
  Take the GPU out of the next large job and run its diagnosis (dcgmi diag).
93 INFOROM_ERASE_LIMIT_EXCEEDED: notice, warn, observe: A100
  The board's information memory has been written more often than planned.
  Nothing at once; find out which tool keeps changing settings of this GPU.
  =look returns
94 ROBUST_CHANNEL_CONTAINED_ERROR: gpu, warn, observe: A100 H100 B100 GB200
  An uncorrectable memory error that hit only the program named in the line; others go on.
  Restart that job, and reset the GPU when it is next idle so that the row is remapped.
  Look at row remapping (check gpu.row_remap) and run the GPU's diagnosis (dcgmi diag).
95 ROBUST_CHANNEL_UNCONTAINED_ERROR: gpu, fail, reset_gpu: A100 H100 B100 GB200
  An uncorrectable memory error that may have hit every program on the GPU.
  Drain the node, reset the GPU, and discard what jobs computed on it since the first such line.
  =reset returns
106 -: notice, warn, observe: A100 H100 B100 GB200
  A test message of the board's management interface.
  Nothing; find out who sent it if you did not.
  Nothing more.
107 -: notice, warn, observe: A100 H100 B100 GB200
  A silent test message of the board's management interface.
  Nothing; find out who sent it if you did not.
  Nothing more.
108 NVLINK_REMOTE_TRANSLATION_ERROR: link, warn, observe: A100 H100 B100 GB200
  An access over NVLink to another GPU's memory could not be translated there.
  Restart the job; look for an Xid of the GPU at the other end.
  Look at NVLink between the two GPUs (checks nvlink).
109 -: gpu, fail, reset_gpu: A100 H100 B100 GB200
  The GPU did not change from one program to another within its time.
  =reset
110 SEC_FAULT_ERROR: gpu, fail, reset_gpu: H100 B100 GB200
  The GPU's security hardware reported a fault.
  =reset
119 GSP_RPC_TIMEOUT: driver, fail, reset_gpu: A100 H100 B100 GB200
  The GPU's system processor (GSP) did not answer the driver; calls to this GPU hang from then on.
  =reset
  Compare driver and GSP firmware versions with the profile, then run the GPU's diagnosis (dcgmi diag).
120 GSP_ERROR: driver, fail, reset_gpu: A100 H100 B100 GB200
  The GPU's system processor (GSP) ran into an error.
  =reset
  Compare driver and GSP firmware versions with the profile, then run the GPU's diagnosis (dcgmi diag).
121 C2C_ERROR: link, warn, observe: GB200
  A corrected error on the chip-to-chip link between GPU and CPU.
  Nothing at once.
  =look returns
136 ALI_TRAINING_FAIL: link, fail, reset_gpu: H100
  An NVLink link could not be trained.
  Drain the node and reset all GPUs and NVSwitches together.
  Look at the signal of that link on both ends and reseat the GPU board.
137 NVLINK_PRIV_ERR: link, warn, observe: A100 H100 B100 GB200
  An access over NVLink was refused by the GPU at the other end.
  Restart the job; look for an Xid of the GPU at the other end.
  Look at NVLink between the two GPUs (checks nvlink).
140 UNRECOVERABLE_ECC_ERROR_ESCAPE: gpu, fail, reset_gpu: A100 H100 B100 GB200
  An uncorrectable memory error was found outside of the usual handling.
  =reset
141 ROBUST_CHANNEL_FAST_PATH_ERROR: application, warn, observe: H100 B100 GB200
  An error in the fast path of CUDA memory handling.
  =job
142 ROBUST_CHANNEL_NVENC3_ERROR: unpublished, warn, observe: GB200
  An error of the fourth video encoder.
  =look
143 GPU_INIT_ERROR: gpu, fail, reset_gpu: H100 B100 GB200
  The GPU could not be initialised.
  =reset
144 NVLINK_SAW_ERROR: link, warn, observe: B100 GB200
  An NVLink error in the system access wrapper; the word Fatal or Nonfatal in the line decides how bad it is.
  Follow the word in the line: Nonfatal is watched; after Fatal the GPU is drained and reset.
  Look at the same link on both ends, and follow Xid 154.
145 NVLINK_RLW_ERROR: link, warn, observe: B100 GB200
  An NVLink error in the remapping unit; the word Fatal or Nonfatal in the line decides how bad it is.
  Follow the word in the line: Nonfatal is watched; after Fatal the GPU is drained and reset.
  Look at the same link on both ends, and follow Xid 154.
146 NVLINK_TLW_ERROR: link, warn, observe: B100 GB200
  An NVLink error in the transaction layer; the word Fatal or Nonfatal in the line decides how bad it is.
  Follow the word in the line: Nonfatal is watched; after Fatal the GPU is drained and reset.
  Look at the same link on both ends, and follow Xid 154.
147 NVLINK_TREX_ERROR: link, warn, observe: B100 GB200
  An NVLink error in the test and repair unit; the word Fatal or Nonfatal in the line decides how bad it is.
  Follow the word in the line: Nonfatal is watched; after Fatal the GPU is drained and reset.
  Look at the same link on both ends, and follow Xid 154.
148 NVLINK_NVLPW_CTRL_ERROR: link, warn, observe: B100 GB200
  An NVLink error in the control unit of the port; the word Fatal or Nonfatal in the line decides how bad it is.
  Follow the word in the line: Nonfatal is watched; after Fatal the GPU is drained and reset.
  Look at the same link on both ends, and follow Xid 154.
149 NVLINK_NETIR_ERROR: link, warn, observe: B100 GB200
  An NVLink error of the link itself (link event, bit errors); Fatal or Nonfatal in the line decides how bad it is.
  Follow the word in the line: Nonfatal is watched; after Fatal the GPU is drained and reset, and the peer is looked at.
  Look at the same link on both ends: cable or backplane, switch, GPU board.
150 NVLINK_MSE_ERROR: link, warn, observe: B100 GB200
  An NVLink error of the management engine; the word Fatal or Nonfatal in the line decides how bad it is.
  Follow the word in the line: Nonfatal is watched; after Fatal the GPU is drained and reset.
  Look at the same link on both ends, and follow Xid 154.
151 ROBUST_CHANNEL_KEY_ROTATION_ERROR: driver, fail, reboot: H100 B100 GB200
  The change of an encryption key (confidential computing) failed.
  Drain and reboot the node.
  Compare the driver's version with the profile; turn confidential computing off where it is not wanted.
152 RESERVED7_ERROR: notice, warn, observe: none
  An address fault of a deep-learning accelerator, which data-centre GPUs do not have.
  =look
153 RESERVED8_ERROR: notice, warn, observe: none
  A timeout of a deep-learning accelerator, which data-centre GPUs do not have.
  =look
154 GPU_RECOVERY_ACTION_CHANGED: notice, warn, observe: A100 H100 B100 GB200
  The driver changed its own verdict on what this GPU needs; the words behind the second number are that verdict.
  Do what the words say: nothing, reset the GPU, reboot the node, or drain first.
  Do what the cause of it asks for: the Xid just before, on the same GPU.
155 NVLINK_SW_DEFINED_ERROR: link, fail, reset_gpu: B100 GB200
  An NVLink error that software defines, such as a link taken down on purpose.
  =reset
  Find out what took the link down, and look at its other end.
156 RESOURCE_RETIREMENT_EVENT: gpu, fail, reset_gpu: H100 B100 GB200
  A part of the GPU is to be taken out of use; that needs a reset.
  =reset
  Watch the number of retired parts of this GPU, and open a case with the maker.
157 RESOURCE_RETIREMENT_FAILURE: gpu, warn, observe: H100 B100 GB200
  A part of the GPU should have been taken out of use, and was not.
  Look at the Xid before it, and run the GPU's diagnosis (dcgmi diag) when the node is idle.
  =look returns
158 GPU_FATAL_TIMEOUT: gpu, fail, reset_gpu: A100 H100 B100 GB200
  The GPU did not answer in time and cannot go on.
  =reset
159 ROBUST_CHANNEL_CHI_NON_DATA_ERROR: link, warn, observe: B100 GB200
  An error on the coherent bus between GPU and CPU that carried no data.
  Look for another Xid at the same time and act on that one; restart the job.
  =look returns
160 CHANNEL_RETIREMENT_EVENT: notice, warn, observe: B100 GB200
  A memory channel is to be taken out of use.
  Nothing at once; reset the GPU when it is next idle.
  =look returns
161 CHANNEL_RETIREMENT_FAILURE: notice, warn, observe: B100 GB200
  A memory channel should have been taken out of use, and was not.
  Nothing at once; run the GPU's diagnosis (dcgmi diag) when the node is idle.
  =look returns
162 ISINK_REENGAGED: unpublished, warn, observe: B100 GB200
  The circuit that smooths the GPU's power draw works again.
  =look
163 ISINK_DISENGAGED: unpublished, warn, observe: B100 GB200
  The circuit that smooths the GPU's power draw has been switched off.
  =look
164 ISINK_LOW_LIFETIME: unpublished, warn, observe: B100 GB200
  The circuit that smooths the GPU's power draw nears the end of its life.
  =look
165 ISINK_ZERO_LIFETIME: unpublished, warn, observe: B100 GB200
  The circuit that smooths the GPU's power draw is worn out.
  =look
166 NVLINK_SECURE_NVLE_ERROR: unpublished, warn, observe: B100 GB200
  Encrypted NVLink traffic came before the link was set up for it.
  =look
167 PCIE_FATAL_TIMEOUT: unpublished, warn, observe: H100 B100 GB200
  A PCIe transfer of the GPU was not answered in time.
  =look
168 REDUCED_GPU_MEMORY_CAPACITY: unpublished, warn, observe: A100 H100 B100 GB200
  Errors in the protected part of GPU memory; the GPU may offer less memory than before.
  =look
169 SEC2_HALT_ERROR: unpublished, warn, observe: H100 B100 GB200
  A micro-controller inside the GPU (security) has halted.
  =look
170 NVLINK_SECURE_ERROR: unpublished, warn, observe: B100 GB200
  An NVLink interrupt while confidential computing is on.
  =look
171 UNCORRECTABLE_DRAM_ERROR: unpublished, warn, observe: A100 H100 B100 GB200
  Tells that the uncorrectable error of an Xid 48 was in the GPU's main memory.
  Act on the Xid 48 beside it; without one a person must look at the ECC counters (check gpu.ecc).
  =look returns
172 UNCORRECTABLE_SRAM_ERROR: unpublished, warn, observe: A100 H100 B100 GB200
  Tells that the uncorrectable error of an Xid 48 was in memory on the GPU's chip.
  Act on the Xid 48 beside it; without one a person must look at the ECC counters (check gpu.ecc).
  =look returns
173 C2C_FATAL_LINK_FAILURE: unpublished, warn, observe: none
  The chip-to-chip link between GPU and CPU has failed.
  =look
174 ROBUST_CHANNEL_RESETCHANNEL_KILL_PROCESS_SILENT: unpublished, warn, observe: none
  A program was ended together with its channels.
  =look
175 MEMORY_SUBSYSTEM_ERROR: unpublished, warn, observe: none
  An error somewhere in the GPU's memory system.
  =look
176 PCIE_CORRECTABLE_ERROR_FAULT: unpublished, warn, observe: none
  Corrected PCIe errors of the GPU went over a limit.
  =look
"""

# Engines of which a GPU has several: what it is, the driver's name of one, and number -> (which one, GPUs).
_ENGINES = (
    (
        "copy engine",
        "ROBUST_CHANNEL_CE{}_ERROR",
        {39: 0, 40: 1, 41: 2, 70: 3, 71: 4, 72: 5, 75: 6, 76: 7, 77: 8, 85: 9},
        ALL_GPUS,
    ),
    ("copy engine", "ROBUST_CHANNEL_CE{}_ERROR", {number: number - 116 for number in range(126, 136)}, _BLACKWELL),
    ("video decoder", "ROBUST_CHANNEL_NVDEC{}_ERROR", {68: 0, 83: 1, 84: 2, 88: 3, 89: 4}, ALL_GPUS),
    ("video decoder", "ROBUST_CHANNEL_NVDEC{}_ERROR", {96: 5, 97: 6, 98: 7}, _FROM_HOPPER),
    ("picture decoder", "ROBUST_CHANNEL_NVJPG{}_ERROR", {82: 0}, ALL_GPUS),
    (
        "picture decoder",
        "ROBUST_CHANNEL_NVJPG{}_ERROR",
        {number: number - 98 for number in range(99, 106)},
        _FROM_HOPPER,
    ),
    ("optical flow engine", "ROBUST_CHANNEL_OFA{}_ERROR", {86: 0}, ALL_GPUS),
    ("optical flow engine", "ROBUST_CHANNEL_OFA{}_ERROR", {139: 1}, _BLACKWELL),
)

# Numbers that the catalog calls unused, with the driver's name where it has one.
_UNUSED_NAMES = {
    1: "ROBUST_CHANNEL_ERROR_RECOVERY_LEVEL_NON_FATAL",
    2: "ROBUST_CHANNEL_ERROR_RECOVERY_LEVEL_FATAL",
    16: "ROBUST_CHANNEL_VBLANK_CALLBACK_TIMEOUT",
    19: "ROBUST_CHANNEL_DISP_MISSED_NOTIFIER",
    20: "ROBUST_CHANNEL_MPEG_ERROR_SW_METHOD",
    21: "ROBUST_CHANNEL_ME_ERROR_SW_METHOD",
    22: "ROBUST_CHANNEL_VP_ERROR_SW_METHOD",
    23: "ROBUST_CHANNEL_RC_LOGGING_ENABLED",
    27: "ROBUST_CHANNEL_VP_ERROR",
    28: "ROBUST_CHANNEL_VP2_ERROR",
    29: "ROBUST_CHANNEL_BSP_ERROR",
    30: "ROBUST_CHANNEL_UNUSED_ERROR_30",
    33: "ROBUST_CHANNEL_SEC_ERROR",
    34: "ROBUST_CHANNEL_MSVLD_ERROR",
    35: "ROBUST_CHANNEL_MSPDEC_ERROR",
    36: "ROBUST_CHANNEL_MSPPP_ERROR",
    42: "ROBUST_CHANNEL_VIC_ERROR",
    47: "ROBUST_CHANNEL_NVENC0_ERROR",
    58: "FB_MEMORY_ERROR",
    59: "PMU_ERROR",
    61: "PMU_BREAKPOINT",
    65: "ROBUST_CHANNEL_NVENC1_ERROR",
    73: "ROBUST_CHANNEL_NVENC2_ERROR",
    81: "ROBUST_CHANNEL_VGA_SUBSYSTEM_ERROR",
    87: "NVTELEMETRY_DRIVER_REPORT",
    90: "LTC_ERROR",
    91: "RESERVED_XID",
    122: "SPI_PMU_RPC_READ_FAIL",
    123: "SPI_PMU_RPC_WRITE_FAIL",
    124: "SPI_PMU_RPC_ERASE_FAIL",
    125: "INFOROM_FS_ERROR",
    138: "ROBUST_CHANNEL_DLA_ERROR",
}


def _engine_entries() -> Iterable[XidEntry]:
    for what, name, numbers, gpus in _ENGINES:
        for number, which in numbers.items():
            meaning = f"The {what} number {which} reported an error in a program's work."
            yield XidEntry(
                number, name.format(which), "application", "warn", "observe", meaning, _JOB, _JOB_RETURNS, gpus
            )


def _unused(number: int) -> XidEntry:
    meaning = "This number is not in use on data-centre GPUs, as far as is published."
    return XidEntry(
        number, _UNUSED_NAMES.get(number, ""), "unused", "warn", "observe", meaning, _LOOK, _LOOK_RETURNS, ()
    )


def _entries() -> Iterable[XidEntry]:
    shared = {
        "=job": (_JOB, _JOB_RETURNS),
        "=reset": (_RESET, _RESET_RETURNS),
        "=look": (_LOOK, _LOOK_RETURNS),
    }
    returns = {f"{mark} returns": texts[1] for mark, texts in shared.items()}
    for block in re.split(r"\n(?=\d)", _ENTRIES.rstrip()):
        heading, meaning, *texts = (line.strip() for line in block.splitlines())
        number_and_name, traits, gpus = heading.split(": ")
        number, name = number_and_name.split(" ")
        cause, severity, action = traits.split(", ")
        if len(texts) == 1:
            advice, if_it_returns = shared[texts[0]]
        else:
            advice = shared[texts[0]][0] if texts[0] in shared else texts[0]
            if_it_returns = returns.get(texts[1], texts[1])
        where = tuple(gpu for gpu in gpus.split(" ") if gpu != "none")
        name = "" if name == "-" else name
        yield XidEntry(int(number), name, cause, severity, action, meaning, advice, if_it_returns, where)


def _catalog() -> dict[int, XidEntry]:
    entries = {number: _unused(number) for number in range(1, NEWEST + 1)}
    entries.update({entry.number: entry for entry in _engine_entries()})
    entries.update({entry.number: entry for entry in _entries()})
    return entries


XIDS: Mapping[int, XidEntry] = _catalog()


def xid_entry(number: int) -> XidEntry:
    """The entry of a number; one that asks for a person where it is newer than this catalog."""
    meaning = f"This number is not in this catalog, which ends at {NEWEST}: the driver is newer."
    unknown = XidEntry(number, "", "unused", "warn", "observe", meaning, _LOOK, _LOOK_RETURNS, ())
    return XIDS.get(number, unknown)
