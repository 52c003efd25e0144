"""``ninfer bench tune``: sizes of launches of every product of a model, timed and checked."""

from __future__ import annotations

import json
from argparse import Namespace
from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import partial
from math import inf
from typing import Any

import torch
from attrs import evolve, field, frozen
from torch import Tensor

from ninfer_bench.products import (
    Factory,
    NotingBinder,
    Product,
    Variant,
    products_of,
    variants_of,
)
from ninfer_bench.report import Report
from ninfer_bench.stepping import repeated, timed
from ninfer_bench.synthetic import Sizes, build, make_plan, titled
from ninfer_core.api import UnsupportedError
from ninfer_core.cli.console import Console
from ninfer_core.config import EnginePlan

Example = tuple[Tensor, Tensor]

SECONDS = 0.005
"""That each is repeated for."""

SLACK = 1.25
"""Variants that take more than so many times as long as the fastest, for the first number of
tokens, are not timed for the others."""

ROTATED_BYTES = {"cuda": 256 << 20}
"""Weights that pass by before one comes again, by device."""

TOLERANCE = 0.02
"""Largest error of a result in bf16, as a share of the reference's norm."""


@frozen
class Timed:
    """A variant.

    :ivar us: microseconds of one product by number of tokens; of few where it is slow or fails.
    :ivar fault: why it is not to be used, if it is not. :ivar is_wrong: whether it ran, and gave
        something else than the reference.
    """

    table: str
    row: Mapping[str, Any]
    us: dict[int, float] = field(factory=dict)
    fault: str = ""
    is_wrong: bool = False

    @property
    def first_us(self) -> float:
        """For the first number of tokens; 0 before it is known."""
        return next(iter(self.us.values()), 0.0)


@frozen
class Tuned:
    """A product. :ivar now: microseconds as it is bound without tuning. :ivar best: the variant
    that loses least to the fastest, over all numbers of tokens; None if there is none."""

    product: str
    nbytes: int
    now: dict[int, float]
    variants: list[Timed]
    best: Timed | None


def run(arguments: Namespace) -> Report:
    """Every product whose kernel has variants.

    :raises UnsupportedError: if none has.
    """
    most = max(arguments.tokens)
    with Console(arguments.log_level) as console, torch.inference_mode():
        plan = make_plan(arguments, console.progress, Sizes(1, most, most + 64))
        candidates = [each.spec for each in plan.kernels.values()]
        if not any(each.variants and plan.hardware.device in each.devices for each in candidates):
            raise _untunable(plan)  # before a large model is built
        binder = build(plan, most, NotingBinder).binder
        assert isinstance(binder, NotingBinder)
        found = [
            _tune(plan, product, variants, arguments, binder)
            for product in products_of(binder)
            if (variants := variants_of(product, binder))
        ]
    if not found:
        raise _untunable(plan)
    if arguments.out and not arguments.compile:
        arguments.out.write_text(rows_of(found), "utf-8")
    return _report(arguments, plan, found)


def _untunable(plan: EnginePlan) -> UnsupportedError:
    return UnsupportedError(
        "there is nothing to tune", where=f"{plan.config.model} on profile {plan.config.profile}",
        why="none of the kernels of its products has other sizes of launches to try",
        fix="use a profile whose kernels have some, as those of GPUs do (--profile NAME)",
    )


def _tune(
    plan: EnginePlan, product: Product, variants: Sequence[Variant], arguments: Namespace,
    binder: NotingBinder,
) -> Tuned:
    part, parts = arguments.part
    bound = binder.choose(product.request).spec.factory.load()
    kinds: list[Variant] = [("", {}, bound), *variants[part - 1 :: parts]]
    examples = [_example(plan, product, tokens) for tokens in arguments.tokens]
    tried = [_checked(product, each, examples) for each in kinds]
    for tokens in () if arguments.compile else arguments.tokens:
        most = SLACK * min((each.first_us for each in tried[1:] if each.us), default=inf)
        for index, (_, _, factory) in enumerate(kinds):
            if not tried[index].fault and (index == 0 or tried[index].first_us <= most):
                tried[index] = _timed(plan, product, tried[index], factory, tokens)
    usual, *others = tried
    usable = [each for each in others if len(each.us) == len(examples) and not each.fault]
    return Tuned(product.name, product.nbytes, usual.us, others, best_of(usable))


def _example(plan: EnginePlan, product: Product, tokens: int) -> Example:
    """Activations and what the reference makes of them."""
    x, out = product.operands(tokens, getattr(torch, plan.hardware.compute_dtype))
    return x, product.reference()(x, torch.zeros_like(out)).double()


def _checked(product: Product, variant: Variant, examples: Sequence[Example]) -> Timed:
    """What differs from the reference, or does not run, has a fault."""
    table, row, factory = variant
    try:
        call = product.built(factory, product.weights[0])
        for x, expected in examples:
            result = call(x, torch.full_like(expected, torch.nan, dtype=x.dtype)).double()
            error = float((result - expected).norm() / expected.norm())
            if not error < TOLERANCE:
                fault = f"differs from the reference by {error:.2g} for {len(x)} tokens"
                return Timed(table, row, fault=fault, is_wrong=True)
    except Exception as error:  # too large for this card, say: it fails alone
        return Timed(table, row, fault=f"{type(error).__name__}: {error}")
    return Timed(table, row)


def _timed(
    plan: EnginePlan, product: Product, variant: Timed, factory: Factory, tokens: int
) -> Timed:
    try:
        us = 1e6 * _seconds(plan, product, factory, tokens)
    except Exception as error:  # cannot be captured, say
        return evolve(variant, fault=f"{type(error).__name__}: {error}")
    return evolve(variant, us={**variant.us, tokens: us})


def _seconds(plan: EnginePlan, product: Product, factory: Factory, tokens: int) -> float:
    """Of one call, weights coming from memory."""
    weights = product.rotated(ROTATED_BYTES.get(plan.hardware.device, 0))
    operands = product.operands(tokens, getattr(torch, plan.hardware.compute_dtype))
    calls = [partial(product.built(factory, weight), *operands) for weight in weights]
    return timed(plan, repeated(plan, calls), SECONDS) / len(calls)


def best_of(variants: Sequence[Timed]) -> Timed | None:
    """One serves all numbers of tokens: that with the least sum of its times, each over the
    fastest."""
    if not variants:
        return None
    fastest = {n: min(each.us[n] for each in variants) for n in variants[0].us}
    return min(variants, key=lambda each: sum(each.us[n] / fastest[n] for n in fastest))


def rows_of(found: Sequence[Tuned]) -> str:
    """The best of each product as the kernels' tables have them, in TOML; of products that their
    tables do not tell apart, the first's."""
    tables: dict[str, dict[str, str]] = defaultdict(dict)
    for each in found:
        if best := each.best:
            alike = {name: value for name, value in best.row.items()
                     if all(one.row[name] == value for one in each.variants)}
            values = {**best.row, "us": [round(us, 1) for us in best.us.values()]}
            written = "\n".join(f"{name} = {json.dumps(value)}" for name, value in values.items())
            tables[best.table].setdefault(str(alike), f"[[{best.table}]]\n{written}\n")
    return "\n".join(row for table in sorted(tables) for row in tables[table].values())


def _report(arguments: Namespace, plan: EnginePlan, found: Sequence[Tuned]) -> Report:
    rate = plan.hardware.figures().read_bytes_per_s
    rows: list[tuple[str, ...]] = [(
        "product", "tried", "best", *(f"us of {n}" for n in arguments.tokens), "now",
        "of the bandwidth")]
    problems: list[str] = []
    for each in found:
        problems += [f"{each.product} {_text(one.row)} {one.fault}"
                     for one in each.variants if one.is_wrong]
        best, shown = each.best, partial(_times, arguments.tokens)
        first = best.us[arguments.tokens[0]] if best else 0.0
        rows.append((
            each.product, str(len(each.variants)), _text(best.row) if best else "none",
            *(shown(best.us) if best else shown({})), " ".join(shown(each.now)),
            f"{100 * each.nbytes / rate / first * 1e6:.1f} %" if first else ""))
    values = {
        "benchmark": "tune", "model": plan.config.model, "format": arguments.format,
        "profile": plan.config.profile, "tokens": arguments.tokens, "part": arguments.part,
        "products": [{
            "product": each.product, "bytes": each.nbytes, "now_us": each.now,
            "best": each.best and {**each.best.row, "table": each.best.table, "us": each.best.us},
            "variants": [{**one.row, "us": one.us, "fault": one.fault} for one in each.variants],
        } for each in found],
    }
    heading = f"{titled(arguments, plan)}, products whose kernel has variants"
    return Report(values, {heading: rows}, tuple(problems))


def _text(row: Mapping[str, Any]) -> str:
    return " ".join(f"{name} {value}" for name, value in row.items())


def _times(tokens: Sequence[int], us: Mapping[int, float]) -> list[str]:
    return [f"{us[n]:.1f}" if n in us else "" for n in tokens]
