"""What hashes of n-grams are made with: all of it follows from a few numbers of the config."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from itertools import accumulate, count, islice
from math import isqrt

from ninfer_pack_flash_next.config import FlashNextConfig

_WORD = 2**64 - 1
_GAMMA = 0x9E3779B97F4A7C15
_ORDINAL_STEP = 10_007


def multipliers(config: FlashNextConfig, ordinal: int) -> tuple[int, ...]:
    """Odd factors of the last ids, newest first, of the layer with this number among those with
    n-grams; small enough that a product with an id stays below 2^63."""
    half = max(1, (2**63 - 1) // config.vocab_size // 2)
    base = config.seed + _ORDINAL_STEP * ordinal
    drawn = (_split_mix(base + _GAMMA * (i + 1)) for i in range(config.ngram_size))
    return tuple(2 * (value % half) + 1 for value in drawn)


def moduli(config: FlashNextConfig, ordinal: int) -> tuple[int, ...]:
    """Rows of each head: primes in succession, in all layers different ones."""
    heads, begin = config.ngram_heads, config.ngram_heads * ordinal
    return _primes(config.ngram_vocab_size_base, begin + heads)[begin:]


def offsets(config: FlashNextConfig, ordinal: int) -> tuple[int, ...]:
    """First row of each head."""
    return tuple(accumulate(moduli(config, ordinal)[:-1], initial=0))


def num_rows(config: FlashNextConfig, ordinal: int) -> int:
    """Rows of the table; the last ones may be padding."""
    step = config.make_ngram_vocab_size_divisible_by
    return -(-sum(moduli(config, ordinal)) // step) * step


def _split_mix(value: int) -> int:
    """SplitMix64 (Steele, Lea and Flood, 2014)."""
    value = (value + _GAMMA) & _WORD
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _WORD
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _WORD
    return value ^ (value >> 31)


@lru_cache(maxsize=8)
def _primes(least: int, number: int) -> tuple[int, ...]:
    return tuple(islice(_primes_from(least), number))


def _primes_from(least: int) -> Iterator[int]:
    for value in count(max(2, least)):
        if all(value % divisor for divisor in range(2, isqrt(value) + 1)):
            yield value
