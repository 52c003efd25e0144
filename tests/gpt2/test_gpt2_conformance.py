"""The pack passes the conformance kit, as any pack outside the core must."""

from ninfer_conformance.suite import PackConformance


class TestGpt2(PackConformance):
    plugin = "ninfer_pack_gpt2.plugin"
    name = "gpt2"
