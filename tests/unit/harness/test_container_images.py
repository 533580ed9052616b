# SPDX-License-Identifier: Apache-2.0
"""tools/container_images and tools/podman with stand-ins for podman and mmdebstrap: settings by machine, atomic builds,
and one line on what is missing."""

import shutil
import subprocess
from pathlib import Path

import pytest

TOOLS = Path(__file__).resolve().parents[3] / "tools"
# All else that the two scripts call.
REAL_PROGRAMS = (
    *("bash", "sh", "env", "sed", "grep", "awk", "cut", "sort", "head", "cat", "stat", "mkdir", "mv", "rm", "touch"),
    *("flock", "sha256sum", "apt-get", "apt-config", "dirname"),
)
PODMAN = """#!/bin/bash
case "$1 $2" in
  "--version ") echo "podman version {version}" ;;
  "image exists") [ -e "{state}/$3" ] ;;
  "import --quiet") mkdir -p "{state}/localhost"; touch "{state}/${{!#}}" ;;
  *) echo "conf=${{CONTAINERS_CONF##*/}} override=${{CONTAINERS_CONF_OVERRIDE##*/}}" ;;
esac
"""
# The archive is the argument after the suite; `kill` stands for a build that is ended in the middle.
MMDEBSTRAP = """#!/bin/bash
echo start >> "{state}/builds"
for word; do case $word in *.unfinished) echo part > "$word" ;; esac; done
[ -e "{state}/kill" ] && kill -KILL $PPID
exit 0
"""


class Machine:
    """A machine with these programs only."""

    def __init__(self, folder: Path, podman: str = "4.3.1", cgroups: str = "tmpfs", missing: str = "") -> None:
        self.cache = folder / "cache"
        self.state = folder / "state"
        programs = folder / "bin"
        for directory in (self.state, programs):
            directory.mkdir()
        for name in REAL_PROGRAMS:
            found = shutil.which(name)
            assert found, f"this test needs {name}"
            (programs / name).symlink_to(found)
        fakes = {
            "podman": PODMAN.format(version=podman, state=self.state),
            "mmdebstrap": MMDEBSTRAP.format(state=self.state),
            "stat": f"#!/bin/sh\necho {cgroups}\n",
            "runc": "#!/bin/sh\n",
        }
        for name, text in fakes.items():
            (programs / name).unlink(missing_ok=True)
            if name != missing:
                (programs / name).write_text(text)
                (programs / name).chmod(0o755)
        self.environment = {
            "PATH": str(programs),
            "HOME": str(folder),
            "GPUFLEET_CACHE": str(self.cache),
            "GPUFLEET_APT_MIRROR": "http://mirror.example/debian",
        }

    def run(self, tool: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [TOOLS / tool, *arguments],
            env=self.environment | environment,
            capture_output=True,
            text=True,
            check=False,
        )

    def settings(self) -> dict[str, str]:
        return {file.name: file.read_text() for file in (self.cache / "container-images").glob("*.conf")}


def test_cgroups_v1_get_runc_in_a_file_of_our_own(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    assert machine.run("container_images").returncode == 0
    assert 'runtime = "runc"' in machine.settings()["containers.conf"]
    assert machine.run("podman", "info").stdout == "conf=containers.conf override=\n"


def test_a_newer_podman_keeps_the_users_settings_below_ours(tmp_path: Path) -> None:
    machine = Machine(tmp_path, podman="5.4.2")
    assert machine.run("container_images").returncode == 0
    assert list(machine.settings()) == ["containers.override.conf"]
    assert machine.run("podman", "info").stdout == "conf= override=containers.override.conf\n"


def test_cgroups_v2_keep_the_own_runtime(tmp_path: Path) -> None:
    machine = Machine(tmp_path, podman="5.4.2", cgroups="cgroup2fs", missing="runc")
    assert machine.run("container_images").returncode == 0
    assert "runtime" not in "".join(machine.settings().values())


@pytest.mark.parametrize("missing", ["podman", "runc", "mmdebstrap"])
def test_one_line_says_what_is_missing(tmp_path: Path, missing: str) -> None:
    done = Machine(tmp_path, missing=missing).run("container_images", "build", "debian12")
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == (
        f"container_images: missing here: {missing}; install the packages of tools/container_packages.txt"
    )


def test_an_image_is_built_once_and_named_on_stdout(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    first = machine.run("container_images", "build", "debian13")
    second = machine.run("container_images", "build", "debian13")
    assert first.stdout == second.stdout == machine.run("container_images", "name", "debian13").stdout
    assert first.stdout.startswith("localhost/gpufleet-debian13:")
    assert (machine.state / "builds").read_text() == "start\n"


def test_the_archive_alone_saves_a_build(tmp_path: Path) -> None:
    """Another machine with the same cache, or podman's storage emptied."""
    machine = Machine(tmp_path)
    machine.run("container_images", "build", "debian12")
    shutil.rmtree(machine.state / "localhost")
    assert machine.run("container_images", "build", "debian12").returncode == 0
    assert (machine.state / "builds").read_text() == "start\n"


def test_a_build_killed_half_way_leaves_nothing_that_looks_finished(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    (machine.state / "kill").touch()
    assert machine.run("container_images", "build", "debian12").returncode != 0
    assert not list(machine.cache.glob("container-images/*.tar"))
    (machine.state / "kill").unlink()
    assert machine.run("container_images", "build", "debian12").returncode == 0
    assert (machine.state / "builds").read_text() == "start\nstart\n"


def test_another_mirror_makes_another_image(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    name = machine.run("container_images", "name", "debian12").stdout
    other = machine.run(
        "container_images", "name", "debian12", GPUFLEET_APT_MIRROR="http://other.example/debian"
    ).stdout
    assert name != other


def test_an_unknown_image_is_refused(tmp_path: Path) -> None:
    done = Machine(tmp_path).run("container_images", "build", "debian11")
    assert done.returncode == 1
    assert "unknown image 'debian11'; known: debian12, debian13" in done.stderr
