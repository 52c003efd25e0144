"""Loads plugins: import, API version, hooks and specs of each, then names that two share."""

from __future__ import annotations

import importlib
import itertools
import time
from collections.abc import Callable, Iterator, Mapping
from functools import cache, partial
from types import ModuleType
from typing import Any

import pluggy

from ninfer_core import api
from ninfer_core.api import API_VERSION, AmbiguityError, ApiVersion, PluginError, hookspecs
from ninfer_core.api.markers import PROJECT
from ninfer_core.plugin_host.guard import broken, cause_of, guarded
from ninfer_core.plugin_host.records import PluginRecord, PluginReport
from ninfer_core.plugin_host.references import bound_names, dead_end, references
from ninfer_core.plugin_host.scan import CORE, PROFILES
from ninfer_core.plugin_host.selection import PluginSelection

HOOKS: Mapping[str, tuple[str, type]] = {
    "packs": ("ninfer_model_packs", api.ModelPackSpec),
    "profiles": ("ninfer_hardware_profiles", api.HardwareProfileSpec),
    "ops": ("ninfer_op_contracts", api.OpContract),
    "kernels": ("ninfer_kernels", api.KernelSpec),
    "formats": ("ninfer_weight_formats", api.FormatSpec),
    "layouts": ("ninfer_weight_layouts", api.LayoutSpec),
    "kv_codecs": ("ninfer_kv_codecs", api.KVCodecSpec),
    "speculators": ("ninfer_speculators", api.SpeculatorSpec),
    "converters": ("ninfer_converters", api.ConverterSpec),
    "commands": ("ninfer_commands", api.CommandSpec),
    "constraints": ("ninfer_constraint_engines", api.ConstraintSpec),
    "state_tiers": ("ninfer_state_tiers", api.StateTierSpec),
    "protocols": ("ninfer_protocols", api.ProtocolSpec),
}
"""Field of the registry -> hook, spec type."""


def load_plugins(selection: PluginSelection | None = None) -> PluginReport:
    """Import and check every selected plugin; a broken one is quarantined with a warning.

    :raises PluginError: if a plugin that was asked for by name is broken.
    :raises AmbiguityError: if one that was asked for by name shares a name with another.
    """
    selection = selection or PluginSelection()
    report = PluginReport(selection.scan())
    for record in report.records:
        if record.state == "found":
            _load(report, record, selection.import_limit_s)
    _part_doubles(report)
    return report


def _load(report: PluginReport, record: PluginRecord, limit_s: float) -> None:
    try:
        module = _import(record, limit_s)
        _check_api(record, module)
        specs = _collect(record, module)
        _check(record, specs)
    except PluginError as error:
        report.quarantine(record, error)
    except Exception as error:  # a module may answer any question about itself with any error
        report.quarantine(record, broken(record, f"its module: {cause_of(error)}"))
    else:
        report.change(record, state="active", specs=specs)


def _import(record: PluginRecord, limit_s: float) -> ModuleType:
    start = time.perf_counter()
    module = guarded(record, "import", lambda: importlib.import_module(record.module))
    if (seconds := time.perf_counter() - start) > limit_s:
        raise broken(record, f"its import took {seconds:.2f} s, more than {limit_s:g} s")
    return module


def _check_api(record: PluginRecord, module: ModuleType) -> None:
    match getattr(module, "NINFER_API", None):
        case (int(major), int(minor)):
            if not API_VERSION.supports(ApiVersion(major, minor)):
                raise broken(record, f"it needs API {major}.{minor}, this core has {API_VERSION}")
        case other:
            raise broken(record, f"NINFER_API must be (major, minor), it is {other!r}")


def _collect(record: PluginRecord, module: ModuleType) -> Mapping[str, tuple[Any, ...]]:
    """What its hooks give. A manager each: what fails validation cannot stay behind in one."""
    manager = pluggy.PluginManager(PROJECT)
    manager.add_hookspecs(hookspecs)
    try:
        manager.register(module)
        manager.check_pending()
    except pluggy.PluginValidationError as error:
        raise broken(record, " ".join(str(error).split())) from error
    return {
        kind: tuple(itertools.chain.from_iterable(
            _call(record, hook, spec_type, implementation.function)
            for implementation in getattr(manager.hook, hook).get_hookimpls()
        ))
        for kind, (hook, spec_type) in HOOKS.items()
    }


def _call(
    record: PluginRecord, hook: str, spec_type: type, function: Callable[[], Any]
) -> tuple[Any, ...]:
    specs = guarded(record, hook, lambda: tuple(function()))
    for odd in (type(spec).__name__ for spec in specs if not isinstance(spec, spec_type)):
        raise broken(record, f"{hook} must give {spec_type.__name__}, it gave {odd}")
    return specs


def _check(record: PluginRecord, specs: Mapping[str, tuple[Any, ...]]) -> None:
    if record.group == PROFILES and any(spec.name != record.name for spec in specs["profiles"]):
        raise broken(record, "its profile must have the name of its entry point")
    bound = cache(bound_names)  # hundreds of references lead to a few modules
    for reference in references(tuple(specs.values())):
        if reason := guarded(record, "reference", partial(dead_end, reference, bound)):
            raise broken(record, reason)


def _names(record: PluginRecord) -> Iterator[str]:
    yield f"entry point {record.name!r}"
    for kind, specs in record.specs.items():
        yield from (f"{kind} {spec.name!r}" for spec in specs)


def _part_doubles(report: PluginReport) -> None:
    """Quarantine all plugins that share a name (but the core): no order decides between them."""
    owners: dict[str, list[PluginRecord]] = {}
    for record in report.records:
        for name in _names(record) if record.state == "active" else ():
            owners.setdefault(name, []).append(record)
    for name, records in owners.items():
        for record in records if len(records) > 1 else ():
            if record.module != CORE.module and record in report.records:
                report.quarantine(record, _ambiguous(name, records))


def _ambiguous(name: str, records: list[PluginRecord]) -> AmbiguityError:
    modules = dict.fromkeys(each.module for each in records if each.module != CORE.module)
    return AmbiguityError(
        f"{name} is registered {len(records)} times",
        where="; ".join(str(each.provenance) for each in records),
        fix=f"leave one out: {' or '.join(f'--no-plugin {module}' for module in modules)}",
    )
