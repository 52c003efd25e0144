"""Model arguments: names, paths, and the errors that say what to do."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from attrs import evolve

from ninfer_core.api import ArtifactError, ConfigError, UnsupportedError
from ninfer_core.cli.models import artifact_path, cache_dir


def path_of(model, fakes):
    return artifact_path(model, fakes.registry, lambda phase, done, total: None)


@pytest.mark.parametrize("model", ["tiny", None])
def test_an_embedded_model_is_converted_once(model, fakes):
    first = path_of(model, fakes)
    assert path_of(model, fakes) == first
    assert first.read_bytes() == fakes.source.read_bytes()
    assert len(fakes.calls) == 1
    assert [each.name for each in cache_dir().iterdir()] == [first.parent.name]


def test_another_version_of_the_pack_converts_anew(fakes):
    first = path_of("tiny", fakes)
    old = fakes.registry.packs["fake"]
    newer = evolve(old, provenance=evolve(old.provenance, version="8"))
    second = artifact_path("tiny", evolve(fakes.registry, packs={"fake": newer}), lambda *_: None)
    assert first != second and first.exists() and second.exists()


def test_conversions_at_once_do_no_harm(fakes):
    with ThreadPoolExecutor(8) as pool:
        paths = set(pool.map(lambda _: path_of("tiny", fakes), range(8)))
    assert len(paths) == 1
    assert len(list(cache_dir().iterdir())) == 1


def test_a_failed_conversion_leaves_nothing(fakes, monkeypatch):
    def fail(*_, **__):
        raise ArtifactError("no room")

    monkeypatch.setattr("fake_parts.convert", fail)
    with pytest.raises(ArtifactError, match="no room"):
        path_of("tiny", fakes)
    assert list(cache_dir().iterdir()) == []


def test_absent_weights_say_the_command(fakes):
    fakes.source.unlink()
    with pytest.raises(ArtifactError, match="ninfer fetch tiny"):
        path_of("tiny", fakes)


def test_without_a_converter_the_error_names_one(fakes):
    bare = evolve(fakes.registry, converters={})
    with pytest.raises(UnsupportedError, match="pip install ninfer-convert"):
        artifact_path("tiny", bare, lambda *_: None)


def test_an_artifact_is_itself(fakes, tmp_path):
    path = tmp_path / "some.ninfer"
    path.touch()
    assert path_of(str(path), fakes) == path


def test_a_missing_path_names_what_there_is(fakes):
    with pytest.raises(ArtifactError, match="one of: tiny"):
        path_of("absent.ninfer", fakes)


@pytest.mark.parametrize(
    ("name", "source"),
    [("llama.gguf", "llama.gguf"), ("llama", "llama"), ("llama/model.safetensors", "llama")],
)
def test_a_source_says_how_to_convert_it(fakes, tmp_path, name, source):
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    path.touch() if path.suffix else path.mkdir()
    with pytest.raises(ArtifactError) as caught:
        path_of(str(path), fakes)
    assert caught.value.fix == f"ninfer-convert {tmp_path / source} --out llama.ninfer"


def test_the_cache_directory(monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    monkeypatch.setenv("NINFER_CACHE", "/elsewhere")
    assert cache_dir() == Path("/elsewhere")
    monkeypatch.delenv("NINFER_CACHE")
    assert cache_dir() == Path("/somewhere/ninfer")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_dir() == Path.home() / ".cache" / "ninfer"


@pytest.mark.parametrize("cache", ["a file", "half of a set"])
def test_a_cache_that_cannot_be_used_is_named_with_the_way_out(fakes, tmp_path, monkeypatch, cache):
    if cache == "a file":
        monkeypatch.setenv("NINFER_CACHE", str(fakes.source))
    else:
        first = path_of("tiny", fakes)
        first.rename(first.with_name("else"))
    with pytest.raises(ArtifactError, match="set NINFER_CACHE") as caught:
        path_of("tiny", fakes)
    assert "tiny-" in caught.value.where


def test_a_user_without_a_home_is_told_of_the_variable(monkeypatch):
    def homeless():
        raise RuntimeError("Could not determine home directory.")

    for name in ("NINFER_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(Path, "home", homeless)
    with pytest.raises(ConfigError, match="set NINFER_CACHE"):
        cache_dir()
