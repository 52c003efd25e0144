"""Every error a user can meet says what failed, where, why, and what to do."""

from __future__ import annotations


class NInferError(Exception):
    """Base of all errors of the runtime that have a cause a user can act on.

    :param what: what failed, a short sentence without a full stop.
    :param where: the file, plugin, parameter or request it failed at.
    :param why: the cause, with the numbers that show it.
    :param fix: what the user can do about it; a command where there is one.
    """

    def __init__(self, what: str, *, where: str = "", why: str = "", fix: str = "") -> None:
        super().__init__(what, where, why, fix)
        self.what, self.where, self.why, self.fix = what, where, why, fix

    def __str__(self) -> str:
        text = self.what
        if self.where:
            text += f" [{self.where}]"
        if self.why:
            text += f": {self.why}"
        if self.fix:
            text += f"\n  to fix: {self.fix}"
        return text


class ConfigError(NInferError):
    """A launch option is unknown, out of range or contradicts another."""


class PluginError(NInferError):
    """A plugin cannot be imported, validated or used."""


class AmbiguityError(NInferError):
    """Two plugins answer a question equally well; the message names the flag that settles it."""


class ArtifactError(NInferError):
    """A `.ninfer` set or a source checkpoint is damaged, incomplete or not what it says it is."""


class UnsupportedError(NInferError):
    """Nothing installed can do what was asked; the message says what was considered and why not."""


class CapacityError(NInferError):
    """A budget (weights, pages, slots, context) does not suffice; the message has both numbers."""


class QueueTimeoutError(CapacityError):
    """A request waited longer than the limits allow."""


class RequestError(NInferError):
    """One request is at fault and fails alone."""


class ContextLengthError(RequestError):
    """A prompt leaves no room for an output."""
