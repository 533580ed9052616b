# SPDX-License-Identifier: Apache-2.0
"""A property of the lab's nodes alone: what Python imports from a zip file is compiled once, not anew in each process.

Ansible sends each task's code as a zip of sources. Compiling them takes a real node 0.2 s and an emulated one several
seconds, for every task. Here the code objects are kept by the content of the source (Python's own hash for such files,
PEP 552) and Python version; a source that differs in one byte is compiled. Anything wrong with the store (no room, no
right to write, a file cut off by a lost power supply) means: compile, as on any other machine.

Loaded through gpufleet-lab.pth at each start of Python, so it imports nothing that Python has not loaded by itself.
Python 3.11 (the lab's Debian 12) up to 3.13 have the private function that is replaced here.
"""

import _imp
import marshal
import os
import sys
import zipimport

STORE = "/var/cache/gpufleet-lab/zip-imports"
HASH_BYTES = 8

_compile_source = zipimport._compile_source


def _sealed(code):
    return _imp.source_hash(1, code) + code


def _unsealed(data):
    """The bytes that were stored; raises ValueError where they are not what was written."""
    if _imp.source_hash(1, data[HASH_BYTES:]) != data[:HASH_BYTES]:
        raise ValueError("damaged")
    return data[HASH_BYTES:]


def compile_source(pathname, source):
    """Stand in for zipimport's function of this name: code of `source`, which lies at `pathname` in a zip file."""
    key = _imp.source_hash(sys.hexversion, source).hex() + f"-{len(source)}-{sys.flags.optimize}"
    path = f"{STORE}/{key}"
    try:
        with open(path, "rb") as stored:
            code = marshal.loads(_unsealed(stored.read()))
    except (OSError, ValueError, EOFError, TypeError):
        code = _compile_source(pathname, source)
        _store(path, marshal.dumps(code))
        return code
    # It was compiled for another task's temporary file.
    _imp._fix_co_filename(code, pathname)
    return code


def _store(path, code):
    """Write whole or not at all: several tasks may do so at the same time."""
    new = f"{path}.{os.getpid()}"
    try:
        os.makedirs(STORE, mode=0o700, exist_ok=True)
        with open(new, "xb") as stored:
            stored.write(_sealed(code))
        os.rename(new, path)
    except OSError:
        try:  # noqa: SIM105  contextlib is not loaded yet
            os.unlink(new)
        except OSError:
            pass


zipimport._compile_source = compile_source
