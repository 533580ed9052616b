# SPDX-License-Identifier: Apache-2.0
"""The profile's description of engine, toolkit, DCGM and exporter: what cannot be installed or run is refused."""

from typing import Any

import pytest
from ansible.module_utils.gpufleet.profile_schema import validate

from tests.unit.profile.test_profile_schema_gpu_stack import changed

DOCKER, TOOLKIT, DCGM, EXPORTER = (
    f"packages.{name}" for name in ("docker", "container_toolkit", "dcgm", "dcgm_exporter")
)
IMAGE = "registry.example:5000/k8s/dcgm-exporter:4.2.3-4.1.3-ubuntu22.04"
AS_CONTAINER: dict[str, Any] = {f"{EXPORTER}.run_as": "container", f"{EXPORTER}.image": IMAGE}

# changes, then the problem's path and a piece of what was expected
REFUSED: dict[str, tuple[dict[str, Any], str, str]] = {
    "docker: vendor without repository": ({f"{DOCKER}.repository": None}, f"{DOCKER}.repository", "is vendor"),
    "docker: distro with one": ({f"{DOCKER}.source": "distro"}, f"{DOCKER}.repository", "null, since"),
    "toolkit: no Debian has it": (
        {f"{TOOLKIT}.source": "distro", f"{TOOLKIT}.repository": None},
        f"{TOOLKIT}.source",
        "one of vendor, mirror",
    ),
    "dcgm: an older release": ({f"{DCGM}.version": "3.3.9"}, f"{DCGM}.version", "from release 4 on"),
    "dcgm: a watch unknown to it": ({f"{DCGM}.watches": ["fans"]}, f"{DCGM}.watches[0]", "one of pcie"),
    "exporter: container without image": ({f"{EXPORTER}.run_as": "container"}, f"{EXPORTER}.image", "an image, since"),
    "exporter: version beside the image": (
        {**AS_CONTAINER, f"{EXPORTER}.version": "4.1.3"},
        f"{EXPORTER}.version",
        "null, since",
    ),
    "exporter: service with an image": ({f"{EXPORTER}.image": IMAGE}, f"{EXPORTER}.image", "null, since"),
    "exporter: image without a tag": (
        {**AS_CONTAINER, f"{EXPORTER}.image": "nvcr.io/nvidia/k8s/dcgm-exporter"},
        f"{EXPORTER}.image",
        "an image with a tag",
    ),
    "exporter: service without DCGM": ({f"{DCGM}.manage": False}, f"{EXPORTER}.manage", "packages.dcgm.manage"),
    "exporter: container without engine": (
        {**AS_CONTAINER, f"{DOCKER}.manage": False},
        f"{EXPORTER}.manage",
        "packages.docker.manage",
    ),
    "docker: a runtime that nobody brings": (
        {"platform.docker.default_runtime": "nvidia", f"{TOOLKIT}.manage": False},
        "platform.docker.default_runtime",
        "runc, since",
    ),
    "docker: a size without unit": ({"platform.docker.log_max_size": "100"}, "platform.docker.log_max_size", "unit"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_work_is_refused(case: str) -> None:
    changes, path, expected = REFUSED[case]
    (problem,) = validate(changed(changes))
    assert problem.path == path
    assert expected in problem.expected


@pytest.mark.parametrize(
    "changes",
    [
        AS_CONTAINER,
        {**AS_CONTAINER, f"{EXPORTER}.image": "nvcr.io/nvidia/k8s/dcgm-exporter@sha256:" + "0" * 64},
        {f"{EXPORTER}.manage": False, f"{DCGM}.manage": False},
        {f"{DOCKER}.source": "distro", f"{DOCKER}.repository": None, "platform.docker.default_runtime": "nvidia"},
    ],
)
def test_what_can_work_is_not(changes: dict[str, Any]) -> None:
    assert validate(changed(changes)) == []
