# SPDX-License-Identifier: Apache-2.0
"""Source files: which sources they hold, and which of them is the same repository spelled otherwise (bug 096)."""

import pytest
from ansible.module_utils.gpufleet.apt_sources import (
    Repository,
    find_doubles,
    parse_deb822,
    parse_one_line,
    render_blacklist,
    render_source,
)
from ansible.module_utils.gpufleet.apt_stack_error import AptStackError

URI = "https://developer.download.nvidia.com/compute/cuda/repos/ubuntu2404/x86_64/"
CUDA = Repository(URI, ("/",), ())
DEBIAN = Repository("https://deb.example.com/debian", ("stable", "stable-updates"), ("main",))
BARE = URI.rstrip("/")


def test_reads_both_formats() -> None:
    lines = f"# deb {URI} /\n\ndeb [arch=amd64 signed-by=/k.gpg] {BARE} /\ndeb-src http://d stable main\n"
    first, second = parse_one_line(lines)
    assert (first.begin, first.uris, first.suites, first.signed_by) == (2, (BARE,), ("/",), "/k.gpg")
    assert second.suites == ("stable",)
    stanzas = (
        f"Types: deb\nURIs: {URI}\n http://second\nSuites: /\n# why\nSigned-By: /k\n\n"
        "Enabled: no\nTypes: deb\nURIs: http://off\nSuites: x\n\nTypes: deb\nURIs: http://third\nSuites: a b\n"
    )
    first, third = parse_deb822(stanzas)
    assert (first.begin, first.end, first.uris, first.signed_by) == (0, 6, (URI, "http://second"), "/k")
    assert (third.begin, third.suites) == (12, ("a", "b"))


@pytest.mark.parametrize(
    "line",
    [
        f"deb {BARE} /",
        f"deb [signed-by=/usr/share/keyrings/cuda-archive-keyring.gpg] {URI} /",
        f"deb {URI} ./",
        f"deb {BARE.replace('/x86_64', '')} x86_64/",
        f"deb {BARE.replace('developer.download.nvidia.com', 'Developer.Download.NVIDIA.com')} /",
        f"  deb-src\t{BARE} /",
    ],
)
def test_another_spelling_is_taken_out_and_the_rest_of_the_file_stays(line: str) -> None:
    doubles = find_doubles(
        CUDA, {"/a.list": f"# mine\n{line}\ndeb http://other stable main\n", "/b.list": "deb http://x y z\n"}
    )
    assert doubles.files == {"/a.list": "# mine\ndeb http://other stable main\n"}
    assert len(doubles.taken_out) == 1 and doubles.taken_out[0].startswith("/a.list, line 2: ")


def test_a_file_of_which_nothing_is_left_goes() -> None:
    stanza = f"# by the keyring package\nTypes: deb\nURIs: {URI}\nSuites: /\nSigned-By: /k\n"
    assert find_doubles(CUDA, {"/c.sources": stanza}).files == {"/c.sources": None}


@pytest.mark.parametrize(
    ("repository", "path", "text"),
    [
        (CUDA, "/c.sources", f"Types: deb\nURIs: {URI} https://other.example.com/\nSuites: /\n"),
        (
            DEBIAN,
            "/d.sources",
            "Types: deb\nURIs: https://deb.example.com/debian/\nSuites: stable testing\nComponents: main\n",
        ),
    ],
)
def test_a_source_that_names_more_is_refused_with_its_file(repository: Repository, path: str, text: str) -> None:
    with pytest.raises(AptStackError, match=f"{path}, line 1 .*together with other repositories") as caught:
        find_doubles(repository, {path: text})
    assert path in caught.value.next_step


def test_another_scheme_is_refused_with_its_file() -> None:
    with pytest.raises(AptStackError, match="/c.list, line 1 .*by another scheme"):
        find_doubles(CUDA, {"/c.list": f"deb {URI.replace('https', 'http')} /\n"})


@pytest.mark.parametrize(
    "text", ["deb https://deb.example.com/debian testing main\n", "deb https://deb.example.com/debian2 stable main\n"]
)
def test_another_suite_or_address_is_another_repository(text: str) -> None:
    assert find_doubles(DEBIAN, {"/d.list": text}).files == {}


def test_what_is_written_is_read_again() -> None:
    for repository in (CUDA, DEBIAN):
        text = render_source(repository, "/etc/apt/keyrings/k.asc", "x")
        (source,) = parse_deb822(text)
        assert (source.uris, source.suites, source.signed_by) == (
            (repository.uri,),
            repository.suites,
            "/etc/apt/keyrings/k.asc",
        )
        assert ("Components: main" in text) == bool(repository.components)
    assert '  "libcuda1$";\n' in render_blacklist(["nvidia-", "libcuda1$"], "x")
