"""Memories for states that are kept, and those that outlive the process."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from collections.abc import Set as AbstractSet
from typing import TYPE_CHECKING, Any, Protocol

from attrs import frozen

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

Scope = str | bytes | int | None | tuple["Scope", ...]
"""What tells computations of equal tokens apart, in literals that ``repr`` writes for good."""


def is_scope(value: object) -> bool:
    """Whether this is such a literal."""
    if isinstance(value, tuple):
        return all(map(is_scope, value))
    return value is None or isinstance(value, str | bytes | int)


class Tier(Protocol):
    """A memory for copies of states, counted in pages. One thread calls it."""

    @property
    def name(self) -> str:
        """For reports; ``device`` and ``host`` are the core's."""
        ...

    @property
    def kept(self) -> AbstractSet[Any]:
        """The copies."""
        ...

    @property
    def num_free(self) -> int:
        """Room in pages; negative if there is more than is allowed now."""
        ...

    def num_held(self, copies: Collection[Any], /) -> int:
        """Pages of these copies together."""
        ...

    def num_freed(self, copies: Collection[Any], /) -> int:
        """Pages that would be free without these copies."""
        ...

    def drop(self, copy: Any, /) -> None:
        """Give up a copy, whatever has become of it."""
        ...


class StoredState(Protocol):
    """A state in a tier that outlives the process; hashed and compared by identity."""

    @property
    def num_tokens(self) -> int: ...

    @property
    def next_token(self) -> int | None:
        """That followed where it was taken, if one did."""
        ...


class StateTier(Tier, Protocol):
    """Keeps states where later processes find them.

    The prefix cache says what is worth keeping, in idle moments and at the end, and gives up the
    rest; a tier keeps it, exactly or not at all: a state that cannot be read is a miss, a wrong one
    is a wrong answer. Several processes may share its place at once. An error that is not named
    here costs all states in memory, and no request.
    """

    def scan(self) -> Iterable[tuple[StoredState, Scope, str, NDArray[np.int32]]]:
        """What earlier processes left of this identity: each with the scope, kind and tokens that
        it was saved with, the longest unused first. What is not usable is left out."""
        ...

    def num_pages_to_save(self, snapshot: Any, scope: Scope) -> int:
        """Room that `save` needs."""
        ...

    def save(
        self, snapshot: Any, scope: Scope, kind: str, tokens: NDArray[np.int32]
    ) -> StoredState:
        """Keep a :class:`~ninfer_core.state.memory.Snapshot`, from any memory.

        :param tokens: ``[num_tokens]``, what it is the state of.
        :raises OSError: if it cannot be written; nothing is left then.
        """
        ...

    def load(self, stored: Any) -> Any:
        """The snapshot, in a :class:`~ninfer_core.state.memory.PageMemory` of its own. All requests
        wait for it.

        :raises ArtifactError: if it is damaged or gone; the caller drops it then.
        """
        ...


@frozen
class StateTierContext:
    """What a tier is made from.

    :ivar location: what ``--disk-cache`` says: a folder, or whatever the tier takes it for.
    :ivar max_bytes: most bytes of what it keeps of this identity.
    :ivar identity: of all that makes states what they are: model, formats, kernels, text resources,
        geometry. A state of another one must not be found.
    :ivar page_bytes: of a page.
    """

    location: str
    max_bytes: int
    identity: bytes
    page_bytes: int
