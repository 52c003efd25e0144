"""What llguidance says of a grammar that it refuses."""

from __future__ import annotations

import re

_PLACE = re.compile(r"^at \d+\(\d+\): (failed to compile JSON schema: )?")
_LISTING = re.compile(r"\n( +\d+ \| |<non-verbose/>).*", re.DOTALL)
_NOT_SUPPORTED = "keywords that are not supported: "


def reason(error: str) -> str:
    """The message without places in a grammar that the client has not written."""
    why = _LISTING.sub("", _PLACE.sub("", error)).strip()
    return why.replace("Unimplemented keys: ", _NOT_SUPPORTED)


def unsupported_keyword(why: str) -> str:
    """The keyword of a JSON schema that a message is about, or ""."""
    for start, keyword in (("Unknown format", "format"), ("oneOf", "oneOf")):
        if why.startswith(start):
            return keyword
    found = re.match(rf'{_NOT_SUPPORTED}\["([^"]+)"', why)
    return found[1] if found else ""
