# SPDX-License-Identifier: Apache-2.0
"""Have dkms build a module for one kernel, and say what its log says where it cannot."""

from __future__ import annotations

import os

from .bounded_command import run_bounded
from .kernel_modules import DKMS_ROOT, DkmsStatus, newest_make_log

# NVIDIA's modules for one kernel: 3 minutes on two cores of 2026, and machines vary threefold.
LIMIT_S = 3600


class DkmsBuildError(Exception):
    """A module cannot be built: the message says for which kernel and why, next_step what to do."""

    def __init__(self, message: str, next_step: str) -> None:
        super().__init__(message)
        self.next_step = next_step


def build_for_kernel(
    prefix: str, version: str, kernel: str, status: DkmsStatus, began: float, dkms_root: str = DKMS_ROOT
) -> None:
    """Build and install for a kernel; raises DkmsBuildError.

    prefix: how dkms' name of the sources begins, since Debian has nvidia-current and nvidia-current-open where others
    have nvidia. status: a broken entry in it hides those after it, so sources are looked for in dkms_root. began:
    time() of the run; an older make.log is not about it.
    """
    folders = sorted(os.listdir(dkms_root)) if os.path.isdir(dkms_root) else []
    names = [name for name in folders if name.startswith(prefix)]
    name = next((name for name in names if os.path.isdir(os.path.join(dkms_root, name, version))), None)
    broken = f" dkms status said: {' '.join(status.broken)}" if status.broken else ""
    if name is None:
        raise DkmsBuildError(
            f"dkms knows no sources of {prefix} {version}, and kernel {kernel} lacks its module.{broken}",
            "install the package with the sources anew (apt-get install --reinstall), see dkms status",
        )
    argv = ["dkms", "install", "--force", "-m", name, "-v", version, "-k", kernel]
    result = run_bounded(argv, LIMIT_S)
    if result.outcome == "done" and result.rc == 0:
        return
    message = f"{name} {version} was not built for kernel {kernel}"
    log = newest_make_log(name, dkms_root)
    # A second: some file systems keep no finer time.
    if log is not None and os.path.getmtime(log.path) >= began - 1:
        raise DkmsBuildError(
            f"{message}. End of {log.path} (kernel {log.release or 'unknown'}):\n{log.tail}",
            "read the log; the kernel may be newer than this release supports: choose another version in the profile, "
            "or remove that kernel",
        )
    raise DkmsBuildError(f"{message}: {result.said()}{broken}", f"run on the node: {' '.join(argv)}")
