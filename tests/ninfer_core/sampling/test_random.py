"""The counter-based generator."""

from itertools import product

import torch

from ninfer_core.sampling.random import Purpose, mix, uniform


def test_mix_gives_the_published_sequence_of_splitmix64():
    state, numbers = 1234567, []
    for _ in range(3):
        state = (state + 0x9E3779B97F4A7C15) % 2**64
        numbers.append(mix(state))
    assert numbers == [6457827717110365317, 3203168211198807973, 9817491932198370423]


def test_draws_are_pure_and_differ_in_every_word_of_the_key():
    keys = list(product((0, 1, 7, -1, 2**64 - 2), (0, 1, 2, 100_000), Purpose))
    numbers = [uniform(*key) for key in keys]
    assert numbers == [uniform(*key) for key in keys]
    assert len(set(numbers)) == len(keys)


def test_a_signed_seed_is_its_unsigned_word():
    assert uniform(-1, 3, Purpose.TOKEN) == uniform(2**64 - 1, 3, Purpose.TOKEN)


def test_numbers_are_uniform_along_positions_seeds_and_pairs():
    along_positions = [uniform(5, i, Purpose.TOKEN) for i in range(20_000)]
    along_seeds = [uniform(i, 5, Purpose.TOKEN) for i in range(20_000)]
    for numbers in (along_positions, along_seeds):
        values = torch.tensor(numbers, dtype=torch.float64)
        assert values.min() >= 0 and values.max() < 1
        cells = (values * 10).long()
        pairs = torch.bincount(cells[:-1] * 10 + cells[1:], minlength=100)
        expected = (len(numbers) - 1) / 100
        chi_square = ((pairs - expected) ** 2 / expected).sum()
        assert chi_square < 150  # 99 degrees of freedom: p = 0.0007


def test_resolution_is_finer_than_24_bits():
    numbers = {uniform(0, i, Purpose.TOKEN) * 2**48 for i in range(100)}
    assert all(number == int(number) for number in numbers)
    assert any(int(number) % 2**24 for number in numbers)
