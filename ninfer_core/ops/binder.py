"""Choice of a kernel for every op of a model, once, before the first step."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any, Protocol

from attrs import frozen

from ninfer_core.api import (
    AmbiguityError,
    ConfigError,
    KernelRequest,
    KernelSpec,
    OpContract,
    PluginError,
    UnsupportedError,
)


class RegisteredKernel(Protocol):
    """A kernel and the plugin it came from."""

    @property
    def spec(self) -> KernelSpec: ...
    @property
    def provenance(self) -> object: ...


@frozen
class KernelChoice:
    """The kernel for a request; ``rejected`` has the name of every other one, and why."""

    request: KernelRequest
    spec: KernelSpec
    provenance: object
    rejected: tuple[tuple[str, str], ...]


class Binder:
    """Chooses and builds kernels.

    :param kernels: all registered kernels by name.
    :ivar contracts: of ops by name.
    :ivar device, capability: of the machine, for those who make requests.
    :param overrides: op -> name of the only kernel that may serve it.
    :ivar choices: one for each different request so far.
    :raises ConfigError: if an override names a kernel that the op does not have.
    """

    def __init__(
        self, kernels: Mapping[str, RegisteredKernel], contracts: Mapping[str, OpContract], *,
        device: str, capability: int = 0, overrides: Mapping[str, str] | None = None,
    ) -> None:
        self.contracts, self.device, self.capability = contracts, device, capability
        self.choices: list[KernelChoice] = []
        self._kernels, self._overrides = kernels, dict(overrides or {})
        for op, name in self._overrides.items():
            if name not in kernels or kernels[name].spec.op != op:
                raise ConfigError(
                    f"op {op!r} has no kernel {name!r}", where=f"--kernel {op}={name}",
                    fix="see `ninfer kernels` for those there are",
                )

    def choose(self, request: KernelRequest) -> KernelChoice:
        """The kernel for a request; equal requests give the same choice.

        :raises UnsupportedError: if none accepts, with every candidate's reason.
        :raises AmbiguityError: if several accept with the same highest priority.
        :raises PluginError: if a kernel's ``accepts`` breaks.
        """
        for choice in self.choices:
            if choice.request == request:
                return choice
        candidates = [each for each in self._kernels.values() if each.spec.op == request.op]
        reasons = {each.spec.name: self._refusal(each, request) for each in candidates}
        best = _best([each for each in candidates if not reasons[each.spec.name]], request, reasons)
        lower = f"its priority is below that of {best.spec.name}"
        del reasons[best.spec.name]
        rejected = tuple((name, reason or lower) for name, reason in reasons.items())
        self.choices.append(KernelChoice(request, best.spec, best.provenance, rejected))
        return self.choices[-1]

    def bind(self, request: KernelRequest, **constants: Any) -> Callable[..., Any]:
        """Choose a kernel and build it for the constants of the op's contract.

        :raises PluginError: as `check`, and if the factory breaks.
        """
        self.check(request, constants)
        choice = self.choose(request)
        kernel: Callable[..., Any] = _guarded(
            choice, "cannot build a kernel",
            lambda: choice.spec.factory.load()(request, **constants),
        )
        return kernel

    def check(self, request: KernelRequest, constants: Collection[str]) -> None:
        """Raise `PluginError` if the constants are not the contract's, or a size is none of it."""
        contract = self.contracts.get(request.op)
        if contract is None:
            return
        is_odd = {
            "constants": set(constants) != set(contract.constants),
            "sizes": not set(request.sizes) <= set(contract.sizes),
        }
        given = {"constants": constants, "sizes": request.sizes}
        for what in (each for each in is_odd if is_odd[each]):
            raise PluginError(
                f"op {request.op!r} is bound with the {what} {sorted(given[what])}",
                why=f"its contract has {sorted(getattr(contract, what))}",
                fix="correct what binds it",
            )

    def _refusal(self, kernel: RegisteredKernel, request: KernelRequest) -> str:
        """Why a kernel cannot serve a request; "" if it can."""
        spec = kernel.spec
        low, high = spec.capability or (request.capability, request.capability)
        untaken = {weight.format.name for weight in request.weights} - set(spec.formats)
        if spec.name != (pinned := self._overrides.get(spec.op, spec.name)):
            return f"--kernel {spec.op}={pinned} asks for another"
        if request.device not in spec.devices:
            return f"runs on {' or '.join(spec.devices)}, not on {request.device}"
        if not low <= request.capability <= high:
            return f"needs compute capability {low} to {high}, not {request.capability}"
        if spec.formats and untaken:
            return f"does not take {', '.join(sorted(untaken))}"
        return _own_refusal(kernel, request)


def _own_refusal(kernel: RegisteredKernel, request: KernelRequest) -> str:
    accepts = kernel.spec.accepts
    if accepts is None:
        return ""
    reason = _guarded(kernel, "a kernel cannot judge a request", lambda: accepts.load()(request))
    if not isinstance(reason, str | None):
        raise PluginError(
            "a kernel's `accepts` returned neither None nor a reason", why=repr(reason),
            where=f"{kernel.spec.name} of {kernel.provenance}",
        )
    return reason or ""


def _guarded(kernel: RegisteredKernel | KernelChoice, what: str, call: Callable[[], Any]) -> Any:
    try:
        return call()
    except Exception as error:
        raise PluginError(
            what, where=f"{kernel.spec.name} of {kernel.provenance}",
            why=f"{type(error).__name__}: {error}", fix=f"try --kernel {kernel.spec.op}=NAME",
        ) from error


def _best(
    accepting: list[RegisteredKernel], request: KernelRequest, reasons: Mapping[str, str]
) -> RegisteredKernel:
    formats = [f"{weight.format.name} {list(weight.shape)}" for weight in request.weights]
    where = ", ".join([request.device, request.dtype, *formats])
    if not accepting:
        why = "; ".join(f"{name} {reason}" for name, reason in reasons.items())
        raise UnsupportedError(
            f"no kernel can run op {request.op!r}", where=where, why=why or "none is registered",
            fix="" if why else "correct the op's name, or install the plugin that has it",
        )
    top = max(each.spec.priority for each in accepting)
    best = [each for each in accepting if each.spec.priority == top]
    if len(best) > 1:
        raise AmbiguityError(
            f"several kernels for op {request.op!r} have priority {top}", where=where,
            why=" and ".join(f"{each.spec.name} of {each.provenance}" for each in best),
            fix=f"choose with --kernel {request.op}=NAME",
        )
    return best[0]
