# SPDX-License-Identifier: Apache-2.0
"""Make the repository's module_utils importable as Ansible itself imports them.

Appending to the package's path, instead of to sys.path, keeps one copy of each class.
"""

from pathlib import Path

import ansible.module_utils

REPOSITORY = Path(__file__).resolve().parents[1]
_OWN = str(REPOSITORY / "plugins" / "module_utils")
if _OWN not in ansible.module_utils.__path__:
    ansible.module_utils.__path__.append(_OWN)
