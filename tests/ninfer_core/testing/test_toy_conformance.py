"""The toy pack passes the kit."""

from ninfer_core.testing import PackConformance


class TestToy(PackConformance):
    plugin = "ninfer_pack_toy.plugin"
    name = "toy"
