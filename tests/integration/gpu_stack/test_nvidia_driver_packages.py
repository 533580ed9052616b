# SPDX-License-Identifier: Apache-2.0
"""What role nvidia_driver asks of apt_stack, with real apt on the stand-ins: install, upgrade, downgrade."""

from typing import Any

import pytest
from ansible.module_utils.gpufleet.nvidia_packages import Wish, apt_arguments, driver_packages

from tests.integration.gpu_stack.conftest import AptNode
from tests.vendor_repository.stand_ins import DRIVER, NEW, OLD

pytestmark = pytest.mark.container


def ask(node: AptNode, version: "str | None", upgrade: bool = False, downgrade: bool = False) -> dict[str, Any]:
    """Have apt_stack do what the role would ask for on this node."""
    form = "--showformat='${Package} ${Version}\n'"
    rows = node.sh(f"dpkg-query --show {form} 'nvidia-*' 'lib*' 2>/dev/null", check=False).splitlines()
    installed = {name: version for name, version in (row.split(" ", 1) for row in rows) if version}
    wish = Wish("mirror", "580", version, "open", "dkms", None, True)
    asked = apt_arguments(driver_packages("debian", wish, []), wish, installed, upgrade, downgrade)
    return node.apply(**{**asked, "headers": False})


@pytest.mark.parametrize("shared_node", ["debian12"], indirect=True)
def test_the_roles_arguments_install_upgrade_and_go_back(node: AptNode) -> None:
    everything = [*DRIVER, "nvidia-fabricmanager"]
    for version, more in ((OLD, {}), (NEW, {"upgrade": True}), (OLD, {"downgrade": True})):
        done = ask(node, version, **more)
        assert not done.get("failed"), done
        assert {node.version(name) for name in everything} == {f"{version}-1"}, done
        assert set(everything) < set(node.held())
        assert not ask(node, version)["changed"]
    refused = ask(node, NEW)
    assert refused.get("failed") and "has to be asked for" in refused["msg"]
