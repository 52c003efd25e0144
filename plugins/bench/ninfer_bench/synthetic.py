"""Models of real dimensions with random weights, made on the device: what a card or an artifact's
catalogue declares."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterable
from functools import partial
from math import prod

import torch
from attrs import evolve, frozen
from torch import Tensor

from ninfer_bench.untouched import untouched
from ninfer_core.api import (
    CapacityError,
    ConfigError,
    ImportPlan,
    LayoutSpec,
    Model,
    PlaneInfo,
    Progress,
    StorageChoice,
    StorageLayout,
)
from ninfer_core.artifact.catalogue import TensorObject
from ninfer_core.artifact.container import Artifact
from ninfer_core.artifact.layouts.planar import plane_view
from ninfer_core.artifact.relay import relaid
from ninfer_core.artifact.rows import Planes
from ninfer_core.artifact.store import WeightStore, load_weights
from ninfer_core.cli.launch import prepare_catalogue
from ninfer_core.cli.models import find_card
from ninfer_core.config import EnginePlan, resolve
from ninfer_core.engine.build import build_model
from ninfer_core.ops.binder import Binder, KernelChoice
from ninfer_core.plugin_host import PluginReport
from ninfer_core.state.layout import StateLayout
from ninfer_core.state.step import PAGE_TOKENS
from ninfer_core.state.store import StateStore
from ninfer_core.state.views import PagedPlanes

CODE_SIZES = {"q4": 4.6, "q5": 9.2, "q6": 18.5, "q8": 73.0, "fp": 0.37}
"""Standard deviations of random codes, by the first letters of their formats."""

LARGE_BYTES = 1 << 30
"""Tables at the host that are larger have no values: they would not fit, and none counts."""


@frozen(eq=False)
class Synthetic:
    """A built model and what it is made of."""

    plan: EnginePlan
    model: Model
    store: StateStore
    binder: Binder

    @property
    def kernels(self) -> tuple[KernelChoice, ...]:
        """What was bound."""
        return tuple(self.binder.choices)


@frozen
class Sizes:
    """What steps there will be.

    :ivar rows: most sequences at once, of ``context`` tokens each. :ivar width: most tokens of a
        decode row. :ivar longest: tokens of a sequence that is alone. :ivar chunk: of a prompt.
    """

    rows: int
    width: int
    context: int
    longest: int = 0
    chunk: int = 0


def make_plan(arguments: Namespace, progress: Progress, sizes: Sizes) -> EnginePlan:
    """A plan from a catalogue; of a card, with ``arguments.format`` all matrices are stored in that
    format, and with ``arguments.layers`` it has no more."""
    config, report, artifact = prepare_catalogue(arguments, progress)
    if arguments.format or arguments.layers:
        artifact = _changed(str(config.model), report, arguments.format, arguments.layers)
    longest = max(sizes.longest, sizes.context)
    config = evolve(
        config, max_concurrency=sizes.rows, prefix_cache=False,
        max_context=config.max_context or longest,
        prefill_chunk=sizes.chunk or config.prefill_chunk,
    )
    plan = partial(resolve, report=report, absent=True, artifact=artifact,
                   max_logits=sizes.rows * sizes.width)
    if config.context_capacity is None:
        pages = max(sizes.rows * -(-sizes.context // PAGE_TOKENS), -(-longest // PAGE_TOKENS))
        config = evolve(config, context_capacity=pages * page_bytes(plan(config)))
    return plan(config)


def titled(arguments: Namespace, plan: EnginePlan) -> str:
    """The model and the format that its matrices are in instead of their own, for a reader."""
    return " ".join(filter(None, [str(plan.config.model), arguments.format]))


def page_bytes(plan: EnginePlan) -> int:
    """Of a page of the pool."""
    return StateLayout(plan.states, plan.kv, max_verify_rows=plan.max_verify_rows).page_bytes


def build(plan: EnginePlan, max_width: int, kind: type[Binder] = Binder) -> Synthetic:
    """Random weights, state and kernels on the plan's device.

    :param max_width: most tokens of a row that may still be rejected. :param kind: what binds.
    """
    config, device = plan.config, plan.hardware.device
    plan.hardware.prepare(config.threads)
    assert config.max_context is not None
    store = StateStore(
        plan.states, plan.kv, num_pages=plan.num_pages, max_sequences=config.max_concurrency,
        max_context=config.max_context, max_verify_rows=max_width, device=device,
    )
    _fill_caches(plan, store)
    binder = kind(plan.kernels, plan.registry.contracts, device=device,
                  capability=plan.hardware.capability, overrides=config.kernels)
    model = build_model(
        plan.model_pack, plan.model_config, weights=random_weights(plan), binder=binder,
        store=store, profile=plan.hardware, max_tokens=plan.max_tokens,
        max_context=config.max_context, max_logits=plan.max_logits,
    )
    return Synthetic(plan, model, store, binder)


def random_weights(plan: EnginePlan) -> WeightStore:
    """Every stored tensor of the plan's parameters, its values such that a product keeps the size
    of its input.

    A large table that stays in host memory is zeros that take no memory until they are gathered: a
    step reads few of its rows, and only the gathering counts.

    :raises CapacityError: if there is no memory for a tensor.
    """
    registry = plan.registry
    layouts: dict[str, LayoutSpec] = {name: each.spec for name, each in registry.layouts.items()}
    known = load_weights(
        plan.artifact, device="meta", layouts=layouts,
        formats={name: each.spec for name, each in registry.formats.items()},
        select=[parameter.name for parameter in plan.parameters], relay=plan.relay,
    )
    generator = torch.Generator(plan.hardware.device).manual_seed(1)
    planes: dict[str, Planes] = {}
    on_host = stored_tensors(plan.artifact, [p.name for p in plan.parameters if p.on_host])
    for tensor in stored_tensors(plan.artifact, [each.name for each in plan.parameters]):
        layout = known.layouts[tensor.layout]
        if tensor in on_host and tensor.bytes > LARGE_BYTES:
            planes[tensor.id] = blank_planes(tensor, layout)
            continue
        _, planes[tensor.id] = random_object(tensor, layout, generator)
        if name := known.relaid.get(tensor.id):
            own, new = planes[tensor.id], known.layouts[name]
            image = torch.empty(
                new.nbytes(tensor.format, tensor.shape), dtype=torch.uint8, device=generator.device)
            planes[tensor.id] = relaid(tensor, own, layout, new, image)
    return evolve(known, planes=planes)


def random_object(
    tensor: TensorObject, layout: StorageLayout, generator: torch.Generator
) -> tuple[Tensor, Planes]:
    """The image of a stored tensor on the generator's device, and its planes.

    :raises CapacityError: if there is no memory for it.
    """
    try:
        image = torch.zeros(tensor.bytes, dtype=torch.uint8, device=generator.device)
    except RuntimeError as error:
        raise CapacityError(
            "there is no memory for random weights", where=tensor.id,
            why=f"{tensor.bytes:,} bytes more cannot be had on device {generator.device}",
            fix="measure fewer layers (--layers N of a card), or use a machine with more memory",
        ) from error
    return image, {
        info.name: fill(plane_view(image, info), info, tensor, generator)
        for info in layout.planes(tensor.format, tensor.shape)
    }


def blank_planes(tensor: TensorObject, layout: StorageLayout) -> Planes:
    """Planes of zeros at the host that take no memory until they are touched; scalars, which values
    are divided by, are as in other tensors."""
    image = untouched(tensor.bytes)
    infos = layout.planes(tensor.format, tensor.shape)
    planes = {info.name: plane_view(image, info) for info in infos}
    for info in infos:
        if not info.shape:
            fill(planes[info.name], info, tensor, torch.Generator())
    return planes


def stored_tensors(artifact: Artifact, names: Iterable[str]) -> list[TensorObject]:
    """The objects that parameters lie in, each once."""
    found = {tensor.id: tensor for name in names for tensor, _, _ in artifact.parts(name)}
    return list(found.values())


def _changed(model: str, report: PluginReport, format_name: str, layers: int) -> Artifact:
    """The outline of a card that is stored otherwise, or has fewer layers."""
    card = find_card(model, report.registry)
    converters = [each.spec for each in report.registry.converters.values() if each.spec.outline]
    if card is None or len(converters) != 1:
        why = "--format and --layers take the name of a card, and one converter"
        raise ConfigError("this model cannot be changed", where=model, why=why)
    outline = converters[0].outline
    assert outline is not None
    plan: ImportPlan = card.spec.outline.load()()
    if layers:
        plan = _shortened(plan, layers)
    if format_name:
        plan = evolve(plan, recipe=(StorageChoice("*", format_name),))
    made: Artifact = outline.load()(plan, report.registry)
    return made


def _shortened(plan: ImportPlan, layers: int) -> ImportPlan:
    """The first layers alone; lists with an entry for every layer are cut too.

    :raises ConfigError: if there are not so many.
    """
    text = plan.components["text"]
    count = text["config"]["num_hidden_layers"]
    if layers > count:
        raise ConfigError(f"--layers {layers} is more than there are", why=f"the card has {count}",
                          fix=f"give --layers 1..{count}")
    config = {
        name: value[:layers] if isinstance(value, list | tuple) and len(value) == count else value
        for name, value in text["config"].items()
    }
    config["num_hidden_layers"] = layers
    kept = tuple(each for each in plan.parameters if _layer(each.spec.name) < layers)
    components = {**plan.components, "text": {**text, "config": config}}
    return evolve(plan, components=components, parameters=kept)


def _layer(name: str) -> int:
    """Of a parameter of the text model; -1 if it is in none."""
    words = name.split("/")
    return int(words[2]) if words[:2] == ["text", "layers"] else -1


def fill(
    plane: Tensor, info: PlaneInfo, tensor: TensorObject, generator: torch.Generator
) -> Tensor:
    """Random values that the format has, in place."""
    size = tensor.shape[-1] ** -0.5 if len(tensor.shape) > 1 else 0.1
    if info.name == "divisor":
        return plane.fill_(3 / size)
    if plane.dtype == torch.float8_e4m3fn:
        codes = plane.view(torch.uint8).random_(generator=generator)
        if info.name == "scales":
            codes.bitwise_and_(0x07).bitwise_or_(0x38)  # 1 to 1.9
        else:
            codes.bitwise_and_(0xB7)  # below 1, and no NaN
        return plane
    if info.name == "scales":
        return plane.fill_(size / CODE_SIZES[tensor.format[:2]])
    if plane.dtype.is_floating_point:
        return plane.normal_(std=size, generator=generator)
    if plane.dtype == torch.int32:
        return plane.copy_(torch.arange(prod(info.shape)).view(info.shape))
    if plane.dtype == torch.int8:
        return plane.random_(-127, 128, generator=generator)
    return plane.random_(generator=generator)


def _fill_caches(plan: EnginePlan, store: StateStore) -> None:
    """Values of the size that norms give."""
    for spec in plan.states:
        for layer in range(spec.layers):
            view = store.view(spec.name, layer)
            if isinstance(view, PagedPlanes):
                for parts in view.planes.values():
                    _fill_cache(parts)


def _fill_cache(parts: object) -> None:
    assert isinstance(parts, dict)
    for name, stored in parts.items():
        if name == "scales":
            stored.fill_(0.02)
        elif stored.dtype == torch.float8_e4m3fn:
            stored.view(torch.uint8).random_(0, 0x40)
        elif stored.dtype.is_floating_point:
            stored.normal_()
        else:
            stored.random_(-127, 128)
