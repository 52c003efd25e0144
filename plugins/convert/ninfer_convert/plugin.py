"""What this distribution registers: one converter."""

from __future__ import annotations

from ninfer_core.api import ConverterSpec, hookimpl

NINFER_API = (1, 0)


@hookimpl
def ninfer_converters() -> list[ConverterSpec]:
    return [ConverterSpec(
        name="convert", convert="ninfer_convert.conversion:convert",
        outline="ninfer_convert.outline:outline", survey="ninfer_convert.survey:survey",
    )]
