# SPDX-License-Identifier: Apache-2.0
"""Logic that runs on nodes. Ansible ships a package's modules to a node only where the package has this file."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any

# Python's own two names in every module; the type of the second without importlib, whose imports Ansible does not see.
_loader: Any = globals()["__loader__"]
_ModuleSpec: Any = type(__spec__)


class _Archive:
    """Imports the modules of this package from a zip archive, as which Ansible and node-health bring it to a node.

    Python's own zipimport compiles each module twice (once only to answer what its file is called), which for the
    health check takes as long as all its judging.
    """

    def __init__(self, package: str, loader: Any, place: str) -> None:
        self._prefix = package + "."
        self._loader = loader
        self._place = place[: -len("__init__.py")]

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> Any:
        """Called by Python for each import."""
        if not name.startswith(self._prefix):
            return None
        below = self._place + name[len(self._prefix) :].replace(".", "/")
        for file, is_package in ((below + ".py", False), (below + "/__init__.py", True)):
            try:
                source = self._loader.get_data(file)
            except OSError:
                continue
            return _ModuleSpec(name, self, origin=file, loader_state=source, is_package=is_package)
        return None

    def create_module(self, spec: Any) -> None:
        """Python's own way is right."""

    def exec_module(self, module: ModuleType) -> None:
        """Run the module's code."""
        spec: Any = module.__spec__
        module.__file__ = spec.origin
        exec(compile(spec.loader_state, spec.origin, "exec", dont_inherit=True), module.__dict__)


if type(_loader).__name__ == "zipimporter":
    sys.meta_path.insert(0, _Archive(__name__, _loader, __file__))
