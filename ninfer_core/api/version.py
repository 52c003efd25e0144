"""The version of the plugin API, checked before a plugin's specs are used."""

from __future__ import annotations

from attrs import frozen


@frozen(order=True)
class ApiVersion:
    """A ``major.minor`` pair.

    A plugin built for ``1.3`` works with every core whose API is ``1.x`` with ``x >= 3``:
    minor versions only add, major versions may remove.
    """

    major: int
    minor: int

    def supports(self, wanted: ApiVersion) -> bool:
        """Whether a core of this version can run a plugin that was built for ``wanted``."""
        return self.major == wanted.major and self.minor >= wanted.minor

    def __str__(self) -> str:
        return f"{self.major}.{self.minor}"


API_VERSION = ApiVersion(1, 0)
