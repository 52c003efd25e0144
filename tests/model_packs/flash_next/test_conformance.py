"""The pack passes the conformance kit with its tiny model."""

from __future__ import annotations

from ninfer_conformance.suite import PackConformance


class TestTinyFlashNext(PackConformance):
    plugin = "ninfer_pack_flash_next.plugin"
    name = "flash_next"
