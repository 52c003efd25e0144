"""The pack passes the conformance kit with its tiny model."""

from __future__ import annotations

from ninfer_conformance.suite import PackConformance


class TestTinyMoe(PackConformance):
    plugin = "ninfer_pack_qwen_moe.plugin"
    name = "qwen_moe"
