# SPDX-License-Identifier: Apache-2.0
"""tools/setup, run for real in a copy of what it needs, with stand-ins for Python, df and dpkg."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[3]

# Answers what setup asks a Python, and makes an environment whose pip exits with $PIP_EXIT.
FAKE_PYTHON = """#!/bin/sh
case "$1 $2" in
  "-m venv")
    mkdir -p "$3/bin"
    printf '#!/bin/sh\\nexit %s\\n' "$PIP_EXIT" > "$3/bin/pip"
    printf '#!/bin/sh\\nexit 0\\n' > "$3/bin/ansible-playbook"
    chmod +x "$3/bin/pip" "$3/bin/ansible-playbook" ;;
  *) echo 3.13.0 ;;
esac
"""


class Setup:
    """A checkout small enough to be set up in a second."""

    def __init__(self, folder: Path) -> None:
        self.checkout = folder / "checkout"
        self.cache = folder / "cache"
        (self.checkout / "tools").mkdir(parents=True)
        (self.checkout / "requirements").mkdir()
        (self.checkout / "requirements" / "dev.txt").write_text("")
        (self.checkout / "tools" / "controller_packages.txt").write_text("# none\n")
        shutil.copy(REPOSITORY / "tools" / "setup", self.checkout / "tools" / "setup")
        self.programs = folder / "bin"
        self.programs.mkdir()
        self.program("python3", FAKE_PYTHON)

    def program(self, name: str, text: str) -> None:
        """Put a stand-in first on PATH."""
        path = self.programs / name
        path.write_text(text)
        path.chmod(0o755)

    def run(self, **environment: str) -> subprocess.CompletedProcess[str]:
        """Run tools/setup with the stand-ins."""
        return subprocess.run(
            [self.checkout / "tools" / "setup"],
            env={
                "PATH": f"{self.programs}{os.pathsep}{os.environ['PATH']}",
                "HOME": str(self.cache),
                "GPUFLEET_CACHE": str(self.cache),
                "GPUFLEET_PYTHON": str(self.programs / "python3"),
                "PIP_EXIT": "0",
                **environment,
            },
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )


@pytest.fixture
def setup(tmp_path: Path) -> Setup:
    return Setup(tmp_path)


def last_line(done: subprocess.CompletedProcess[str]) -> str:
    assert done.returncode == 1, done.stdout
    return done.stderr.splitlines()[-1]


def test_an_environment_is_built_once_and_linked(setup: Setup) -> None:
    first, second = setup.run(), setup.run()
    assert (first.returncode, second.returncode) == (0, 0), first.stderr + second.stderr
    assert "building the virtual environment" in first.stdout
    assert second.stdout == ""
    assert (setup.checkout / ".venv" / "bin" / "ansible-playbook").exists()


def test_an_interrupted_build_is_done_again(setup: Setup) -> None:
    assert "pip could not install" in last_line(setup.run(PIP_EXIT="1"))
    assert not (setup.checkout / ".venv").exists()
    done = setup.run()
    assert done.returncode == 0 and "building" in done.stdout


def test_changed_requirements_make_another_environment(setup: Setup) -> None:
    setup.run()
    before = (setup.checkout / ".venv").resolve()
    (setup.checkout / "requirements" / "dev.txt").write_text("x==1\n")
    setup.run()
    assert (setup.checkout / ".venv").resolve() != before


def test_no_space_is_said_before_anything_is_built(setup: Setup) -> None:
    setup.program("df", "#!/bin/sh\necho Avail; echo 100\n")
    assert "less than 1.5 GB free in" in last_line(setup.run())


def test_a_python_that_is_named_but_unfit_is_refused(setup: Setup) -> None:
    said = last_line(setup.run(GPUFLEET_PYTHON="/bin/false"))
    assert said == "setup: GPUFLEET_PYTHON=/bin/false is not a Python 3.14 or 3.13 or 3.12 with venv"


def test_no_suitable_python_is_one_line(setup: Setup) -> None:
    script = setup.checkout / "tools" / "setup"
    script.write_text(script.read_text().replace('supported_pythons="3.14 3.13 3.12"', 'supported_pythons="9.9"'))
    done = setup.run(GPUFLEET_PYTHON="")
    assert last_line(done).startswith("setup: no Python 9.9 with venv found")
    assert len(done.stderr.splitlines()) == 1


def test_missing_packages_are_named_where_nobody_may_install_them(setup: Setup) -> None:
    (setup.checkout / "tools" / "controller_packages.txt").write_text("no-such-package-a|no-such-package-b\n")
    setup.program("id", "#!/bin/sh\necho 1000\n")
    assert last_line(setup.run()) == (
        "setup: missing packages; run as root: apt-get install no-such-package-a|no-such-package-b"
    )
