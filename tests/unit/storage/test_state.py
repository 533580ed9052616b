# SPDX-License-Identifier: Apache-2.0
"""What counts as an answer when pools are looked for: silence does not."""

import pytest
from ansible.module_utils.gpufleet.bounded_command import CommandResult
from ansible.module_utils.gpufleet.zfs_pool_state import StateError, _read_importable, _read_pools
from ansible.module_utils.gpufleet.zpool_status import ZpoolParseError


def answers(result):
    return lambda argv, limit_s: result


def test_no_pool_to_import_is_what_zpool_says():
    # recorded with ZFS 2.1.11: exit status 0, nothing on stdout
    assert _read_importable(answers(CommandResult("done", 0, "", "no pools available to import\n"))) == []


@pytest.mark.parametrize(
    ("result", "error"),
    [
        (CommandResult("done", 0, "", ""), ZpoolParseError),
        (CommandResult("done", 1, "", "internal error: out of memory"), StateError),
        (CommandResult("timeout", None, "", "no answer within 300 s"), StateError),
    ],
)
def test_silence_and_failure_are_not_the_absence_of_pools(result, error):
    with pytest.raises(error):
        _read_importable(answers(result))


def test_an_empty_status_has_to_agree_with_the_list_of_pools():
    def run(argv, limit_s):
        return CommandResult("done", 0, "data\n" if argv[1] == "list" else "", "")

    with pytest.raises(StateError, match="there are pools: data"):
        _read_pools(run)
    assert _read_pools(answers(CommandResult("done", 0, "", "no pools available\n"))) == []
