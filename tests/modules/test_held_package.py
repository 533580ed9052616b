# SPDX-License-Identifier: Apache-2.0
"""held_package: exact version, hold, check mode, and apt's ways to fail."""

import pytest

QUERY = "dpkg-query --show --showformat=${db:Status-Abbrev}|${Version}* chrony"
POLICY = """chrony:
  Installed: (none)
  Candidate: 4.3-2
  Version table:
     4.3-2 500
        500 mirror bookworm/main amd64 Packages
     4.2-1 500
        500 mirror bookworm/main amd64 Packages
"""
UPDATE = "apt-get --yes * update"


def installed(version: str, held: bool = True) -> str:
    return f"{'hi' if held else 'ii'} |{version}\n"


def test_a_converged_node_is_asked_for_its_state_only(commands, run_module):
    commands.answer(QUERY, installed("4.3-2"))
    result = run_module("held_package", name="chrony", version="4.3-2")
    assert (result["changed"], result["installed"], result["version"]) == (False, True, "4.3-2")
    assert commands.calls("apt-get") == []


@pytest.mark.parametrize("version", [None, "4.3-2"])
def test_a_missing_package_is_installed_and_held(commands, run_module, version):
    commands.answer(QUERY, rc=1, err="dpkg-query: no packages found matching chrony")
    commands.answer(QUERY, rc=1)
    commands.answer(QUERY, installed("4.3-2", held=False))
    commands.answer(UPDATE)
    commands.answer("apt-cache policy chrony", POLICY)
    commands.answer("apt-get * install chrony*")
    commands.answer("apt-mark hold chrony")
    result = run_module("held_package", name="chrony", version=version)
    assert (result["changed"], result["installed"], result["version"]) == (True, True, "4.3-2")
    assert result["diff"] == {"before": "chrony: not installed\n", "after": "chrony: 4.3-2, held\n"}
    assert commands.calls("apt-get")[-1].endswith("install chrony" + ("" if version is None else "=4.3-2"))
    assert commands.calls("apt-mark") == ["apt-mark hold chrony"]


def test_a_removed_package_whose_configuration_is_left_counts_as_missing(commands, run_module):
    commands.answer(QUERY, "rc |4.3-2\n")
    commands.answer("apt-cache policy chrony", POLICY)
    result = run_module("held_package", check=True, name="chrony")
    assert (result["changed"], result["installed"], result["version"]) == (True, False, "4.3-2")


def test_an_installation_that_was_cut_off_is_finished(commands, run_module):
    commands.answer(QUERY, "iF |4.3-2\n")
    commands.answer(QUERY, "iF |4.3-2\n")
    commands.answer(QUERY, installed("4.3-2", held=True))
    commands.answer(UPDATE)
    commands.answer("apt-cache policy chrony", POLICY)
    commands.answer("apt-get * install chrony")
    result = run_module("held_package", name="chrony")
    assert (result["changed"], result["diff"]["before"]) == (True, "chrony: installation unfinished\n")
    assert result["diff"]["after"] == "chrony: 4.3-2, held\n"


def test_an_installation_that_was_cut_off_is_removed(commands, run_module):
    commands.answer(QUERY, "iF |4.3-2\n")
    commands.answer("apt-get * remove chrony")
    assert run_module("held_package", name="chrony", state="absent")["changed"] is True
    assert commands.calls("apt-get")[-1].endswith("remove chrony")


def test_another_version_is_replaced_though_it_is_held(commands, run_module):
    commands.answer(QUERY, installed("4.3-2"))
    commands.answer(QUERY, installed("4.3-2"))
    commands.answer(QUERY, installed("4.2-1"))
    commands.answer(UPDATE)
    commands.answer("apt-cache policy chrony", POLICY)
    commands.answer("apt-get * install chrony=4.2-1")
    result = run_module("held_package", name="chrony", version="4.2-1")
    assert (result["changed"], result["version"]) == (True, "4.2-1")
    assert "--allow-change-held-packages" in commands.calls("apt-get")[-1]
    assert "--allow-downgrades" in commands.calls("apt-get")[-1]


def test_any_installed_version_satisfies_a_missing_pin_and_a_lost_hold_is_set_again(commands, run_module):
    commands.answer(QUERY, installed("4.0-1", held=False))
    commands.answer("apt-mark hold chrony")
    result = run_module("held_package", name="chrony")
    assert (result["changed"], result["version"]) == (True, "4.0-1")
    assert commands.calls("apt-get") == []


def test_check_mode_on_a_fresh_node_with_empty_lists_changes_nothing(commands, run_module):
    commands.answer(QUERY, rc=1)
    commands.answer("apt-cache policy chrony", "")
    result = run_module("held_package", check=True, name="chrony")
    assert (result["changed"], result["installed"]) == (True, False)
    assert result["version"] == "the candidate of the package lists"
    assert commands.calls("apt-get") + commands.calls("apt-mark") == []


def test_a_version_that_no_source_offers_is_refused_with_those_that_are(commands, run_module):
    commands.answer(QUERY, rc=1)
    commands.answer(UPDATE)
    commands.answer("apt-cache policy chrony", POLICY)
    result = run_module("held_package", name="chrony", version="9.9-9")
    assert result["failed"]
    assert "chrony=9.9-9" in result["msg"] and "offered: 4.3-2, 4.2-1" in result["msg"]
    assert len(commands.calls("apt-get")) == 1


def test_a_dead_mirror_is_named(commands, run_module):
    commands.answer(QUERY, rc=1)
    # apt-get update ends with 0 although it fetched nothing
    commands.answer(UPDATE, err="W: Failed to fetch mirror/InRelease  Could not resolve 'mirror'\n")
    commands.answer("apt-cache policy chrony", "")
    result = run_module("held_package", name="chrony")
    assert result["failed"] and "Could not resolve 'mirror'" in result["msg"]


def test_an_interrupted_dpkg_is_repaired_once(commands, run_module):
    commands.answer(QUERY, rc=1)
    commands.answer(QUERY, rc=1)
    commands.answer(QUERY, installed("4.3-2"))
    commands.answer(UPDATE)
    commands.answer("apt-cache policy chrony", POLICY)
    interrupted = "E: dpkg was interrupted, you must manually run 'dpkg --configure -a' to correct the problem.\n"
    commands.answer("apt-get * install chrony", rc=100, err=interrupted)
    commands.answer("apt-get * install chrony")
    commands.answer("dpkg --force-confdef --force-confold --configure -a")
    result = run_module("held_package", name="chrony")
    assert result["changed"] and not result.get("failed")
    assert len(commands.calls("dpkg")) == 1


def test_an_installation_that_installs_nothing_is_no_success(commands, run_module):
    commands.answer(QUERY, rc=1)
    commands.answer(UPDATE)
    commands.answer("apt-cache policy chrony", POLICY)
    commands.answer("apt-get * install chrony")
    result = run_module("held_package", name="chrony")
    assert result["failed"] and "not installed after an installation that reported success" in result["msg"]


def test_a_full_disk_is_named_as_the_cause(commands, run_module):
    commands.answer(QUERY, rc=1)
    commands.answer(UPDATE)
    commands.answer("apt-cache policy chrony", POLICY)
    commands.answer("apt-get * install chrony", rc=100, err="E: You don't have enough free space in /var/cache.\n")
    result = run_module("held_package", name="chrony")
    assert result["failed"] and "disk is full" in result["msg"]


def test_another_operating_system_is_refused_before_anything(commands, run_module):
    commands.answer(QUERY, rc=1)
    result = run_module("held_package", name="chrony", supported_os=["plan9 4"])
    assert result["failed"] and "supported are: plan9 4" in result["msg"]
    assert commands.calls("dpkg-query") == []


def test_removal(commands, run_module):
    commands.answer(QUERY, installed("4.3-2"))
    commands.answer("apt-get * remove chrony")
    result = run_module("held_package", name="chrony", state="absent")
    assert (result["changed"], result["installed"]) == (True, False)
