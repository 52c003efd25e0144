"""The conformance kit: one set of checks for packs, profiles and plugins, used in two ways.

A third party subclasses the pytest suite::

    from ninfer_conformance.suite import PackConformance

    class TestMyPack(PackConformance):
        plugin = "my_pack.plugin"
        name = "my_pack"

and ``ninfer conformance my_pack`` runs the same checks on what is installed.
"""
