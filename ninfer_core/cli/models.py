"""From the model argument to the path of a `.ninfer` entry file, or the outline of a card."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from tempfile import TemporaryDirectory

from ninfer_core.api import (
    AmbiguityError,
    ArtifactError,
    ConfigError,
    Converter,
    ConverterSpec,
    EmbeddedModel,
    ModelCard,
    ModelPackSpec,
    Progress,
    SpeculatorSpec,
    UnsupportedError,
)
from ninfer_core.artifact.container import Artifact
from ninfer_core.config.components import require_component
from ninfer_core.config.model import blame
from ninfer_core.plugin_host import PluginReport, Registered, Registry, find_embedded

ENTRY = "model.ninfer"
ELSEWHERE = "set NINFER_CACHE to a directory that can be written"


def cache_dir() -> Path:
    """``NINFER_CACHE``, or ``ninfer`` in the user's cache directory."""
    if chosen := os.environ.get("NINFER_CACHE"):
        return Path(chosen)
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "ninfer")
    except RuntimeError as error:
        raise ConfigError("there is no cache directory", why=str(error), fix=ELSEWHERE) from error


def artifact_path(
    model: str | None, registry: Registry, progress: Progress,
    speculator: SpeculatorSpec | None = None,
) -> Path:
    """The artifact a model argument means.

    :param model: a path, the name of an embedded model, or None for the default one. An embedded
        model is converted into the cache directory when it is first used.
    :param speculator: that will be used: what it needs an embedded model must have.
    :raises ArtifactError: for a path that is missing or is a source checkpoint, or a card.
    """
    if find_card(model, registry):
        raise ArtifactError(
            "there are no weights", where=str(model), why="it is a card, to plan with",
            fix=f"convert its checkpoint, ninfer-convert DIRECTORY --out {model}.ninfer, "
            f"and give {model}.ninfer",
        )
    names = _embedded_names(registry)
    if model is None or model in names:
        return _cached(find_embedded(registry, model), registry, progress, speculator)
    path = Path(model)
    if not path.exists():
        cards = sorted(card.name for pack in registry.packs.values() for card in pack.spec.cards)
        also = f"; plan, doctor, kernels, bench also take: {', '.join(cards)}" if cards else ""
        raise ArtifactError(
            "there is no such model", where=model, why="the path does not exist",
            fix=f"give a .ninfer file or one of: {', '.join(names) or 'none'}{also}",
        )
    if source := find_source(model, registry):
        raise ArtifactError(
            "this is a source checkpoint, not a .ninfer artifact", where=model,
            fix=f"ninfer-convert {source} --out {source.resolve().stem}.ninfer",
        )
    return path


def find_source(model: str | None, registry: Registry) -> Path | None:
    """The source checkpoint that a model argument is the path of, if it is."""
    if model is None or model in _embedded_names(registry):
        return None
    path = Path(model)
    if path.suffix == ".safetensors" and path.exists():
        return path.parent
    return path if path.is_dir() or (path.suffix == ".gguf" and path.exists()) else None


def find_card(model: str | None, registry: Registry) -> Registered[ModelCard] | None:
    """The card that a model argument names, if it does.

    :raises AmbiguityError: if several packs have such a card, or the name means something else too.
    """
    found = [
        Registered(card, pack.provenance)
        for pack in registry.packs.values() for card in pack.spec.cards if card.name == model
    ]
    if not found:
        return None
    meanings = [f"card of {each.provenance}" for each in found]
    meanings += [f"embedded model of {pack.provenance}" for pack in registry.packs.values()
                 for each in pack.spec.embedded if each.name == model]
    meanings += ["a file here"] if os.path.isfile(str(model)) else []
    if len(meanings) > 1:
        raise AmbiguityError(
            f"{model!r} has {len(meanings)} meanings", where="; ".join(meanings),
            fix=f"write ./{model} for the file, or leave a plugin out with --no-plugin NAME",
        )
    return found[0]


def outline(card: Registered[ModelCard], registry: Registry) -> Artifact:
    """What a conversion of the card's model would write, without weights."""
    converter = _converter(registry)
    if converter.outline is None:
        raise UnsupportedError("a card is of no use here", where=card.spec.name,
                               why=f"converter {converter.name!r} cannot outline an artifact")
    with blame(card.provenance):
        plan = card.spec.outline.load()()
    made: Artifact = converter.outline.load()(plan, registry)
    return made


def survey(source: Path, report: PluginReport, pack: str | None) -> Artifact:
    """What a conversion of a source checkpoint would write; its headers are enough.

    :param pack: name of the model pack; else the highest claim.
    """
    converter = _converter(report.registry)
    if converter.survey is None:
        raise UnsupportedError("a source checkpoint is of no use here", where=str(source),
                               why=f"converter {converter.name!r} cannot survey it",
                               fix=f"ninfer-convert {source} first")
    made: Artifact = converter.survey.load()(source, report, pack)
    return made


def _embedded_names(registry: Registry) -> list[str]:
    return [each.name for pack in registry.packs.values() for each in pack.spec.embedded]


def _cached(
    model: EmbeddedModel, registry: Registry, progress: Progress, speculator: SpeculatorSpec | None
) -> Path:
    require_component(speculator, model.components, model.name)
    source: Path = model.locate.load()()
    pack = next(each for each in registry.packs.values() if model in each.spec.embedded)
    folder = cache_dir() / f"{model.name}-{model.sha256[:12]}-{pack.provenance.version}"
    if not (folder / ENTRY).exists():
        try:
            _convert(source, folder, pack.spec, registry, progress)
        except OSError as error:
            raise ArtifactError("cannot convert the model into the cache", where=str(folder),
                                why=str(error), fix=f"make room, or {ELSEWHERE}") from error
    return folder / ENTRY


def _convert(
    source: Path, folder: Path, pack: ModelPackSpec, registry: Registry, progress: Progress
) -> None:
    """Convert beside the final place, then rename; who comes second drops its own copy."""
    converter: Converter = _converter(registry).convert.load()
    folder.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=folder.parent, prefix=".converting-") as scratch:
        made = Path(scratch, "set")
        made.mkdir()
        converter(source, made / ENTRY, pack=pack.pack.load()(), registry=registry,
                  progress=progress)
        try:
            made.rename(folder)
        except OSError as error:
            taken = error.errno in (errno.ENOTEMPTY, errno.EEXIST)
            if not (taken and (folder / ENTRY).exists()):
                raise


def _converter(registry: Registry) -> ConverterSpec:
    if len(registry.converters) != 1:
        raise UnsupportedError(
            "an embedded model or a card goes through the one converter there is",
            why=f"active: {', '.join(registry.converters) or 'none'}",
            fix="pip install ninfer-convert, or leave the others out with --no-plugin NAME",
        )
    (only,) = registry.converters.values()
    return only.spec
