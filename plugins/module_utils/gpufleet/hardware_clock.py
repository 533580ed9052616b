# SPDX-License-Identifier: Apache-2.0
"""Write the hardware clock through its device.

Not through hwclock(8): Debian 12 and later keep it in util-linux-extra, which a small image lacks, and no package can
be installed before the clock is right.
"""

from __future__ import annotations

import fcntl
import os
import struct
import time

DEVICE = "/dev/rtc0"
ADJTIME = "/etc/adjtime"

# linux/rtc.h: _IOW('p', 0x0a, struct rtc_time), nine ints
RTC_SET_TIME = 0x4024700A


def keeps_local_time(adjtime_text: str) -> bool:
    """Whether hwclock's adjtime file says that the hardware clock runs on local time (third line; default UTC)."""
    lines = adjtime_text.splitlines()
    return len(lines) >= 3 and lines[2].strip() == "LOCAL"


def rtc_time(now: float, local: bool) -> bytes:
    """struct rtc_time for seconds since the epoch."""
    fields = time.localtime(now) if local else time.gmtime(now)
    return struct.pack(
        "9i",
        fields.tm_sec,
        fields.tm_min,
        fields.tm_hour,
        fields.tm_mday,
        fields.tm_mon - 1,
        fields.tm_year - 1900,
        0,
        0,
        0,
    )


def write_hardware_clock(device: str = DEVICE, adjtime: str = ADJTIME) -> str | None:
    """Set the hardware clock from the system clock; returns why it could not be, or None when it was."""
    try:
        with open(adjtime, encoding="ascii", errors="replace") as file:
            local = keeps_local_time(file.read())
    except OSError:
        local = False
    try:
        handle = os.open(device, os.O_RDONLY)
    except OSError as error:
        return f"{device}: {error.strerror}"
    try:
        fcntl.ioctl(handle, RTC_SET_TIME, rtc_time(time.time(), local))
    except OSError as error:
        return f"{device}: {error.strerror}"
    finally:
        os.close(handle)
    return None
