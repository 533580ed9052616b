# SPDX-License-Identifier: Apache-2.0
"""The file systems of a pool: what has to be created, set or mounted."""

from __future__ import annotations

from collections.abc import Mapping

from .zfs_disk_choice import Refusal
from .zfs_pool_types import NodeState, Step, WantedFileSystem, WantedPool
from .zfs_properties import Property, differences

# The periodic jobs of Debian's and Ubuntu's package obey these; the role's timers do their work.
PACKAGED_JOBS_OFF = {"org.debian:periodic-scrub": "disable", "org.debian:periodic-trim": "disable"}


def all_properties(file_system: WantedFileSystem, is_top: bool) -> dict[str, str]:
    """The properties with those that follow from the mount point."""
    properties = dict(file_system.properties)
    if file_system.mountpoint is not None:
        properties["mountpoint"] = file_system.mountpoint
    if is_top:
        properties["canmount"] = "off" if file_system.mountpoint == "none" else "on"
        properties.update(PACKAGED_JOBS_OFF)
    return properties


def refuse_hidden_entries(file_system: WantedFileSystem, state: NodeState) -> None:
    place = file_system.mountpoint
    hidden = state.hidden_entries(place) if place not in (None, "none") else 0
    if hidden:
        raise Refusal(
            f"{place} is to be the mount point of {file_system.name}, but holds {hidden} entries, which it would hide",
            f"stop what uses {place}, move its content away (after the run, into the file system), or name another "
            "mount point in storage.pool",
        )


def plan_file_systems(wanted: WantedPool, state: NodeState) -> list[Step]:
    steps = []
    for file_system in wanted.file_systems:
        is_top = file_system is wanted.file_systems[0]
        properties = all_properties(file_system, is_top)
        if file_system.name not in state.file_systems:
            refuse_hidden_entries(file_system, state)
            options = [word for name, value in properties.items() for word in ("-o", f"{name}={value}")]
            argv = ("zfs", "create", *options, file_system.name)
            settings = "".join(f", {name}={value}" for name, value in properties.items())
            text = f"create file system {file_system.name}{settings}"
            steps.append(Step("command", text, f"no file system {file_system.name}", argv))
            continue
        found = state.file_systems[file_system.name]
        if found is not None:
            steps += _plan_one_file_system(file_system, properties, found, state, is_top)
    return steps


def _plan_one_file_system(
    wanted: WantedFileSystem,
    properties: Mapping[str, str],
    found: Mapping[str, Property],
    state: NodeState,
    is_top: bool,
) -> list[Step]:
    steps = []
    for name, difference in differences(properties, found, state.zfs_version).items():
        if name == "mountpoint":
            refuse_hidden_entries(wanted, state)
        argv = ("zfs", "set", f"{name}={properties[name]}", wanted.name)
        text = f"set {name}={properties[name]} on {wanted.name}"
        steps.append(Step("command", text, f"{name}={difference.is_value} on {wanted.name}", argv))
    place = found["mountpoint"]
    if wanted.mountpoint is None and place.source == "local" and not is_top:
        argv = ("zfs", "inherit", "mountpoint", wanted.name)
        text = f"inherit the mount point of {wanted.name}"
        steps.append(Step("command", text, f"mountpoint={place.value} on {wanted.name}", argv))
    elif not steps and _should_be_mounted(found):
        refuse_hidden_entries(wanted._replace(mountpoint=place.value), state)
        text = f"mount {wanted.name} at {place.value}"
        steps.append(Step("command", text, f"{wanted.name} is not mounted", ("zfs", "mount", wanted.name)))
    return steps


def _should_be_mounted(found: Mapping[str, Property]) -> bool:
    values = {name: found[name].value for name in ("mounted", "canmount", "mountpoint")}
    return values["mounted"] == "no" and values["canmount"] == "on" and values["mountpoint"].startswith("/")
