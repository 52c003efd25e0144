"""Texts to measure on: one file, or those of a manifest."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import cattrs
from attrs import field, frozen
from attrs.validators import matches_re, min_len
from cattrs.v import format_exception

from ninfer_core.api import ConfigError

_NAME = matches_re(r"[^\s/][^/\n]*")


@frozen
class Text:
    """A stream of a corpus.

    :ivar sha256: of the file's bytes.
    """

    name: str
    domain: str
    content: str
    sha256: str


@frozen
class Corpus:
    """:ivar texts: with different names."""

    name: str
    texts: tuple[Text, ...]


@frozen
class _Stream:
    name: str = field(validator=_NAME)
    domain: str = field(validator=_NAME)
    path: str = field(validator=min_len(1))
    sha256: str | None = None


@frozen
class _Manifest:
    name: str = field(validator=_NAME)
    streams: tuple[_Stream, ...] = field(validator=min_len(1))


def _string(value: object, _: type) -> str:
    if not isinstance(value, str):
        raise ValueError(f"must be a string, not {value!r}")
    return value


_converter = cattrs.Converter(forbid_extra_keys=True)
_converter.register_structure_hook(str, _string)


def read_text(path: Path) -> Corpus:
    """A corpus of one file, of the domain ``text``; raises as `read_corpus`."""
    return Corpus(path.name, (_read(path, path.name, "text"),))


def read_corpus(manifest: Path, *, quick: bool = False) -> Corpus:
    """The texts that a manifest names.

    :param quick: the first text of each domain only.
    :raises ConfigError: for a malformed manifest, for files that are missing (all are named), that
        are not UTF-8 (with the offset of the byte), or that are not what the manifest says.
    """
    described = _parse(manifest)
    streams = _first_of_each_domain(described.streams) if quick else described.streams
    paths = [manifest.parent / stream.path for stream in streams]
    missing = [str(path) for path in paths if not path.is_file()]
    if missing:
        raise ConfigError(
            "texts of the corpus are missing", where=str(manifest), why=", ".join(missing),
            fix="put them there; paths in a manifest are relative to it",
        )
    texts = [_read(path, s.name, s.domain) for path, s in zip(paths, streams, strict=True)]
    for text, stream in zip(texts, streams, strict=True):
        if stream.sha256 not in (None, text.sha256):
            why = f"its SHA-256 is {text.sha256}, and the manifest says {stream.sha256}"
            raise ConfigError("a text is not that of the corpus", where=stream.path, why=why)
    return Corpus(described.name, tuple(texts))


def _parse(path: Path) -> _Manifest:
    try:
        manifest = _converter.structure(json.loads(path.read_bytes()), _Manifest)
    except cattrs.BaseValidationError as error:
        why = "; ".join(cattrs.transform_error(error, "manifest", format_exception=_explain))
        raise ConfigError("malformed manifest", where=str(path), why=why) from error
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError("cannot read the manifest", where=str(path), why=str(error)) from error
    for stream in manifest.streams:
        if Path(stream.path).is_absolute():
            why = f"the path of {stream.name} is absolute, and must be relative to the manifest"
            raise ConfigError("malformed manifest", where=str(path), why=why)
    counts = Counter(stream.name for stream in manifest.streams)
    if repeated := [name for name, count in counts.items() if count > 1]:
        why = f"several streams are called {', '.join(repeated)}"
        raise ConfigError("malformed manifest", where=str(path), why=why)
    return manifest


def _explain(error: BaseException, kind: type | None) -> str:
    """What a validator says, else what cattrs makes of an error."""
    return str(error.args[0]) if type(error) is ValueError else format_exception(error, kind)


def _first_of_each_domain(streams: Sequence[_Stream]) -> list[_Stream]:
    first: dict[str, _Stream] = {}
    for stream in streams:
        first.setdefault(stream.domain, stream)
    return list(first.values())


def _read(path: Path, name: str, domain: str) -> Text:
    try:
        raw = path.read_bytes()
        return Text(name, domain, raw.decode("utf-8"), hashlib.sha256(raw).hexdigest())
    except UnicodeDecodeError as error:
        why = f"byte {error.start} ({raw[error.start]:#04x}): {error.reason}"
        fix = "convert it, for example with iconv"
        raise ConfigError("a text is not UTF-8", where=str(path), why=why, fix=fix) from error
    except OSError as error:
        raise ConfigError("cannot read a text", where=str(path), why=str(error)) from error
