# SPDX-License-Identifier: Apache-2.0
"""daemon.json: what is refused and where, what a merge keeps, and which differences need what."""

import pytest
from ansible.module_utils.gpufleet.docker_daemon_json import differing, merge, parse, render
from ansible.module_utils.gpufleet.docker_error import DockerError


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b'{"a": 1,}', "line 1 column"),  # which one depends on the release of Python
        (b'{\n  "a": 1\n  "b": 2\n}', "line 3 column 3"),
        (b'{"a": [1, 2}', "line 1 column 12"),
        (b"// text\n{}", "line 1 column 1"),
        (b"{'a': 1}", "line 1 column 2"),
        (b'{"a": NaN}', "NaN is no JSON"),
        (b'{"a": 1} {"b": 2}', "Extra data, line 1 column 10"),
        (b'{"a": "\xff"}', "is no UTF-8 text (line 1)"),
        (b"[]", "holds a list, expected an object"),
        (b'"text"', "holds a text, expected an object"),
        (b"null", "holds a single value, expected an object"),
        (b'{"a": 1,\n "b": {"c": 1, "c": 2}}', "'c' twice in one object, the second time at line 2 column 16"),
        (b'{"a": "{\\"a\\": 1", "b": [{"a": 1}], "a": 2}', "'a' twice in one object, the second time at line 1"),
        (b"[" * 100_000 + b"]" * 100_000, "nested too deeply"),
    ],
)
def test_what_is_refused(content: bytes, said: str) -> None:
    with pytest.raises(DockerError) as caught:
        parse(content, "/etc/docker/daemon.json")
    assert said in str(caught.value)
    assert "It was not altered" in str(caught.value)
    assert "/etc/docker/daemon.json" in caught.value.next_step


@pytest.mark.parametrize("content", [b"", b" \n", b"{}", b"\xef\xbb\xbf{}"])
def test_what_says_nothing(content: bytes) -> None:
    assert parse(content) == {}


def test_the_same_key_in_two_objects_is_no_double() -> None:
    text = b'{"runtimes": {"a": {"path": "x"}, "b": {"path": "x"}}, "labels": ["a:", "a:"], "path": "x"}'
    assert parse(text)["path"] == "x"


def test_a_merge_keeps_what_is_not_ours() -> None:
    there = {"hosts": ["fd://"], "log-opts": {"tag": "x", "max-size": "1m"}, "runtimes": {"crun": {"path": "/c"}}}
    merged = merge(
        there, {"log-opts": {"max-size": "10m"}, "live-restore": True, "runtimes": {"nvidia": {"path": "n"}}}
    )
    assert merged == {
        "hosts": ["fd://"],
        "log-opts": {"tag": "x", "max-size": "10m"},
        "runtimes": {"crun": {"path": "/c"}, "nvidia": {"path": "n"}},
        "live-restore": True,
    }
    assert there["log-opts"] == {"tag": "x", "max-size": "1m"}
    assert parse(render(merged)) == merged
    assert list(parse(render(merged))) == ["hosts", "log-opts", "runtimes", "live-restore"]


def test_an_object_and_something_else_cannot_be_merged() -> None:
    with pytest.raises(DockerError, match='has "x" as log-opts.deep, expected an object'):
        merge({"log-opts": {"deep": "x"}}, {"log-opts": {"deep": {"a": 1}}})


def test_what_differs() -> None:
    # A default that is spelled out is no difference.
    assert differing({}, {"live-restore": False, "log-driver": "json-file", "data-root": "/var/lib/docker"}) == []
    keys = differing(
        {"live-restore": False, "bip": "10.0.0.1/24"}, {"live-restore": True, "log-opts": {"max-size": "1m"}}
    )
    assert keys == ["bip", "live-restore", "log-opts"]
