# SPDX-License-Identifier: Apache-2.0
"""A stack goes back only to the version that the profile names."""

import pytest
from ansible.module_utils.gpufleet.docker_error import DockerError
from ansible.module_utils.gpufleet.planned_downgrade import goes_back

WORDS = ("the engine", "packages.docker.version", "docker_downgrade_to")


def test_it_goes_back_where_both_name_the_version() -> None:
    assert not goes_back({"downgrade_to": None, "version": "28.5.1"}, DockerError, *WORDS)
    assert goes_back({"downgrade_to": "28.5.1", "version": "28.5.1"}, DockerError, *WORDS)


@pytest.mark.parametrize(("version", "said"), [("28.5.2", "wants 28.5.2"), (None, "wants no version")])
def test_any_other_version_is_refused(version: str | None, said: str) -> None:
    with pytest.raises(DockerError, match=f"the engine may go back to 28.5.1, but the profile {said}") as caught:
        goes_back({"downgrade_to": "28.5.1", "version": version}, DockerError, *WORDS)
    assert caught.value.next_step == "name the same version in packages.docker.version and docker_downgrade_to"
