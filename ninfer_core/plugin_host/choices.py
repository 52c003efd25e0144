"""Start-up choices among what is registered; each says why, and what it was preferred to."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Generic, TypeVar

from attrs import frozen

from ninfer_core import api
from ninfer_core.api import AmbiguityError, Detection, PluginError, UnsupportedError
from ninfer_core.plugin_host.guard import guarded
from ninfer_core.plugin_host.records import PluginReport, Provenance, Registered, Registry
from ninfer_core.plugin_host.scan import PROFILES

S = TypeVar("S")
Ask = Callable[[Any], Detection]


@frozen
class Choice(Generic[S]):
    """A chosen spec; ``rejected`` has the others as ``(name, reason)``."""

    spec: S
    provenance: Provenance
    reason: str
    rejected: tuple[tuple[str, str], ...] = ()


def choose_pack(
    report: PluginReport, description: api.ModelDescription, name: str | None = None
) -> Choice[api.ModelPackSpec]:
    """The pack ``name``, or the one whose claim on the model has the highest score.

    A claim that raises quarantines its plugin, or is raised if that was asked for by name.

    :raises AmbiguityError: if two highest claims are equal.
    :raises UnsupportedError: if no pack claims the model, or none has the name.
    """

    def ask(spec: api.ModelPackSpec) -> Detection:
        claim = spec.claim.load()(description)
        if claim is None:
            return Detection(None, f"it does not claim {' '.join(description.architectures)}")
        return Detection(claim.score, claim.reason)

    return _choose(report, "packs", name, ask)


def choose_profile(
    report: PluginReport, name: str | None = None
) -> Choice[api.HardwareProfileSpec]:
    """The profile ``name``, whether it fits this machine or not, or the one whose detection has
    the highest score; errors as for :func:`choose_pack`."""

    def ask(spec: api.HardwareProfileSpec) -> Detection:
        found = spec.detect.load()()
        return Detection(found.score, found.reason)

    return _choose(report, "profiles", name, ask)


def kernels_of(registry: Registry, profile: Provenance) -> Mapping[str, Registered[api.KernelSpec]]:
    """The kernels of a run: all but those of distributions of other profiles."""
    others = {each.provenance.distribution for each in registry.profiles.values()}
    others.discard(profile.distribution)
    kernels = registry.kernels.items()
    return {name: each for name, each in kernels if each.provenance.distribution not in others}


def find_embedded(registry: Registry, name: str | None = None) -> api.EmbeddedModel:
    """The embedded model ``name``, or the default one; an error if there is none or several."""
    every = [(model, pack) for pack in registry.packs.values() for model in pack.spec.embedded]
    found = [each for each in every if (each[0].default if name is None else each[0].name == name)]
    what = "default embedded model" if name is None else f"embedded model {name!r}"
    if not found:
        known = ", ".join(sorted(model.name for model, _ in every)) or "none"
        raise UnsupportedError(f"there is no {what}", why=f"installed: {known}")
    if len(found) > 1:
        where = "; ".join(f"{model.name} of {pack.provenance}" for model, pack in found)
        fix = "leave one out with --no-plugin NAME"
        raise AmbiguityError(f"there are {len(found)} of {what}", where=where, fix=fix)
    return found[0][0]


def choose_only(
    report: PluginReport, kind: str, flag: str, name: str | None = None
) -> Registered[Any] | None:
    """The spec ``name`` in the registry's field ``kind``, or the only one; None if there is none.

    :raises AmbiguityError: if there are several and none was asked for; errors as for
        :func:`require` if one was.
    """
    if name is not None:
        return require(report, kind, name, flag)
    known: Mapping[str, Registered[Any]] = getattr(report.registry, kind)
    if len(known) > 1:
        where = "; ".join(f"{each} of {known[each].provenance}" for each in known)
        fix = f"choose one: {' or '.join(f'{flag} {each}' for each in known)}"
        what = f"there are several {kind.replace('_', ' ')}"
        raise AmbiguityError(what, where=where, fix=fix)
    return next(iter(known.values()), None)


def require(report: PluginReport, kind: str, name: str, flag: str) -> Registered[Any]:
    """The spec ``name`` in the registry's field ``kind``.

    :raises PluginError: if the plugin that has it is not active, with the cause.
    :raises UnsupportedError: if nothing installed has it.
    """
    known: Mapping[str, Registered[Any]] = getattr(report.registry, kind)
    if name in known:
        return known[name]
    for record in (record for record in report.records if record.state != "active"):
        if name in (record.name, *(spec.name for spec in record.specs.get(kind, ()))):
            why = f"{record.state}: {record.reason}"
            raise record.error or PluginError(
                f"{flag} {name} cannot be used", where=str(record.provenance), why=why
            )
    unselected = {r.name for r in report.records if kind == "profiles" and r.group == PROFILES}
    why = f"installed: {', '.join(sorted({*known, *unselected})) or 'none'}"
    raise UnsupportedError(f"{flag} {name} is unknown", why=why)


def _choose(report: PluginReport, kind: str, name: str | None, ask: Ask) -> Choice[Any]:
    flag = f"--{kind[:-1]}"
    if name is not None:
        only = require(report, kind, name, flag)
        report.change(report.find(only.provenance), asked=True)
        reason = _answer(report, only, ask).reason
        return Choice(only.spec, only.provenance, f"asked for with {flag}; {reason}")
    known: Mapping[str, Registered[Any]] = getattr(report.registry, kind)
    answers = {each: _answer(report, known[each], ask) for each in known}
    scores = {each: answer.score for each, answer in answers.items() if answer.score is not None}
    best = [each for each, score in scores.items() if score == max(scores.values())]
    if not best:
        why = "; ".join(f"{each}: {answers[each].reason}" for each in answers) or "none installed"
        raise UnsupportedError(f"none of the {kind} fits", why=why, fix=f"see {flag} NAME")
    if len(best) > 1:
        where = "; ".join(f"{each} of {known[each].provenance}" for each in best)
        fix = f"choose one: {' or '.join(f'{flag} {each}' for each in best)}"
        raise AmbiguityError(f"several {kind} answer equally well", where=where, fix=fix)
    reasons = {each: answer.reason for each, answer in answers.items()}
    reasons |= {each: f"score {score}: {reasons[each]}" for each, score in scores.items()}
    reason, won = reasons.pop(best[0]), known[best[0]]
    return Choice(won.spec, won.provenance, reason, tuple(reasons.items()))


def _answer(report: PluginReport, one: Registered[Any], ask: Ask) -> Detection:
    record = report.find(one.provenance)
    try:
        return guarded(record, f"question to {one.spec.name!r}", lambda: ask(one.spec))
    except PluginError as error:
        report.quarantine(record, error)
        return Detection(None, f"quarantined: {error.why}")
