#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Stand-in for the DCGM exporter: serves what its CSV file names, for the GPUs that the host engine sees.

Like the real one (NVIDIA/dcgm-exporter 4.8.2) it ends at a field that it does not know, and when the host engine goes.
While HANGS exists it does not end at SIGTERM. The values are made up.
"""

import argparse
import csv
import http.server
import json
import os
import signal
import socket
import sys
import threading
import time

VERSION = "0.0.0"
BUILT_FOR = "0.0.0"
HANGS = "/run/dcgm-exporter-stand-in-hangs"
# Fields that it knows; a part of dcgm_fields.h.
FIELDS = """
DCGM_FI_DRIVER_VERSION DCGM_FI_DEV_SM_CLOCK DCGM_FI_DEV_MEM_CLOCK DCGM_FI_DEV_GPU_TEMP DCGM_FI_DEV_MEMORY_TEMP
DCGM_FI_DEV_POWER_USAGE DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION DCGM_FI_DEV_GPU_UTIL DCGM_FI_DEV_MEM_COPY_UTIL
DCGM_FI_DEV_FB_USED DCGM_FI_DEV_FB_FREE DCGM_FI_DEV_CLOCKS_EVENT_REASONS DCGM_FI_DEV_POWER_VIOLATION
DCGM_FI_DEV_THERMAL_VIOLATION DCGM_FI_DEV_XID_ERRORS DCGM_EXP_XID_ERRORS_COUNT DCGM_FI_DEV_ECC_SBE_VOL_TOTAL
DCGM_FI_DEV_ECC_DBE_VOL_TOTAL DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS
DCGM_FI_DEV_ROW_REMAP_PENDING DCGM_FI_DEV_ROW_REMAP_FAILURE DCGM_FI_DEV_PCIE_REPLAY_COUNTER
DCGM_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL DCGM_FI_DEV_NVLINK_CRC_DATA_ERROR_COUNT_TOTAL
DCGM_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL DCGM_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL
DCGM_FI_PROF_GR_ENGINE_ACTIVE DCGM_FI_PROF_SM_ACTIVE DCGM_FI_PROF_PIPE_TENSOR_ACTIVE DCGM_FI_PROF_DRAM_ACTIVE
DCGM_FI_PROF_PCIE_TX_BYTES DCGM_FI_PROF_PCIE_RX_BYTES DCGM_FI_PROF_NVLINK_TX_BYTES DCGM_FI_PROF_NVLINK_RX_BYTES
DCGM_FI_DEV_FABRIC_MANAGER_STATUS
""".split()  # noqa: SIM905, a list literal would be a page of one name a line
VALUES = {"GPU_TEMP": 34, "MEMORY_TEMP": 41, "POWER_USAGE": 71.5, "SM_CLOCK": 345, "MEM_CLOCK": 2619, "FB_FREE": 80995}


def fail(message: str) -> None:
    """End as the real one does, with the reason in the log."""
    print(f'time={time.strftime("%FT%TZ")} level=ERROR msg="{message}"', file=sys.stderr, flush=True)
    os._exit(1)


class HostEngine:
    """The connection, which is never made anew."""

    def __init__(self, address: str) -> None:
        host, _colon, port = address.rpartition(":")
        try:
            self._socket = socket.create_connection((host, int(port)), 10)
        except OSError as error:
            fail(f"Error connecting to nv-hostengine: {error}")
        self._file, self._lock = self._socket.makefile("rw"), threading.Lock()

    def ask(self) -> "dict[str, object]":
        """What it says now; ends the exporter where the connection is gone."""
        with self._lock:
            try:
                self._file.write('{"ask": "discovery"}\n')
                self._file.flush()
                answer: dict[str, object] = json.loads(self._file.readline())
                return answer
            except (OSError, ValueError):
                fail("Host engine connection invalid/disconnected")
        raise AssertionError


def read_counters(path: str) -> "list[tuple[str, str, str]]":
    """(field, type, help) of the file."""
    counters = []
    with open(path) as file:
        for number, row in enumerate(csv.reader(line for line in file if not line.startswith("#"))):
            row = [part.strip(" ") for part in row]
            if len(row) != 3:
                fail(f"malformed CSV record; err: failed to parse line {number} ({row}), expected 3 fields")
            if row[0] not in FIELDS:
                fail(f"could not find DCGM field; err: unknown ExporterCounter field '{row[0]}'")
            counters.append((row[0], row[1], row[2]))
    return counters


def render(counters: "list[tuple[str, str, str]]", gpus: int) -> str:
    """The text of a scrape."""
    text = ""
    for field, kind, said in counters:
        if kind == "label":
            continue
        text += f"# HELP {field} {said}\n# TYPE {field} {kind}\n"
        for gpu in range(gpus):
            labels = (
                f'gpu="{gpu}",UUID="GPU-00000000-0000-0000-0000-{gpu:012d}",pci_bus_id="00000000:{gpu + 25:02X}:00.0",'
            )
            labels += f'device="nvidia{gpu}",modelName="NVIDIA H100 80GB HBM3",hostname="{socket.gethostname()}",'
            more = 'window_size_in_ms="300000",' if field == "DCGM_EXP_XID_ERRORS_COUNT" else ""
            value = VALUES.get(field.replace("DCGM_FI_DEV_", ""), 0)
            text += f'{field}{{{labels}{more}DCGM_FI_DRIVER_VERSION="580.105.08"}} {value}\n'
    return text


def main() -> None:
    """Serve until SIGTERM."""
    parser = argparse.ArgumentParser()
    parser.add_argument("-f", default="/etc/dcgm-exporter/default-counters.csv")
    parser.add_argument("-a", default=":9400")
    parser.add_argument("-r", required=True)
    wanted = parser.parse_args()
    host, _colon, port = wanted.a.rpartition(":")
    engine = HostEngine(wanted.r)
    running = str(engine.ask()["version"])
    if [int(part) for part in running.split(".")] < [int(part) for part in BUILT_FOR.split(".")]:
        fail("Error getting devices count: API version mismatch")
    counters = read_counters(wanted.f)

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            gpus = engine.ask()["gpus"]
            assert isinstance(gpus, int)
            body = render(counters, gpus).encode()
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; charset=utf-8")
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_arguments: object) -> None:
            pass

    def end(_number: int, _frame: object) -> None:
        if not os.path.exists(HANGS):
            os._exit(0)

    signal.signal(signal.SIGTERM, end)
    try:
        server = http.server.ThreadingHTTPServer((host.strip("[]"), int(port)), Handler)
    except OSError as error:
        fail(f"Failed to Listen and Server HTTP server. {error}")
    threading.Thread(target=server.serve_forever, daemon=True).start()
    while True:
        time.sleep(1)
        engine.ask()


if __name__ == "__main__":
    main()
