"""Model arguments: names, paths, and the errors that say what to do."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from attrs import evolve

from ninfer_core.api import (
    AmbiguityError,
    ArtifactError,
    ConfigError,
    ConverterSpec,
    ModelCard,
    PluginError,
    SpeculatorSpec,
    UnsupportedError,
)
from ninfer_core.cli.models import artifact_path, cache_dir, find_card, outline
from ninfer_core.plugin_host import Registered


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


def test_what_it_lacks_for_a_speculator_is_said_before_it_is_converted(fakes):
    def path(**more):
        speculator = SpeculatorSpec("own", "fake_parts:convert", **more)
        return artifact_path("tiny", fakes.registry, lambda *_: None, speculator)

    with pytest.raises(ArtifactError, match=r"no component 'mtp' \[tiny\]: --spec own needs it"):
        path(component="mtp")
    assert fakes.calls == []
    assert path().exists()


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


@pytest.fixture
def carded(fakes, monkeypatch):
    """The registry, whose pack has the card ``big``; its outline gives a plan."""
    monkeypatch.setattr("fake_parts.outline_card", lambda: "the plan", raising=False)
    monkeypatch.setattr("fake_parts.outline", lambda *given: given, raising=False)
    registry = fakes.registry
    pack, converter = registry.packs["fake"], registry.converters["convert"]
    card = ModelCard("big", "fake_parts:outline_card")
    spec = ConverterSpec("convert", "fake_parts:convert", "fake_parts:outline")
    return evolve(
        registry, packs={"fake": evolve(pack, spec=evolve(pack.spec, cards=(card,)))},
        converters={"convert": evolve(converter, spec=spec)},
    )


def test_a_card_becomes_what_the_converter_would_write(carded):
    card = find_card("big", carded)
    assert outline(card, carded) == ("the plan", carded)
    assert card.provenance.entry_point == "fake"


def test_a_missing_path_names_the_cards_too(carded):
    with pytest.raises(ArtifactError, match=r"one of: tiny; plan, .* also take: big"):
        artifact_path("bigg", carded, lambda *_: None)


@pytest.mark.parametrize("model", ["tiny", "small", "big.ninfer", None])
def test_other_names_are_no_cards(carded, model):
    assert find_card(model, carded) is None


def test_a_card_has_no_weights_and_the_error_says_how_to_make_some(carded):
    with pytest.raises(ArtifactError, match="there are no weights") as caught:
        artifact_path("big", carded, lambda *_: None)
    assert "ninfer-convert DIRECTORY --out big.ninfer" in caught.value.fix


@pytest.mark.parametrize(("other", "named"), [
    ("card", "other-pack"), ("embedded model", "embedded model of fake-pack"),
    ("file", "a file here"),
])
def test_a_name_with_two_meanings_is_refused(carded, other, named, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    packs = dict(carded.packs)
    fake = packs["fake"]
    if other == "card":
        origin = evolve(fake.provenance, distribution="other-pack")
        packs["other"] = Registered(evolve(fake.spec, name="other", embedded=()), origin)
    elif other == "file":
        (tmp_path / "big").touch()
    else:
        embedded = evolve(fake.spec.embedded[0], name="big")
        packs["fake"] = evolve(fake, spec=evolve(fake.spec, embedded=(embedded,)))
    with pytest.raises(AmbiguityError, match="'big' has 2 meanings") as caught:
        find_card("big", evolve(carded, packs=packs))
    assert named in caught.value.where and "./big" in caught.value.fix
    assert find_card("./big", evolve(carded, packs=packs)) is None


def test_a_directory_of_the_name_is_no_meaning(carded, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "big").mkdir()
    assert find_card("big", carded)


def test_a_converter_that_cannot_outline_is_named(carded, fakes):
    bare = evolve(carded, converters=fakes.registry.converters)
    with pytest.raises(UnsupportedError, match="'convert' cannot outline"):
        outline(find_card("big", bare), bare)


def test_a_card_that_breaks_is_blamed_on_its_plugin(carded, monkeypatch):
    monkeypatch.setattr("fake_parts.outline_card", lambda: 1 / 0)
    with pytest.raises(PluginError, match="fake-pack"):
        outline(find_card("big", carded), carded)
