"""What a catalogue may say, and that everything else is refused with its place."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from ninfer_core.api import ArtifactError
from ninfer_core.artifact.catalogue import Catalogue, TensorObject
from ninfer_core.artifact.schema import parse

DOCUMENT: dict[str, Any] = {
    "components": {
        "text": {
            "config": {"architectures": ["Toy"], "theta": 1e6, "scaling": None, "tied": True},
            "resources": {"tokenizer.json": "r.tok"},
            "proposal": {"domain": "indexed", "rows": 4},
        },
        "mtp": {"config": {}, "target": "text"},
    },
    "objects": [
        {"id": "w.qk", "kind": "tensor", "shape": [8, 4], "format": "bf16",
         "layout": "contiguous_le_v1", "offset": 0, "bytes": 64},
        {"id": "r.tok", "kind": "resource", "encoding": "raw_bytes_v1", "offset": 64, "bytes": 5},
        {"id": "a.div", "kind": "tensor", "shape": [], "format": "fp32",
         "layout": "contiguous_le_v1", "offset": 256, "bytes": 4},
    ],
    "bindings": {
        "text/q": {"parts": [{"object": "w.qk", "range": [0, 16]}]},
        "text/k": {"parts": [{"object": "w.qk", "range": [16, 24]},
                             {"object": "w.qk", "range": [24, 32]}]},
        "text/all": {"object": "w.qk"},
    },
    "uses": [
        {"parameter": "text/q", "input": "text/x", "activation_policy": "AllowA4",
         "auxiliaries": {"activation_input_divisor": {"object": "a.div"}}},
        {"parameter": "text/q", "input": "mtp/x"},
    ],
    "files": [{"path": None, "payload_bytes": 200}, {"path": "m.part-0001", "payload_bytes": 60}],
    "metadata": {"name": "toy"},
    "provenance": {"source": "here"},
}
OPEN = {"config", "metadata", "provenance"}


def read(document: Any) -> Catalogue:
    raw = document if isinstance(document, bytes) else json.dumps(document).encode()
    return parse(raw, Catalogue, Path("m.ninfer"))


def test_all_that_a_catalogue_can_say_is_read():
    catalogue = read(DOCUMENT)
    assert catalogue.objects[0] == TensorObject(
        "w.qk", "tensor", (8, 4), "bf16", "contiguous_le_v1", 0, 64
    )
    assert catalogue.bindings["text/all"].spans() == [("w.qk", None)]
    assert catalogue.bindings["text/k"].spans() == [("w.qk", (16, 24)), ("w.qk", (24, 32))]
    assert catalogue.uses[0].auxiliaries["activation_input_divisor"].object == "a.div"
    assert catalogue.uses[1].activation_policy is None
    assert catalogue.components["text"].proposal.rows == 4
    assert catalogue.components["mtp"].target == "text"
    assert catalogue.files[1].path == "m.part-0001"
    assert catalogue.components["text"].config == DOCUMENT["components"]["text"]["config"]


def test_optional_members_may_be_absent_and_blanks_may_follow():
    document = {key: DOCUMENT[key] for key in ("objects", "files")}
    document |= {"components": {"text": {"config": {}}}, "bindings": {}, "uses": []}
    assert read(json.dumps(document).encode() + b" \n" * 50).metadata == {}


def places(node: Any, path: tuple = ()):
    """Every place of the document outside of open values, with what is there."""
    yield path, node
    if path and path[-1] in OPEN:
        return
    children = node.items() if type(node) is dict else enumerate(node) if type(node) is list else ()
    for key, child in children:
        yield from places(child, (*path, key))


def changed(path: tuple, value: Any, *, member: str | None = None) -> dict[str, Any]:
    document = copy.deepcopy(DOCUMENT)
    if not path:
        return {**document, member: value} if member else value
    parent = document
    for key in path[:-1]:
        parent = parent[key]
    target = parent[path[-1]]
    if member:
        target[member] = value
    else:
        parent[path[-1]] = value
    return document


def wrong_values(node: Any):
    if type(node) is int:
        return [-1, 2**64, 10**400, 1.0, 1e300, True, "1", None, [], {}]
    if type(node) is str:
        return ["", "a\0b", "\ud800", 1, True, None, [], {}, ["a"]]
    if node is None:
        return ["m.part-0009", "", 0]  # path of the entry
    return [None, 0, True, "", "x", [] if type(node) is dict else {}]


@pytest.mark.parametrize(("path", "node"), [*places(DOCUMENT)], ids=lambda it: repr(it)[:40])
def test_no_value_of_another_type_is_taken(path, node):
    for value in wrong_values(node):
        with pytest.raises(ArtifactError, match="not a valid"):
            read(changed(path, value))


CLOSED = [
    path for path, node in places(DOCUMENT)
    if type(node) is dict
    and (not path or path[-1] not in OPEN | {"components", "bindings", "resources", "auxiliaries"})
]


@pytest.mark.parametrize("path", CLOSED, ids=str)
def test_unknown_members_are_refused(path):
    with pytest.raises(ArtifactError, match="surprise"):
        read(changed(path, 0, member="surprise"))


OPTIONAL = {"metadata", "provenance", "target", "resources", "proposal", "rows",
            "activation_policy", "auxiliaries"}
REQUIRED = [
    path for path, _ in places(DOCUMENT)
    if path and type(path[-1]) is str and path[-1] not in OPTIONAL
    and path[:-1] not in {("components",), ("bindings",)} and len(path) > 0
    and path[-2:-1] not in {("resources",), ("auxiliaries",)}
]


@pytest.mark.parametrize("path", REQUIRED, ids=str)
def test_required_members_are_missed(path):
    document = copy.deepcopy(DOCUMENT)
    parent = document
    for key in path[:-1]:
        parent = parent[key]
    del parent[path[-1]]
    with pytest.raises(ArtifactError):
        read(document)


def test_names_without_end_do_not_fill_the_screen():
    for document in (changed(("objects", 2, "id"), "x" * 9_000_000),
                     DOCUMENT | {f"{index:09}": 0 for index in range(9_999)}):
        with pytest.raises(ArtifactError) as caught:
            read(document)
        assert len(str(caught.value)) < 1500


def test_the_place_is_named():
    with pytest.raises(ArtifactError, match=r"\]: objects/2/offset: an unsigned 64-bit integer"):
        read(changed(("objects", 2, "offset"), -3))
    with pytest.raises(ArtifactError, match=r"m.ninfer: catalogue"):
        read(b"{}")


QK, TOK, DIV = DOCUMENT["objects"]
CONTRADICTIONS = {
    "overlap": (("objects", 1, "offset"), 63, "predecessor"),
    "order": (("objects",), [TOK, QK, DIV], "predecessor"),
    "end": (("objects", 2, "bytes"), 5, "payload"),
    "wrap": (("objects", 2, "offset"), 2**64 - 2, "payload"),
    "total": (("files", 1, "payload_bytes"), 2**64 - 1, "payload"),
    "one id": (("objects", 2, "id"), "w.qk", "one id"),
    "no objects": (("objects",), [], "objects"),
    "no bytes": (("objects", 1, "bytes"), 0, "bytes"),
    "rank": (("objects", 0, "shape"), [1] * 17, "shape"),
    "extent 0": (("objects", 0, "shape"), [8, 0], "shape"),
    "elements": (("objects", 0, "shape"), [2**32, 2**32, 2], "elements"),
    "kind": (("objects", 0, "kind"), "view", "kind"),
    "encoding": (("objects", 1, "encoding"), "gzip", "encoding"),
    "two forms": (("bindings", "text/q", "object"), "w.qk", "either"),
    "no form": (("bindings", "text/q"), {}, "either"),
    "no parts": (("bindings", "text/q", "parts"), [], "parts"),
    "unknown tensor": (("bindings", "text/all", "object"), "nope", "'nope'"),
    "resource as tensor": (("bindings", "text/all", "object"), "r.tok", "'r.tok'"),
    "range end": (("bindings", "text/q", "parts", 0, "range"), [0, 33], "33"),
    "range empty": (("bindings", "text/q", "parts", 0, "range"), [4, 4], "4"),
    "range reversed": (("bindings", "text/q", "parts", 0, "range"), [5, 4], "5"),
    "range of three": (("bindings", "text/q", "parts", 0, "range"), [0, 1, 2], "range"),
    "use of nothing": (("uses", 0, "parameter"), "text/v", "text/v"),
    "use twice": (("uses", 1, "input"), "text/x", "same parameter"),
    "policy": (("uses", 0, "activation_policy"), "AllowA2", "AllowA2"),
    "auxiliary": (
        ("uses", 0, "auxiliaries", "activation_input_divisor"), {"object": "r.tok"}, "r.tok",
    ),
    "no text": (("components",), {"vision": {"config": {}}}, "text"),
    "target": (("components", "mtp", "target"), "vision", "vision"),
    "resource": (("components", "text", "resources", "tokenizer.json"), "w.qk", "w.qk"),
    "proposal": (("components", "mtp", "proposal"), {"domain": "full"}, "proposal"),
    "domain": (("components", "text", "proposal", "domain"), "half", "half"),
    "entry path": (("files", 0, "path"), "x", "entry"),
    "part without path": (("files", 1, "path"), None, "None"),
    "two parts of one path": (("files",), DOCUMENT["files"] + DOCUMENT["files"][1:], "same path"),
    "no files": (("files",), [], "files"),
    **{
        f"path {path!r}": (("files", 1, "path"), path, "path|name|text|value")
        for path in ("", ".", "..", "a/b", "/etc/passwd", "..\\x", "a\0b", 7, ["x"])
    },
}


@pytest.mark.parametrize("name", CONTRADICTIONS)
def test_contradictions_are_refused(name):
    path, value, message = CONTRADICTIONS[name]
    document = copy.deepcopy(DOCUMENT)
    parent = document
    for key in path[:-1]:
        parent = parent[key]
    parent[path[-1]] = value
    with pytest.raises(ArtifactError, match=message):
        read(document)


def with_config(text: str) -> bytes:
    marked = changed(("components", "mtp", "config"), {"x": "MARK"})
    return json.dumps(marked).replace('"MARK"', text).encode()


HOSTILE = {
    "empty": b"",
    "no object": b"[]",
    "number": b"3",
    "truncated": json.dumps(DOCUMENT).encode()[:-9],
    "garbage after": json.dumps(DOCUMENT).encode() + b"x",
    "not UTF-8": b'{"\xff": 1}',
    "byte order mark": b"\xef\xbb\xbf{}",
    "member twice": b'{"files": [], "files": []}',
    "member twice in config": with_config('{"a": 1, "a": 1}'),
    "NaN": with_config("NaN"),
    "infinity": with_config("-Infinity"),
    "infinite float": with_config("1e999"),
    "digits": with_config("9" * 5000),
    "large integer": with_config("18446744073709551616"),
    "deep lists": with_config("[" * 100_000 + "]" * 100_000),
    "deep objects": with_config('{"a":' * 70 + "1" + "}" * 70),
    "lone surrogate": with_config(r'"\ud800"'),
    "lone surrogate in a name": with_config(r'{"\udfff": 1}'),
    "NUL": with_config(r'"a\u0000b"'),
    "deep shape": json.dumps(changed(("objects", 0, "shape"), "MARK")).replace(
        '"MARK"', "[" * 500 + "]" * 500
    ).encode(),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_json_is_refused(name):
    with pytest.raises(ArtifactError, match="not a valid"):
        read(HOSTILE[name])


def test_harmless_open_values_are_kept():
    for text in ("null", "-1", "1e-300", "[[[[]]]]", '"\\ud83d\\ude00"', "18446744073709551615"):
        assert read(with_config(text)).components["mtp"].config == {"x": json.loads(text)}
