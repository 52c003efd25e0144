"""The pluggy markers of the project."""

import pluggy

PROJECT = "ninfer"
hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)
