# SPDX-License-Identifier: Apache-2.0
"""The lab node's disk image: built once, cached by a key of all that went into it.

`<cache>/images/<key>/` holds node.raw, vmlinuz (for the KVM probe) and
manifest.json. A build happens in a directory beside it and is renamed as its last
step: an interrupted build can never be taken for a finished one.
"""

import fcntl
import hashlib
import json
import os
import shlex
import shutil
import subprocess
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from lab.apt_source import SUITE, AptMirrors, find_mirrors
from lab.errors import LabError
from lab.host_tools import SEARCH_PATH, require_free_space

GUEST = Path(__file__).parent / "guest"
DISK_MIB = 10240
ESP_MIB = 64
# Room while building: the package cache, a tarball, the unpacked root and the image.
BUILD_SPACE_MIB = 7000
BUILD_LIMIT_S = 3600
NAMESPACE = uuid.UUID("6f2a1f0e-6c0c-4b6e-9f5e-2f4f9b6d1c11")


def cache_directory() -> Path:
    """Where images are kept: GPUFLEET_CACHE, else the user's cache directory."""
    if os.environ.get("GPUFLEET_CACHE"):
        return Path(os.environ["GPUFLEET_CACHE"]).expanduser().resolve()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser().resolve() / "gpufleet"


@dataclass(frozen=True)
class Image:
    """A finished image in the cache."""

    key: str
    directory: Path

    @property
    def disk(self) -> Path:
        """Raw disk that overlays refer to; never written."""
        return self.directory / "node.raw"

    @property
    def kernel(self) -> Path:
        """The image's own kernel, for the probe guest."""
        return self.directory / "vmlinuz"

    def _note(self, overlay: Path) -> Path:
        return self.directory / "users" / hashlib.sha256(str(overlay).encode()).hexdigest()[:16]

    def note_user(self, overlay: Path) -> None:
        """Remember that `overlay` is made over this image; pruning leaves it while the overlay exists."""
        for other in list_images(self.directory.parents[1]):
            other._note(overlay).unlink(missing_ok=True)  # a node that was reset left that image
        (self.directory / "users").mkdir(exist_ok=True)
        self._note(overlay).write_text(f"{overlay}\n")

    def users(self) -> list[Path]:
        """Overlays made over this image that still exist, of any lab."""
        notes = (self.directory / "users").glob("*") if (self.directory / "users").is_dir() else []
        return [path for path in (Path(note.read_text().strip()) for note in notes) if path.exists()]


def read_packages(guest: Path = GUEST) -> list[str]:
    """Package names of guest/packages.txt, sorted."""
    lines = (line.split("#", 1)[0].strip() for line in (guest / "packages.txt").read_text().splitlines())
    return sorted(line for line in lines if line)


def image_key(guest: Path = GUEST) -> str:
    """16 hex digits over everything that decides what is in the image, except the time.

    The mirror's address is left out on purpose: it says where from, not what.
    """
    digest = hashlib.sha256()
    parts = {"suite": SUITE, "disk_mib": DISK_MIB, "esp_mib": ESP_MIB, "packages": read_packages(guest)}
    digest.update(json.dumps(parts, sort_keys=True).encode())
    for path in sorted(path for path in guest.iterdir() if path.is_file() and path.name != "packages.txt"):
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:16]


@contextmanager
def _build_lock(images: Path, say: Callable[[str], None]) -> Iterator[None]:
    """One build at a time for a cache; the second waits and then finds the image."""
    with (images / "build.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("another build of the image is running; waiting for it")
            deadline = time.monotonic() + BUILD_LIMIT_S
            while True:
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if time.monotonic() > deadline:
                        raise LabError(
                            f"another image build has held {images / 'build.lock'} for an hour; look at that process"
                        ) from None
                    time.sleep(1)
        yield


def find_image(cache: Path | None = None, guest: Path = GUEST) -> Image | None:
    """The finished image for the present content, or None."""
    key = image_key(guest)
    directory = (cache or cache_directory()) / "images" / key
    return Image(key, directory) if (directory / "manifest.json").is_file() else None


def ensure_image(say: Callable[[str], None], cache: Path | None = None, guest: Path = GUEST) -> Image:
    """Return the image, building it first where the cache has none."""
    found = find_image(cache, guest)
    if found:
        return found
    images = (cache or cache_directory()) / "images"
    images.mkdir(parents=True, exist_ok=True)
    with _build_lock(images, say):
        found = find_image(cache, guest)
        if found:
            return found
        for leftover in images.glob("building-*"):
            say(f"removing what an interrupted build left: {leftover.name}")
            if leftover.is_dir():
                shutil.rmtree(leftover)
            else:
                leftover.unlink()
        require_free_space(images, BUILD_SPACE_MIB, "the image build")
        return _build(images, image_key(guest), guest, find_mirrors(), say)


def _build(images: Path, key: str, guest: Path, mirrors: AptMirrors, say: Callable[[str], None]) -> Image:
    work = images / f"building-{key}"
    work.mkdir()
    started = time.monotonic()
    say(f"building the image ({SUITE}, {len(read_packages(guest))} packages named); log: {work}.log")
    esp_uuid = uuid.uuid5(NAMESPACE, key + "esp").hex[:8].upper()
    environment = {
        **os.environ,
        "PATH": SEARCH_PATH,
        "LC_ALL": "C.UTF-8",
        "DEBIAN_FRONTEND": "noninteractive",
        "LAB_APT_SOURCES": mirrors.sources_list(),
        "LAB_ROOT_UUID": str(uuid.uuid5(NAMESPACE, key + "root")),
        "LAB_ESP_UUID": f"{esp_uuid[:4]}-{esp_uuid[4:]}",
        "LAB_TARBALL": str(work / "root.tar"),
        "LAB_WORK": str(work),
        "LAB_DISK": str(work / "node.raw"),
        "LAB_DISK_MIB": str(DISK_MIB),
        "LAB_ESP_MIB": str(ESP_MIB),
    }
    log = images / f"building-{key}.log"
    # A user namespace stands in for root where the builder is an ordinary user.
    as_root = [] if os.geteuid() == 0 else ["unshare", "--map-root-user", "--map-auto", "--"]
    steps = {
        "installing packages": [
            "mmdebstrap",
            "--variant=minbase",
            f"--components={','.join(mirrors.sources_list().splitlines()[0].split()[3:])}",
            f"--include={','.join(read_packages(guest))}",
            '--aptopt=Acquire::Retries "5"',
            f"--dpkgopt={guest / 'dpkg_options.cfg'}",
            "--skip=output/dev",
            f'--customize-hook={shlex.quote(str(guest / "configure_root.sh"))} "$1"',
            SUITE,
            str(work / "root.tar"),
            *mirrors.sources_list().splitlines(),
        ],
        "making the disk": [*as_root, str(guest / "make_disk_image.sh")],
    }
    with log.open("w") as output:
        for title, command in steps.items():
            say(f"image: {title}")
            try:
                done = subprocess.run(
                    # Told to end when this process is killed: it must not write into a later build.
                    ["setpriv", "--pdeathsig", "TERM", *command],
                    env=environment,
                    stdout=output,
                    stderr=output,
                    timeout=BUILD_LIMIT_S,
                    check=False,
                )
            except subprocess.TimeoutExpired:
                raise LabError(f"{title} took over {BUILD_LIMIT_S} s; see {log}") from None
            if done.returncode != 0:
                tail = "\n  ".join(log.read_text(errors="replace").splitlines()[-8:])
                raise LabError(f"{title} failed (exit {done.returncode}); the log is {log} and ends:\n  {tail}")
    (work / "root.tar").unlink()
    manifest = {
        "key": key,
        "suite": SUITE,
        "packages": (work / "packages.list").read_text().splitlines(),
        "built": datetime.now(UTC).isoformat(timespec="seconds"),
        "build_seconds": round(time.monotonic() - started, 1),
    }
    (work / "packages.list").unlink()
    (work / "grub.cfg").unlink()
    (work / "manifest.json").write_text(json.dumps(manifest, indent=1) + "\n")
    os.sync()
    work.rename(images / key)
    log.unlink()
    say(f"image {key} is ready after {manifest['build_seconds']} s")
    return Image(key, images / key)


def list_images(cache: Path | None = None) -> list[Image]:
    """All finished images of the cache."""
    images = (cache or cache_directory()) / "images"
    return [Image(path.parent.name, path.parent) for path in sorted(images.glob("*/manifest.json"))]
