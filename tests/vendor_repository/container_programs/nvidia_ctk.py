#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Stand-in for nvidia-ctk: runtime configure (docker), cdi generate, system create-dev-char-symlinks, --version.

It writes what NVIDIA/nvidia-container-toolkit 1.20 writes (pkg/config/engine/docker, cmd/nvidia-ctk); the CDI
specification is cut down to what tells driver and GPUs. GPUs are those of /proc/driver/nvidia below
NVIDIA_STAND_IN_ROOT.
"""

import json
import os
import re
import stat
import sys

VERSION = "0.0.0"
ROOT = os.environ.get("NVIDIA_STAND_IN_ROOT", "")


def option(name, default=""):
    """Value of --name=value or --name value."""
    for index, word in enumerate(sys.argv):
        if word == f"--{name}":
            return sys.argv[index + 1]
        if word.startswith(f"--{name}="):
            return word.partition("=")[2]
    return default


def configure():
    """The file with the runtime in it, its keys sorted as Go does it, without a line feed at its end."""
    path = option("config", "/etc/docker/daemon.json")
    config = {}
    if os.path.exists(path):
        with open(path) as file:
            config = json.load(file)
    config.setdefault("runtimes", {})["nvidia"] = {"args": [], "path": "nvidia-container-runtime"}
    if "--nvidia-set-as-default" in sys.argv:
        config["default-runtime"] = "nvidia"
    with open(path, "w") as file:
        json.dump(config, file, indent=4, sort_keys=True)
    print(f"INFO[0000] Wrote updated config to {path}", file=sys.stderr)
    print("INFO[0000] It is recommended that docker daemon be restarted.", file=sys.stderr)


def gpus():
    """(minor, UUID) of each GPU of the driver."""
    folder, found = f"{ROOT}/proc/driver/nvidia/gpus", []
    for address in sorted(os.listdir(folder)):
        with open(f"{folder}/{address}/information") as file:
            text = file.read()
        found.append((re.search(r"Device Minor:\s*(\d+)", text).group(1), re.search(r"GPU-[0-9a-f-]+", text).group()))
    return found


def generate():
    """The specification, with a device for each name: index, UUID, all."""
    path = option("output", os.environ.get("NVIDIA_CTK_CDI_OUTPUT_FILE_PATH", ""))
    try:
        with open(f"{ROOT}/proc/driver/nvidia/version") as file:
            driver = re.search(r"Kernel Module(?: for x86_64)?\s+(\S+)", file.read()).group(1)
        found = gpus()
    except FileNotFoundError:
        sys.exit("ERRO[0000] failed to generate CDI spec: failed to initialize NVML: Driver Not Loaded")
    lines = ["---", "cdiVersion: 0.5.0", "containerEdits:", "  mounts:"]
    lines.append(f"  - containerPath: /usr/lib/x86_64-linux-gnu/libcuda.so.{driver}")
    lines.append(f"    hostPath: /usr/lib/x86_64-linux-gnu/libcuda.so.{driver}")
    lines.append("devices:")
    for minor, uuid in found:
        for name in (minor, uuid):
            lines += ["- containerEdits:", "    deviceNodes:", f"    - path: /dev/nvidia{minor}", f'  name: "{name}"']
    lines.append("kind: nvidia.com/gpu")
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w") as file:
        file.write("\n".join(lines) + "\n")
    print("INFO[0000] Generated CDI spec with version 0.5.0", file=sys.stderr)


def link():
    """A link for each device node below /dev; one that is there is left, with a warning."""
    folder = f"{ROOT}/dev"
    os.makedirs(f"{folder}/char", exist_ok=True)
    for name in sorted(os.listdir(folder)):
        status = os.lstat(f"{folder}/{name}")
        if name.startswith("nvidia") and stat.S_ISCHR(status.st_mode):
            number = f"{os.major(status.st_rdev)}:{os.minor(status.st_rdev)}"
            try:
                os.symlink(f"/dev/{name}", f"{folder}/char/{number}")
            except FileExistsError as error:
                print(f"WARN[0000] Could not create symlink: {error}", file=sys.stderr)


def main():
    words = [word for word in sys.argv[1:] if not word.startswith("-")]
    if "--version" in sys.argv:
        print(f"NVIDIA Container Toolkit CLI version {VERSION}\ncommit: stand-in")
    elif words[:2] == ["runtime", "configure"]:
        configure()
    elif words[:2] == ["cdi", "generate"]:
        generate()
    elif words[:2] == ["system", "create-dev-char-symlinks"]:
        link()
    elif words[:1] != ["config"]:
        sys.exit(f"No help topic for '{' '.join(words)}'")


if __name__ == "__main__":
    main()
