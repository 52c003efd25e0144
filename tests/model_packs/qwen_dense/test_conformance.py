"""The pack passes the conformance kit with its tiny model."""

from __future__ import annotations

from ninfer_conformance.suite import PackConformance


class TestTinyDense(PackConformance):
    plugin = "ninfer_pack_qwen_dense.plugin"
    name = "qwen_dense"
