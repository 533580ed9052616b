# SPDX-License-Identifier: Apache-2.0
"""The drift test of every role that owns something: in its scenario's containers, or on the lab node."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests import drift
from tests.integration.conftest import LabNode
from tools.molecule_scenarios import kind_of

REPOSITORY = drift.REPOSITORY
BIN = Path(sys.executable).parent


def roles_with_objects(kind: str) -> list[str]:
    """Roles whose scenario is of this kind and that own something."""
    found = []
    for role in sorted(drift.ROLES.iterdir()):
        scenario = REPOSITORY / "molecule" / role.name / "molecule.yml"
        if scenario.exists() and kind_of(yaml.safe_load(scenario.read_text()) or {}) == kind and drift.load_owned(role):
            found.append(role.name)
    return found


def molecule(role: str, environment: dict[str, str], *steps: str) -> None:
    """Run single molecule steps of a role's scenario."""
    for step in steps:
        done = subprocess.run(
            [BIN / "molecule", step, "-s", role],
            cwd=REPOSITORY,
            env=os.environ | environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]


@pytest.fixture
def containers(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[drift.Target]:
    """Fresh containers of a role's scenario, apart from those that molecule itself may be using."""
    role = request.param
    environment = {
        # molecule finds ansible by PATH only
        "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
        "MOLECULE_EPHEMERAL_DIRECTORY": str(tmp_path / "molecule"),
        "MOLECULE_PROJECT_DIRECTORY": str(REPOSITORY),
        "MOLECULE_SCENARIO_NAME": role,
        "NO_COLOR": "1",
    }
    try:
        # its create sequence includes prepare
        molecule(role, environment, "create")
        podman = str(REPOSITORY / "tools" / "podman")
        mine = f"label=gpufleet.state={environment['MOLECULE_EPHEMERAL_DIRECTORY']}"
        listing = subprocess.run(
            [podman, "ps", "--filter", mine, "--format", "json"], check=True, capture_output=True, text=True
        ).stdout
        names = {entry["Labels"]["gpufleet.host"]: entry["Names"][0] for entry in json.loads(listing)}
        assert names, "molecule create left no container"
        yield drift.Target(
            inventory=str(tmp_path / "molecule" / "inventory"),
            shells={host: (podman, "exec", "-i", name, "sh", "-c") for host, name in names.items()},
            environment=environment,
        )
    finally:
        molecule(role, environment, "destroy")


@pytest.mark.container
@pytest.mark.parametrize("containers", roles_with_objects("containers"), indirect=True, ids=lambda role: role)
def test_containers(containers: drift.Target, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    """Every object of the role is altered in fresh Debian 12 and 13 containers, found and mended."""
    role = request.node.callspec.params["containers"]
    drift.run_role(role, containers, tmp_path)
    drift.assert_drift_is_found_and_mended(role, containers, tmp_path)


@pytest.mark.lab
@pytest.mark.parametrize("role", roles_with_objects("lab"))
def test_lab(role: str, lab_node: LabNode, tmp_path: Path) -> None:
    """From a converged node (site.yml has run): every object of the role is altered, found and mended."""
    ssh_config = json.loads(lab_node.lab("status", "--json").stdout)["ssh_config"]
    target = drift.Target(
        inventory=str(REPOSITORY / "inventories" / "lab"),
        shells={lab_node.name: ("ssh", "-F", ssh_config, lab_node.name)},
    )
    drift.assert_drift_is_found_and_mended(role, target, tmp_path)
