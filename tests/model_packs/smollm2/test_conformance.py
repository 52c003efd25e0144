"""The pack passes the conformance kit: its tiny model at all levels, its embedded model's text."""

from __future__ import annotations

from functools import cache

from attrs import evolve

from ninfer_conformance.subject import Subject
from ninfer_conformance.suite import PackConformance
from ninfer_convert.source import open_source
from ninfer_pack_smollm2.embedded import locate


class TestTinyLlama(PackConformance):
    plugin = "ninfer_pack_smollm2.plugin"
    name = "smollm2"


class TestSmolLM2Text(PackConformance):
    plugin = "ninfer_pack_smollm2.plugin"
    name = "smollm2"
    levels = ("L4",)

    @classmethod
    @cache
    def subject(cls) -> Subject:
        source = open_source(locate())
        return evolve(super().subject(), model=source.description, resources=source.resources)
