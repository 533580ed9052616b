#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Ansible module: the node exporter at its pinned version, checked before anything that runs is touched."""

from __future__ import annotations

DOCUMENTATION = r"""
module: node_exporter_binary
short_description: Install the node exporter from one source and check that it can do what is asked
description:
  - Installs the distribution's package (held) or the binary of a tarball with a known SHA-256, and removes what the
    other source left.
  - Asks the binary for its collectors, and refuses those that it lacks. A tarball is asked before its binary takes
    the place of the old one.
  - Refuses where another process listens on the port.
  - Masks the unit of the distribution's package. This project runs the exporter by a unit of its own, the same for
    all sources, and the two would fight for the port.
  - A converged node is asked for versions only; nothing is downloaded.
author: The gpufleet authors
attributes:
  check_mode:
    description: Says what would be installed. The collectors of a version that is not installed yet cannot be checked.
    support: full
  diff_mode:
    description: Shows source and version before and after.
    support: full
options:
  source:
    description: The distribution's package, or a tarball.
    type: str
    choices: [distro, tarball]
    required: true
  package_version:
    description: Exact version of the package as apt spells it. Without it any installed version is kept.
    type: str
  version:
    description: Version of the binary in the tarball.
    type: str
  url:
    description: Where the tarball is.
    type: str
  sha256:
    description: SHA-256 of the tarball.
    type: str
  ca_file:
    description: PEM file on the node with the authorities that O(url)'s certificate is verified against, in place of
      the system's.
    type: path
  path:
    description: Where the tarball's binary goes.
    type: path
    default: /usr/local/bin/node_exporter
  unit:
    description: The unit that runs the exporter; its process may hold the port.
    type: str
    default: node_exporter.service
  port:
    description: TCP port that the exporter will listen on.
    type: int
    required: true
  collectors_enabled:
    description: Collectors to be switched on.
    type: list
    elements: str
    default: []
  collectors_disabled:
    description: Collectors to be switched off.
    type: list
    elements: str
    default: []
  supported_os:
    description: Operating systems as C(<ID> <VERSION_ID>) of os-release, such as C(debian 12). Any other is refused
      before anything is changed. Empty means any.
    type: list
    elements: str
    default: []
"""

EXAMPLES = r"""
- name: Install the exporter from an own mirror
  node_exporter_binary:
    source: tarball
    version: 1.11.1
    url: https://mirror.example.com/node_exporter-1.11.1.linux-amd64.tar.gz
    sha256: 9f5ea48e5bc7b656f8a91a32e7d7deb89f70f73dabd0d974418aca15f37d6810
    port: 9100
"""

RETURN = r"""
path:
  description: Path of the binary.
  type: str
  returned: success
version:
  description: What the binary says is its version. In check mode what will be installed, as far as it is known.
  type: str
  returned: success
unit_present:
  description: Whether O(unit) is there. Not so on a fresh node.
  type: bool
  returned: success
"""

import hashlib
import json
import os
import platform
import shutil
import tempfile

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.gpufleet.apt_packages import (
    ENVIRONMENT,
    PackageError,
    ensure_absent,
    ensure_present,
    read_state,
)
from ansible.module_utils.gpufleet.bounded_command import run_bounded
from ansible.module_utils.gpufleet.listening_port import find_listeners
from ansible.module_utils.gpufleet.node_exporter import (
    ExporterParseError,
    collector_faults,
    parse_collectors,
    parse_version,
)
from ansible.module_utils.gpufleet.os_release import read_os_release, unsupported
from ansible.module_utils.gpufleet.verified_download import DownloadError, download, extract_file

PACKAGE = "prometheus-node-exporter"
PACKAGE_UNIT = "prometheus-node-exporter.service"
PACKAGE_BINARY = "/usr/bin/prometheus-node-exporter"
MASK = "/etc/systemd/system/" + PACKAGE_UNIT
DOWNLOAD_STALL_S = 60
# What was installed from a tarball. A binary that only says the right version may still be another one.
STAMP = "/var/lib/node_exporter/binary.json"


class Refusal(Exception):
    """The wanted state cannot be brought about; the message says why and what to do."""


def sha256_of(path):
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        for chunk in iter(lambda: file.read(1 << 20), b""):
            digest.update(chunk)
    return digest.hexdigest()


def write_stamp(stamp):
    os.makedirs(os.path.dirname(STAMP), mode=0o755, exist_ok=True)
    with open(STAMP + ".new", "w", encoding="ascii") as file:
        json.dump(stamp, file)
    os.rename(STAMP + ".new", STAMP)


class Exporter:
    """The exporter on this node; every method that changes something says so by its name."""

    def __init__(self, module):
        self.module = module
        self.wanted = module.params
        self.check_mode = module.check_mode

    def run(self, argv):
        return self.module.run_command(list(argv), environ_update=ENVIRONMENT)

    def refuse_taken_port(self):
        """The exporter's own units may listen: ours stays, the distribution's is stopped."""
        listeners = find_listeners(self.wanted["port"])
        if not listeners:
            return
        own = []
        for unit in (self.wanted["unit"], PACKAGE_UNIT):
            dummy, shown, dummy = self.run(["systemctl", "show", "--property=MainPID", "--value", unit])
            if shown.strip() not in ("", "0"):
                own.append(int(shown))
        own_users = {os.stat(f"/proc/{pid}").st_uid for pid in own}
        others = [
            listener
            for listener in listeners
            if listener.pid not in own and not (listener.pid is None and listener.uid in own_users)
        ]
        if others:
            raise Refusal(
                f"port {self.wanted['port']} is in use by {', '.join(str(listener) for listener in others)}. Nothing "
                "was changed. Stop that process, or set node_exporter_port to a free port."
            )

    def binary_version(self, path):
        """What the binary says; None where there is none, or where it does not run (cut short, other architecture)."""
        result = run_bounded([path, "--version"], 30)
        if result.outcome != "done":
            return None
        try:
            return parse_version(result.stdout + "\n" + result.stderr)
        except ExporterParseError:
            return None

    def refuse_missing_collectors(self, path, version):
        if not self.wanted["collectors_enabled"] and not self.wanted["collectors_disabled"]:
            return
        # Some releases print their help to standard error.
        result = run_bounded([path, "--help"], 30)
        known = parse_collectors(result.stdout + "\n" + result.stderr)
        faults = collector_faults(known, self.wanted["collectors_enabled"], self.wanted["collectors_disabled"], version)
        if faults:
            raise Refusal(
                f"{'; '.join(faults)}. The running exporter was not touched. Correct node_exporter_collectors_enabled "
                "and node_exporter_collectors_disabled, or choose another version in the profile."
            )

    def mask_package_unit(self):
        """True where the distribution's unit was not masked, or still ran."""
        masked = os.path.islink(MASK) and os.readlink(MASK) == os.devnull
        rc, dummy, dummy = self.run(["systemctl", "is-active", "--quiet", PACKAGE_UNIT])
        if masked and rc != 0:
            return False
        if not self.check_mode:
            rc, dummy, err = self.run(["systemctl", "mask", "--now", PACKAGE_UNIT])
            if rc != 0:
                raise Refusal(f"unit {PACKAGE_UNIT} could not be masked: {err.strip()}")
        return True

    def install_package(self):
        """Returns (changed, path, version)."""
        before = read_state(PACKAGE, self.run)
        after = ensure_present(PACKAGE, self.wanted["package_version"], True, self.run, self.check_mode)
        if self.check_mode and before.version != after.version:
            return True, PACKAGE_BINARY, after.version
        version = self.binary_version(PACKAGE_BINARY)
        if version is None:
            raise Refusal(
                f"{PACKAGE_BINARY} of package {PACKAGE} {after.version} does not run. Reinstall the package (apt-get "
                f"install --reinstall {PACKAGE})."
            )
        self.refuse_missing_collectors(PACKAGE_BINARY, version)
        return before != after, PACKAGE_BINARY, version

    def remove_package(self):
        return ensure_absent(PACKAGE, self.run, self.check_mode).version is not None

    def install_binary(self):
        """Returns (changed, path, version)."""
        path, version = self.wanted["path"], self.wanted["version"]
        # Not by required_if, which a null from the profile passes.
        missing = [key for key in ("version", "sha256") if not self.wanted[key]]
        if missing:
            raise Refusal(f"a tarball needs {' and '.join(missing)}: set packages.node_exporter in the profile.")
        if not (self.wanted["url"] or "").startswith(("https://", "http://")):
            raise Refusal(
                f"the tarball's address is {self.wanted['url']!r}, expected https://... or http://... "
                "With source mirror set node_exporter_mirror_url."
            )
        if platform.machine() != "x86_64":
            raise Refusal(
                f"the pinned tarball is for linux-amd64, this node is {platform.machine()}. Use source distro."
            )
        if self.binary_is_pinned(path):
            self.refuse_missing_collectors(path, version)
            status = os.lstat(path)
            safe = status.st_uid == 0 and status.st_gid == 0 and status.st_mode & 0o7777 == 0o755
            if not safe and not self.check_mode:
                os.chown(path, 0, 0)
                os.chmod(path, 0o755)
            return not safe, path, version
        if not self.check_mode:
            self.download_binary(path, version)
        return True, path, version

    def binary_is_pinned(self, path):
        """Whether the binary is, byte by byte, the one that was taken out of the pinned tarball."""
        try:
            with open(STAMP, encoding="ascii") as file:
                stamp = json.load(file)
            return stamp == {"tarball_sha256": self.wanted["sha256"].lower(), "binary_sha256": sha256_of(path)}
        except (OSError, ValueError):
            return False

    def download_binary(self, path, version):
        folder = os.path.dirname(path)
        # In the target's folder, so that the last step is a rename: the path holds the old or the new binary, never
        # half of one. Whatever happens, the scratch folder is removed.
        scratch = tempfile.mkdtemp(prefix=".node_exporter-", dir=folder)
        try:
            tarball = os.path.join(scratch, os.path.basename(self.wanted["url"]))
            fresh = os.path.join(scratch, "node_exporter")
            download(self.wanted["url"], self.wanted["sha256"], tarball, self.wanted["ca_file"], DOWNLOAD_STALL_S)
            extract_file(tarball, "node_exporter", fresh)
            os.chmod(fresh, 0o755)
            os.chown(fresh, 0, 0)
            said = self.binary_version(fresh)
            if said != version:
                raise Refusal(
                    f"the tarball from {self.wanted['url']} holds node exporter {said or 'that does not run'}, "
                    f"expected {version}. Correct version and sha256 in the profile."
                )
            self.refuse_missing_collectors(fresh, version)
            stamp = {"tarball_sha256": self.wanted["sha256"].lower(), "binary_sha256": sha256_of(fresh)}
            os.rename(fresh, path)
            write_stamp(stamp)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)

    def remove_binary(self):
        if not os.path.lexists(self.wanted["path"]):
            return False
        if not self.check_mode:
            os.unlink(self.wanted["path"])
            if os.path.exists(STAMP):
                os.unlink(STAMP)
        return True

    def describe(self):
        """One line for each source that is there."""
        lines = []
        package = read_state(PACKAGE, self.run)
        if package.version is not None:
            lines.append(f"package {PACKAGE} {package}\n")
        if os.path.lexists(self.wanted["path"]):
            lines.append(f"{self.wanted['path']} {self.binary_version(self.wanted['path']) or 'broken'}\n")
        return "".join(lines)


def main():
    module = AnsibleModule(
        argument_spec={
            "source": {"type": "str", "choices": ["distro", "tarball"], "required": True},
            "package_version": {"type": "str"},
            "version": {"type": "str"},
            "url": {"type": "str"},
            "sha256": {"type": "str"},
            "ca_file": {"type": "path"},
            "path": {"type": "path", "default": "/usr/local/bin/node_exporter"},
            "unit": {"type": "str", "default": "node_exporter.service"},
            "port": {"type": "int", "required": True},
            "collectors_enabled": {"type": "list", "elements": "str", "default": []},
            "collectors_disabled": {"type": "list", "elements": "str", "default": []},
            "supported_os": {"type": "list", "elements": "str", "default": []},
        },
        supports_check_mode=True,
    )
    refusal = unsupported(read_os_release(), module.params["supported_os"])
    if refusal:
        module.fail_json(msg=refusal)
    exporter = Exporter(module)
    before = exporter.describe()
    try:
        exporter.refuse_taken_port()
        # Masked first: the package would start its unit while it is installed.
        masked = exporter.mask_package_unit()
        if module.params["source"] == "distro":
            changed, path, version = exporter.install_package()
            left = exporter.remove_binary()
        else:
            changed, path, version = exporter.install_binary()
            left = exporter.remove_package()
    except (Refusal, PackageError, DownloadError, ExporterParseError) as error:
        module.fail_json(msg=str(error))
    except OSError as error:
        module.fail_json(msg=f"{error}. Expected to be able to write there: check space (df -h) and mounts.")
    after = exporter.describe()
    if module.check_mode and (changed or left):
        after = f"{path} {version}\n"
    module.exit_json(
        changed=bool(changed or left or masked),
        path=path,
        version=version,
        unit_present=os.path.exists("/etc/systemd/system/" + module.params["unit"]),
        diff={"before": before, "after": after},
    )


if __name__ == "__main__":
    main()
