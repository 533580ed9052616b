# SPDX-License-Identifier: Apache-2.0
"""Logic that runs on nodes. Ansible ships a package's modules to a node only where the package has this file."""

from __future__ import annotations

import marshal
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any

# Python's own two names in every module; the type of the second without importlib, whose imports Ansible does not see.
_loader: Any = globals()["__loader__"]
_ModuleSpec: Any = type(__spec__)
_MAGIC_NUMBER: bytes = sys.modules["_frozen_importlib_external"].MAGIC_NUMBER


class _Archive:
    """Imports the modules of this package from a zip archive, as which Ansible and node-health bring it to a node.

    Python's own zipimport compiles each module twice (once only to answer what its file is called), which for the
    health check takes as long as all its judging. An archive may hold the compiled form as well, for the one version
    of Python that made it (tools/build_node_health.py).
    """

    def __init__(self, package: str, loader: Any, place: str) -> None:
        self._prefix = package + "."
        self._loader = loader
        # __init__.py, or __init__.pyc where the archive has it
        self._place = place.rpartition("__init__.py")[0]

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> Any:
        """Called by Python for each import."""
        if not name.startswith(self._prefix):
            return None
        below = self._place + name[len(self._prefix) :].replace(".", "/")
        for file, is_package in ((below + ".py", False), (below + "/__init__.py", True)):
            code = self._code(file)
            if code is not None:
                return _ModuleSpec(name, self, origin=file, loader_state=code, is_package=is_package)
        return None

    def _code(self, file: str) -> Any:
        """The code of a file: from its .pyc where that is of this very Python, else compiled; None without the file."""
        try:
            compiled: bytes = self._loader.get_data(f"{file}c")
            # Behind the 16 bytes of the header, of which the first four name the version.
            if compiled[:4] == _MAGIC_NUMBER:
                return marshal.loads(compiled[16:])
        except OSError:
            pass
        try:
            return compile(self._loader.get_data(file), file, "exec", dont_inherit=True)
        except OSError:
            return None

    def create_module(self, spec: Any) -> None:
        """Python's own way is right."""

    def exec_module(self, module: ModuleType) -> None:
        """Run the module's code."""
        spec: Any = module.__spec__
        module.__file__ = spec.origin
        exec(spec.loader_state, module.__dict__)


if type(_loader).__name__ == "zipimporter":
    sys.meta_path.insert(0, _Archive(__name__, _loader, __file__))
