"""The toy pack passes the kit."""

from ninfer_conformance.suite import PackConformance


class TestToy(PackConformance):
    plugin = "ninfer_pack_toy.plugin"
    name = "toy"
