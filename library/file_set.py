#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Ansible module: a set of small text files in one host-task."""

from __future__ import annotations

DOCUMENTATION = r"""
module: file_set
short_description: Write a set of small text files in one task
description:
  - Brings several text files, and removes others, in one task. A loop over C(ansible.builtin.template) costs one
    host-task for each file and host, on a converged node too; this module costs one. Templates are filled by the
    C(template) lookup where the content is given.
  - Looks at all paths before it writes the first one. A path that is a directory or a symbolic link is refused, and a
    link in the last component is never followed.
  - Each file is written beside its place, flushed to disk and renamed, so that after a power cut there is the old
    content or the new one.
  - Not for secrets. Contents are shown in the diff and in the log of the node.
author: The gpufleet authors
attributes:
  check_mode:
    description: Says what would change. A folder that is missing is taken for one that an earlier task will bring.
    support: full
  diff_mode:
    description: Shows content and attributes before and after, for the paths that differ.
    support: full
options:
  files:
    description: The files.
    type: list
    elements: dict
    default: []
    suboptions:
      path:
        description: Absolute path. Its folder must exist, or be named in O(directories).
        type: str
        required: true
      content:
        description: The whole content.
        type: str
        required: true
      mode:
        description: Four octal digits, in quotes.
        type: str
        default: "0644"
      owner:
        description: Name of the user.
        type: str
        default: root
      group:
        description: Name of the group.
        type: str
        default: root
  absent:
    description: Absolute paths of files that must not be there.
    type: list
    elements: str
    default: []
  directories:
    description: Folders, made in this order before the files are written.
    type: list
    elements: dict
    default: []
    suboptions:
      path:
        description: Absolute path. The folder that it lies in must exist, or be named before it.
        type: str
        required: true
      mode:
        description: Four octal digits, in quotes.
        type: str
        default: "0755"
      owner:
        description: Name of the user.
        type: str
        default: root
      group:
        description: Name of the group.
        type: str
        default: root
"""

EXAMPLES = r"""
- name: Write the units of the scratch pool
  file_set:
    files:
      - path: /etc/systemd/system/zfs-scrub.timer
        content: "{{ lookup('ansible.builtin.template', 'zfs-scrub.timer.j2') }}"
      - path: /etc/modprobe.d/zfs.conf
        content: |
          options zfs zfs_arc_max=68719476736
    absent:
      - /etc/cron.d/zfsutils-linux
  register: __units

- name: Load the units anew
  ansible.builtin.systemd_service:
    daemon_reload: true
  when: __units['daemon_reload_needed']
"""

RETURN = r"""
changed_paths:
  description: Paths that were written, removed or given other attributes, or would be in check mode.
  type: list
  elements: str
  returned: success
created_paths:
  description: Those of RV(changed_paths) that were not there before, such as a unit that check mode cannot enable.
  type: list
  elements: str
  returned: success
daemon_reload_needed:
  description: Whether one of RV(changed_paths) lies below C(/etc/systemd/system).
  type: bool
  returned: success
"""

import contextlib
import os
import tempfile

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.gpufleet.file_set import list_faults, needs_daemon_reload, obstacle, read_bytes


class FileSet:
    """The paths on this node; `changed` and `diff` grow with each path that differs."""

    def __init__(self, module):
        self.module = module
        self.check_mode = module.check_mode
        self.changed = []
        self.created = []
        self.diff = []

    def attributes(self, entry, path):
        """Arguments of AnsibleModule's helpers for `path`, with the SELinux context that entry's own path has."""
        context = dict.fromkeys(("seuser", "serole", "setype", "selevel"), "_default")
        return {**self.module.load_file_common_arguments({**entry, **context}), "path": path}

    def note(self, path, before, after, what=""):
        if path not in self.changed:
            self.changed.append(path)
        header = f"{path} ({what})" if what else path
        self.diff.append({"before": before, "after": after, "before_header": header, "after_header": header})

    def mend_attributes(self, entry):
        path, diff = entry["path"], {}
        if self.module.set_fs_attributes_if_different(self.attributes(entry, path), False, diff=diff):
            texts = [
                "".join(f"{key}: {diff[side][key]}\n" for key in sorted(diff[side])) for side in ("before", "after")
            ]
            self.note(path, *texts, what="attributes")

    def ensure_directory(self, entry):
        path = entry["path"]
        if os.path.isdir(path):
            self.mend_attributes(entry)
            return
        self.created.append(path)
        self.note(path, "", "directory\n")
        if not self.check_mode:
            # Closed to others until owner and mode are right.
            os.mkdir(path, 0o700)
            self.module.set_fs_attributes_if_different(self.attributes(entry, path), False)

    def ensure_file(self, entry):
        path, wanted = entry["path"], entry["content"].encode("utf-8")
        there = os.path.lexists(path)
        content = read_bytes(path)
        if content != wanted:
            shown = content.decode("utf-8", "replace") if content is not None else ""
            if there and content is None:
                shown = f"({os.lstat(path).st_size} bytes, not shown)\n"
            if not there:
                self.created.append(path)
            self.note(path, shown, entry["content"])
            if not self.check_mode:
                self.write(entry, wanted)
                return
        if there:
            self.mend_attributes(entry)

    def write(self, entry, content):
        folder = os.path.dirname(entry["path"])
        handle, fresh = tempfile.mkstemp(prefix=".gpufleet-", dir=folder)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(content)
                file.flush()
                self.module.set_fs_attributes_if_different(self.attributes(entry, fresh), False)
                os.fsync(file.fileno())
            os.rename(fresh, entry["path"])
        except BaseException:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(fresh)
            raise
        sync_folder(folder)

    def ensure_absent(self, path):
        if not os.path.lexists(path):
            return
        content = read_bytes(path)
        self.note(path, "(not shown)\n" if content is None else content.decode("utf-8", "replace"), "")
        if not self.check_mode:
            os.unlink(path)
            sync_folder(os.path.dirname(path))


def sync_folder(path):
    """So that a rename or removal survives a power cut."""
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def main():
    def entries(mode, **more):
        options = {
            "path": {"type": "str", "required": True},
            "mode": {"type": "str", "default": mode},
            "owner": {"type": "str", "default": "root"},
            "group": {"type": "str", "default": "root"},
            **more,
        }
        return {"type": "list", "elements": "dict", "default": [], "options": options}

    module = AnsibleModule(
        argument_spec={
            "files": entries("0644", content={"type": "str", "required": True}),
            "absent": {"type": "list", "elements": "str", "default": []},
            "directories": entries("0755"),
        },
        supports_check_mode=True,
    )
    wanted = module.params
    faults = list_faults(wanted["files"], wanted["absent"], wanted["directories"])
    if not faults:
        in_the_way = [obstacle(entry["path"], "file") for entry in wanted["files"]]
        in_the_way += [obstacle(path, "file") for path in wanted["absent"]]
        in_the_way += [obstacle(entry["path"], "directory") for entry in wanted["directories"]]
        faults = [fault for fault in in_the_way if fault]
    if not faults and not module.check_mode:
        made = {entry["path"] for entry in wanted["directories"]}
        homeless = {os.path.dirname(entry["path"]) for entry in [*wanted["directories"], *wanted["files"]]}
        faults = [
            f"folder {folder} does not exist. Name it in directories, or install first what brings it"
            for folder in sorted(homeless - made)
            if not os.path.isdir(folder)
        ]
    if faults:
        module.fail_json(msg=f"{'. '.join(faults)}. Nothing was changed.")
    files = FileSet(module)
    try:
        for entry in wanted["directories"]:
            files.ensure_directory(entry)
        for entry in wanted["files"]:
            files.ensure_file(entry)
        for path in wanted["absent"]:
            files.ensure_absent(path)
    except OSError as error:
        module.fail_json(
            msg=f"{error}. Expected to be able to write there: check space (df -h) and mounts (read-only?). Changed "
            f"before that: {', '.join(files.changed[:-1]) or 'nothing'}.",
        )
    module.exit_json(
        changed=bool(files.changed),
        changed_paths=files.changed,
        created_paths=files.created,
        daemon_reload_needed=needs_daemon_reload(files.changed),
        diff=files.diff,
    )


if __name__ == "__main__":
    main()
