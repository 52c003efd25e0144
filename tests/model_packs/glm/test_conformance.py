"""The pack passes the conformance kit with its tiny model."""

from __future__ import annotations

from ninfer_conformance.suite import PackConformance


class TestTinyGlm(PackConformance):
    plugin = "ninfer_pack_glm.plugin"
    name = "glm"
