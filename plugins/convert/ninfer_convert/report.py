"""What a conversion did, for the user."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from attrs import frozen

from ninfer_convert.coverage import listed
from ninfer_convert.objects import StoredObject
from ninfer_core.api import CheckpointSource, ImportPlan
from ninfer_core.cli.console import table


@frozen
class Stored:
    """Objects of one format: how many, their bytes, and how many have the checkpoint's bits."""

    objects: int = 0
    nbytes: int = 0
    kept: int = 0


@frozen
class ConversionReport:
    """Its text is the report.

    :ivar formats: format name -> what is stored in it.
    :ivar ignored: tensors that are not in the artifact, with the reason.
    """

    tensors: int
    formats: Mapping[str, Stored]
    ignored: Mapping[str, str]

    @property
    def nbytes(self) -> int:
        """Bytes of all objects."""
        return sum(stored.nbytes for stored in self.formats.values())

    def __str__(self) -> str:
        objects = sum(stored.objects for stored in self.formats.values())
        lines = [f"{self.tensors} tensors -> {objects} objects, {self.nbytes:,} bytes"]
        lines += [table(("FORMAT", "OBJECTS", "AS IN THE CHECKPOINT", "BYTES"), *(
            (name, stored.objects, stored.kept, f"{stored.nbytes:,}")
            for name, stored in self.formats.items()
        ))]
        reasons: dict[str, list[str]] = {}
        for name, reason in self.ignored.items():
            reasons.setdefault(reason, []).append(name)
        lines += [f"ignored {listed(names)}: {reason}" for reason, names in reasons.items()]
        return "\n".join(lines)


def summarize(
    source: CheckpointSource, plan: ImportPlan, objects: Sequence[StoredObject]
) -> ConversionReport:
    """The report of a conversion."""
    formats: dict[str, Stored] = {}
    for each in objects:
        so_far = formats.get(each.format.name, Stored())
        formats[each.format.name] = Stored(
            so_far.objects + 1, so_far.nbytes + each.nbytes, so_far.kept + each.kept
        )
    return ConversionReport(len(source.tensors), formats, {**source.ignored, **plan.ignored})
