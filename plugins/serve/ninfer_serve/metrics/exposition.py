"""Prometheus' text format. Routers may read it twenty times a second, so it is written straight."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, NamedTuple

from attrs import field, frozen

Kind = Literal["gauge", "counter", "histogram"]
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Sample(NamedTuple):
    """A number of a family.

    :ivar labels: as `labels_of` writes them. :ivar suffix: of its name.
    """

    value: float
    labels: str = ""
    suffix: str = ""


@frozen
class Family:
    """Numbers of one meaning.

    :ivar name: as it is shown, so that of a counter ends with ``_total``.
    """

    name: str
    about: str
    kind: Kind
    samples: Sequence[Sample] = field(factory=list)


def labels_of(labels: Mapping[str, object]) -> str:
    """Names and values of labels, without braces."""
    return ",".join(f'{name}="{_escaped(str(value))}"' for name, value in labels.items())


def exposition(families: Iterable[Family]) -> bytes:
    """The text of all families."""
    lines = []
    for each in families:
        name = each.name
        lines.append(f"# HELP {name} {each.about}\n# TYPE {name} {each.kind}\n")
        for sample in each.samples:
            labels = f"{{{sample.labels}}}" if sample.labels else ""
            lines.append(f"{name}{sample.suffix}{labels} {sample.value}\n")
    return "".join(lines).encode()


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")
