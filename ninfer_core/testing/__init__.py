"""The conformance kit: one set of checks for packs, profiles and plugins, used in two ways.

A third party subclasses the pytest suite::

    from ninfer_core.testing import PackConformance

    class TestMyPack(PackConformance):
        plugin = "my_pack.plugin"
        name = "my_pack"

and ``ninfer conformance my_pack`` runs the same checks on what is installed.
"""

from ninfer_core.testing.levels import CHECKS, Check, CheckResult, run_conformance
from ninfer_core.testing.subject import Subject, find_subject, tiny_resources
from ninfer_core.testing.suite import PackConformance, ProfileConformance
from ninfer_core.testing.tolerances import TOLERANCES, Tolerance

__all__ = [
    "CHECKS", "TOLERANCES", "Check", "CheckResult", "PackConformance",
    "ProfileConformance", "Subject", "Tolerance", "find_subject", "run_conformance",
    "tiny_resources",
]
