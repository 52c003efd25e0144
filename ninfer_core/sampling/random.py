"""Counter-based random numbers: a pure function of (seed, position, purpose), so that a replayed,
resumed or batched request draws what it would have drawn alone."""

from __future__ import annotations

from enum import IntEnum

_GAMMA = 0x9E3779B97F4A7C15
_MASK = (1 << 64) - 1


class Purpose(IntEnum):
    """What a number at a position is for; those of different purposes are independent."""

    TOKEN = 0
    ACCEPT = 1
    CORRECTION = 2
    BONUS = 3
    PROPOSAL = 4


def mix(value: int) -> int:
    """The output function of SplitMix64 (Steele, Lea and Flood, 2014), a bijection of 64 bits."""
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)


def uniform(seed: int, position: int, purpose: Purpose) -> float:
    """A number in [0, 1) of 48 bits: times an FP64 total, it stays below the total."""
    state = seed
    for word in (position, purpose):
        state = mix((state + _GAMMA) & _MASK) ^ word
    return (mix((state + _GAMMA) & _MASK) >> 16) * 2.0**-48
