# SPDX-License-Identifier: Apache-2.0
"""Why apt-get update could not use a source, from what apt 2.6 (Debian 12) and 3.0 (Debian 13) printed for it."""

import pytest
from ansible.module_utils.gpufleet.apt_sources import Repository
from ansible.module_utils.gpufleet.apt_sources_refresh import (
    complaints,
    conflict_of_keys,
    fault_of,
    transaction_complaints,
)

URI = "http://127.0.0.1:8080/cuda/"
CUDA = Repository(URI, ("/",), ())
AT = "http://127.0.0.1:8080/cuda"
UNSIGNED = f"E: The repository '{AT}  InRelease' is not signed.\n"
SQV = "Sub-process /usr/bin/sqv returned an error code (1), error message is: "
NOT_LIVE = "Signing key on 5FCB63E66456F5A5DB882EAFF7CD6E5DF2899427 is bad:            The primary key is not live   because: Expired on 2020-01-02T01:00:00Z"  # noqa: E501
OUTPUTS = {
    ("12", "is not signed with the key of the profile"): (
        f"Get:1 {AT}  InRelease [440 B]\nErr:1 {AT}  InRelease\n"
        "  The following signatures couldn't be verified because the public key is not available: NO_PUBKEY A3CA\n"
        f"W: GPG error: {AT}  InRelease: The following signatures couldn't be verified because the public key is not "
        f"available: NO_PUBKEY A3CA73E68A\n{UNSIGNED}"
    ),
    ("13", "is not signed with the key of the profile"): (
        f"Err:1 {AT}  InRelease\n  {SQV}Missing key 41D4516AEF0A, which is needed to verify signature.\n"
        f"W: OpenPGP signature verification failed: {AT}  InRelease: {SQV}Missing key 41D4516AEF0A, which is needed to "
        f"verify signature.\n{UNSIGNED}"
    ),
    ("12", "is signed with a key that has expired"): (
        f"Err:1 {AT}  InRelease\n  The following signatures were invalid: EXPKEYSIG AE0450258EF9EA0B expired\n"
        f"W: GPG error: {AT}  InRelease: The following signatures were invalid: EXPKEYSIG AE04 expired\n{UNSIGNED}"
    ),
    ("13", "is signed with a key that has expired"): (
        f"Err:1 {AT}  InRelease\n  {SQV}{NOT_LIVE}\n"
        f"W: OpenPGP signature verification failed: {AT}  InRelease: {SQV}{NOT_LIVE}\n{UNSIGNED}"
    ),
    # with lists that it has read before, apt only warns
    ("12 again", "is not signed with the key of the profile"): (
        "W: An error occurred during the signature verification. The repository is not updated and the previous index "
        f"files will be used. GPG error: {AT}  InRelease: The following signatures couldn't be verified because the "
        f"public key is not available: NO_PUBKEY C3B4824340572ED8\nW: Failed to fetch {AT}/InRelease  The following "
        "signatures couldn't be verified because the public key is not available: NO_PUBKEY C3B4824340572ED8\n"
    ),
    ("both", "is out of date"): (
        f"E: Release file for {AT}/InRelease is expired (invalid since 326d 7h 35min 40s). Updates for this repository "
        "will not be applied.\n"
    ),
    ("behind", "is not valid yet by this node's clock"): (
        f"E: Release file for {AT}/InRelease is not valid yet (invalid for another 74d 14h 25min). Updates for this "
        "repository will not be applied.\n"
    ),
    ("12 refused", "cannot be read"): (
        f"Ign:1 {AT}  InRelease\nErr:1 {AT}  InRelease\n"
        "  Could not connect to 127.0.0.1:9 (127.0.0.1). - connect (111: Connection refused)\n"
        f"W: Failed to fetch {AT}/InRelease  Could not connect to 127.0.0.1:9 (127.0.0.1). - connect (111: Connection "
        "refused)\nW: Some index files failed to download. They have been ignored, or old ones used instead.\n"
    ),
    ("13 refused", "cannot be read"): f"W: Failed to fetch {AT}/InRelease  Unable to connect to 127.0.0.1:9:\n",
    ("no name", "cannot be read"): f"W: Failed to fetch {AT}/InRelease  Could not resolve 'nowhere.invalid'\n",
    ("not found", "cannot be read"): (
        f"Ign:1 {AT}  InRelease\nErr:2 {AT}  Release\n  404  File not found [IP: 127.0.0.1 8080]\n"
        f"E: The repository '{AT}  Release' does not have a Release file.\n"
    ),
    ("something new", "cannot be used"): f"E: Something nobody has seen yet: {AT}/\n",
}  # fmt: skip


@pytest.mark.parametrize(("case", "text"), OUTPUTS.items())
def test_each_fault(case: tuple[str, str], text: str) -> None:
    error = fault_of(CUDA, text)
    assert error is not None and f"repository {URI} {case[1]}: " in str(error), error
    assert "Nothing was changed" in str(error) and error.next_step
    # the same said of another repository is none of this stack's business
    assert fault_of(CUDA, text.replace("8080/cuda", "8080/cuda-old")) is None
    assert complaints(text)


@pytest.mark.parametrize(
    "text",
    [
        f"Get:1 {AT}  InRelease [440 B]\nHit:2 {AT}  Packages\nReading package lists...\n",
        f"W: Conflicting distribution: {AT} ./ InRelease (expected . but got )\n",
        f"W: {AT}/InRelease: Key is stored in legacy trusted.gpg keyring (/etc/apt/trusted.gpg)\n",
    ],
)
def test_what_apt_uses_all_the_same_is_no_fault(text: str) -> None:
    assert fault_of(CUDA, text) is None


def test_different_keys_for_one_source_are_told_with_the_files() -> None:
    """Bug 096: NVIDIA/nvidia-docker#1626, NVIDIA/deepops#1166."""
    text = (
        "E: Conflicting values set for option Signed-By regarding source https://download.docker.com/linux/ubuntu/ "
        "jammy: /usr/share/keyrings/docker-ce-archive-keyring.gpg != /usr/share/keyrings/docker-archive-keyring.gpg\n"
        "E: The list of sources could not be read.\n"
    )
    files = {
        "/etc/apt/sources.list.d/b.list": "deb https://download.docker.com/linux/ubuntu jammy stable\n",
        "/etc/apt/sources.list.d/a.sources": (
            "Types: deb\nURIs: https://download.docker.com/linux/ubuntu/\nSuites: jammy\n"
        ),
        "/etc/apt/sources.list": "deb http://other stable main\n",
    }
    error = conflict_of_keys(text, files)
    assert error is not None
    assert "in /etc/apt/sources.list.d/a.sources, /etc/apt/sources.list.d/b.list. Nothing was changed" in str(error)
    assert conflict_of_keys("Hit:1 x\n", files) is None


def test_what_a_script_of_a_package_said_is_kept() -> None:
    text = (
        "Setting up nvidia-kernel-open-dkms (580.95.05-1) ...\nError! Bad return status for module build\n"
        "dpkg: error processing package nvidia-kernel-open-dkms (--configure):\n"
        " installed nvidia-kernel-open-dkms package post-installation script subprocess returned error exit status 10\n"
        "Errors were encountered while processing:\n nvidia-kernel-open-dkms\n"
        "E: Sub-process /usr/bin/dpkg returned an error code (1)\n"
    )
    assert transaction_complaints(text) == [
        "Error! Bad return status for module build",
        "dpkg: error processing package nvidia-kernel-open-dkms (--configure):",
        "installed nvidia-kernel-open-dkms package post-installation script subprocess returned error exit status 10",
        "E: Sub-process /usr/bin/dpkg returned an error code (1)",
    ]
