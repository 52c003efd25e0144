"""Texts and manifests, good and bad."""

import hashlib
import json

import pytest

from ninfer_core.api import ConfigError
from ninfer_perplexity.corpus import read_corpus, read_text


@pytest.fixture
def write(tmp_path):
    def write(streams, **top):
        for name in ("a", "b", "c"):
            (tmp_path / f"{name}.txt").write_text(f"text {name}", encoding="utf-8")
        manifest = tmp_path / "manifest.json"
        manifest.write_text(json.dumps({"name": "test", "streams": streams} | top))
        return manifest

    return write


def stream(name, domain="prose", **more):
    return {"name": name, "domain": domain, "path": f"{name}.txt", **more}


def test_a_manifest(write):
    corpus = read_corpus(write([stream("a"), stream("b"), stream("c", "code")]))
    assert corpus.name == "test"
    assert [(text.name, text.domain, text.content) for text in corpus.texts] == [
        ("a", "prose", "text a"), ("b", "prose", "text b"), ("c", "code", "text c"),
    ]
    assert corpus.texts[0].sha256 == hashlib.sha256(b"text a").hexdigest()


def test_quick_takes_the_first_of_each_domain(write):
    manifest = write([stream("b", "x"), stream("a", "y"), stream("c", "x")])
    assert [text.name for text in read_corpus(manifest, quick=True).texts] == ["b", "a"]


def test_all_missing_files_are_named(write):
    with pytest.raises(ConfigError, match=r"missing.*no\.txt, .*none\.txt"):
        read_corpus(write([stream("a"), stream("no"), stream("none")]))


def test_files_that_a_quick_run_does_not_read_may_be_missing(write):
    assert read_corpus(write([stream("a"), stream("no")]), quick=True).texts[0].name == "a"


@pytest.mark.parametrize("streams, why", [
    ([], "Length"),
    ([stream("a"), stream("a", "code")], "several streams are called a"),
    ([stream("a") | {"path": "/a.txt"}], "absolute"),
    ([stream("a", weight=1)], "weight"),
    ([{"name": "a", "path": "a.txt"}], "domain"),
    ([stream("a", "")], "domain"),
    ([stream("a") | {"domain": 5}], "must be a string, not 5"),
    ("a", "streams"),
])
def test_malformed_manifests_say_why(write, streams, why):
    with pytest.raises(ConfigError, match="malformed manifest") as caught:
        read_corpus(write(streams))
    assert why in str(caught.value)


@pytest.mark.parametrize("content", [b"", b"[", b"\xff", b"[" * 100_000])
def test_what_is_no_json(tmp_path, content):
    (tmp_path / "m.json").write_bytes(content)
    with pytest.raises(ConfigError, match=r"manifest.*m\.json"):
        read_corpus(tmp_path / "m.json")


def test_a_text_of_another_content(write):
    right = hashlib.sha256(b"text a").hexdigest()
    assert read_corpus(write([stream("a", sha256=right)])).texts
    with pytest.raises(ConfigError, match=r"b\.txt.*SHA-256"):
        read_corpus(write([stream("b", sha256=right)]))


@pytest.mark.parametrize("content, offset, byte", [
    (b"abc\xffdef", 3, "0xff"), ("grüße".encode("latin-1"), 2, "0xfc"), (b"ok \xe2\x82", 3, "0xe2"),
])
def test_a_text_that_is_not_utf8(tmp_path, content, offset, byte):
    (tmp_path / "t.txt").write_bytes(content)
    with pytest.raises(ConfigError, match=rf"UTF-8 .*t\.txt.*byte {offset} \({byte}\)"):
        read_text(tmp_path / "t.txt")


def test_a_text_that_is_not_there(tmp_path):
    with pytest.raises(ConfigError, match=r"none\.txt"):
        read_text(tmp_path / "none.txt")
