# SPDX-License-Identifier: Apache-2.0
"""Alters the objects that a role owns, or reads their state. tests/drift.py sends this text to a node's python3.

    python3 - alter '[{"kind": "file", "name": "/etc/x", "drift": "mode"}, ...]' < drift_on_node.py
    python3 - read  '[...]' < drift_on_node.py        prints a JSON list with the state of each object

Standard library only, Python 3.9: it runs on nodes. A way to drift that leaves an object as it was is an error.
"""

import grp
import hashlib
import json
import os
import pwd
import shutil
import stat
import subprocess
import sys


def run(*argv):
    """Output of a command; its standard error is the message where it fails."""
    done = subprocess.run(argv, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(argv)}: rc {done.returncode}: {done.stderr.strip()}")
    return done.stdout.strip()


def shell(command):
    return run("/bin/sh", "-c", command)


def read_path(name):
    try:
        status = os.lstat(name)
    except FileNotFoundError:
        return {"exists": False}
    state = {
        "exists": True,
        "mode": oct(stat.S_IMODE(status.st_mode)),
        "owner": status.st_uid,
        "group": status.st_gid,
    }
    if stat.S_ISLNK(status.st_mode):
        state["target"] = os.readlink(name)
    elif stat.S_ISREG(status.st_mode):
        with open(name, "rb") as file:
            state["sha256"] = hashlib.sha256(file.read()).hexdigest()
    return state


def read_package(name):
    listing = subprocess.run(
        ["dpkg-query", "-W", "-f", "${db:Status-Status} ${Version}", name],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ).stdout
    status, _, version = listing.partition(" ")
    held = name in run("apt-mark", "showhold").split()
    return {"version": version if status == "installed" else None, "held": held}


def read_unit(name):
    lines = run("systemctl", "show", "--property=ActiveState,UnitFileState,LoadState", name).splitlines()
    return dict(line.split("=", 1) for line in lines)


def read_user(name):
    try:
        user = pwd.getpwnam(name)
    except KeyError:
        return {"exists": False}
    groups = sorted(group.gr_name for group in grp.getgrall() if name in group.gr_mem)
    return {"exists": True, "shell": user.pw_shell, "home": user.pw_dir, "groups": groups}


READ = {
    "file": read_path,
    "directory": read_path,
    "link": read_path,
    "package": read_package,
    "unit": read_unit,
    "user": read_user,
}


def append_line(name):
    with open(name, "a") as file:
        file.write("\n# altered by hand\n")


def other_mode(name):
    os.chmod(name, 0o700 if stat.S_IMODE(os.lstat(name).st_mode) != 0o700 else 0o750)


def other_owner(name):
    # nobody
    os.chown(name, 65534 if os.lstat(name).st_uid != 65534 else 0, -1)


def other_target(name):
    os.unlink(name)
    os.symlink("/nonexistent", name)


def remove_package(name):
    os.environ["DEBIAN_FRONTEND"] = "noninteractive"
    run("apt-get", "-y", "--allow-change-held-packages", "remove", name)


def other_shell(name):
    run("usermod", "-s", "/bin/sh" if read_user(name)["shell"] != "/bin/sh" else "/bin/false", name)


def mask_unit(name):
    run("systemctl", "mask", "--now", name)


ALTER = {
    "file": {"append": append_line, "mode": other_mode, "owner": other_owner, "remove": os.unlink},
    "directory": {"mode": other_mode, "owner": other_owner, "remove": shutil.rmtree},
    "link": {"retarget": other_target, "remove": os.unlink},
    "package": {"remove": remove_package, "unhold": lambda name: run("apt-mark", "unhold", name)},
    "unit": {
        "stop": lambda name: run("systemctl", "stop", name),
        "disable": lambda name: run("systemctl", "disable", name),
        "mask": mask_unit,
    },
    "user": {"shell": other_shell, "remove": lambda name: run("userdel", name)},
}


def read(entry):
    """State of one object; what no kind covers states a command that prints it."""
    if entry["kind"] == "other":
        return {"output": shell(entry["read"])}
    return READ[entry["kind"]](entry["name"])


def alter(entry):
    """Alter one object by hand, and make sure that it is altered."""
    before = read(entry)
    if entry["kind"] == "other":
        shell(entry["alter"])
    else:
        ALTER[entry["kind"]][entry["drift"]](entry["name"])
    if read(entry) == before:
        raise SystemExit("{kind} {name}: drift {drift} left it as it was".format(**entry))


def main():
    entries = json.loads(sys.argv[2])
    if sys.argv[1] == "alter":
        for entry in entries:
            alter(entry)
    print(json.dumps([read(entry) for entry in entries]))


if __name__ == "__main__":
    main()
