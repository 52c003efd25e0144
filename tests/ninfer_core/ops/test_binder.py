"""Which kernel is chosen, and what is said about the others."""

import sys
from types import ModuleType

import pytest
from attrs import evolve, frozen

from ninfer_core.api import (
    AmbiguityError,
    ConfigError,
    FormatSpec,
    KernelRequest,
    KernelSpec,
    OpContract,
    PluginError,
    UnsupportedError,
    WeightInfo,
)
from ninfer_core.ops.binder import Binder
from ninfer_fixtures.contracts import CONTRACTS

CALLS = []


@frozen
class Registered:
    spec: KernelSpec
    provenance: str = "some-plugin 1.0"


def factory(request, **constants):
    return lambda: (request, constants)


def broken_factory(request, **constants):
    raise ZeroDivisionError("no such tile")


def never(request):
    CALLS.append(request)
    return "dislikes everything"


def raises(request):
    raise KeyError("head_dim")


def says_true(request):
    return True


def kernel(name, **facts):
    defaults = {"op": "custom", "factory": f"{__name__}:factory"}
    return name, Registered(KernelSpec(name=name, **{**defaults, **facts}))


def bind(*kernels, overrides=None):
    return Binder(dict(kernels), CONTRACTS, device="cpu", overrides=overrides)


@pytest.fixture(autouse=True)
def importable(monkeypatch):
    """Lazy references reach this module whatever name pytest gave it."""
    module = ModuleType(__name__)
    module.__dict__.update(globals())
    monkeypatch.setitem(sys.modules, __name__, module)
    CALLS.clear()


@pytest.fixture
def request_():
    q4 = FormatSpec("q4", "some.module:codec", 4.5)
    return KernelRequest(
        op="custom", device="cpu", dtype="float32", capability=0,
        weights=(WeightInfo((8, 8), q4, "rows"),), sizes={"num_heads": 2},
    )


def test_highest_priority_wins_and_the_rest_have_reasons(request_):
    binder = bind(
        kernel("slow", priority=-100), kernel("fast", priority=5),
        kernel("gpu", devices=("cuda",), priority=9), kernel("other", op="something"),
    )
    choice = binder.choose(request_)
    assert choice.spec.name == "fast"
    assert dict(choice.rejected) == {
        "slow": "its priority is below that of fast", "gpu": "runs on cuda, not on cpu",
    }


@pytest.mark.parametrize(
    ("facts", "asked", "reason"),
    [
        ({"devices": ("cuda",)}, {}, "runs on cuda, not on cpu"),
        ({"devices": ("cuda",), "capability": (90, 90)}, {"device": "cuda", "capability": 120},
         "needs compute capability 90 to 90, not 120"),
        ({"formats": ("q8", "q6")}, {}, "does not take q4"),
        ({"accepts": f"{__name__}:never"}, {}, "dislikes everything"),
    ],
)
def test_every_filter_has_its_reason(facts, asked, reason, request_):
    with pytest.raises(UnsupportedError, match="no kernel can run op 'custom'") as caught:
        bind(kernel("candidate", **facts)).choose(evolve(request_, **asked))
    assert caught.value.why == f"candidate {reason}"
    assert "q4 [8, 8]" in caught.value.where


@pytest.mark.parametrize(("constants", "sizes", "said"), [
    ({"weight"}, {}, "constants"), ({"weight", "bias", "more"}, {}, "constants"),
    ({"weight", "bias"}, {"epsilon": 1e-5}, "sizes")])
def test_what_a_contract_does_not_have_is_refused(constants, sizes, said, request_):
    binder = bind()
    binder.contracts = {"custom": OpContract(
        "custom", ("weight", "bias"), ("weight",), ("eps",), f"{__name__}:factory")}
    with pytest.raises(PluginError, match=f"is bound with the {said}"):
        binder.bind(evolve(request_, sizes=sizes), **dict.fromkeys(constants))


def test_filters_pass_what_fits(request_):
    exact = {"capability": (90, 120), "devices": ("cuda",), "formats": ("q4",)}
    asked = evolve(request_, device="cuda", capability=90)
    assert bind(kernel("fits", **exact)).choose(asked).spec.name == "fits"


def test_accepts_is_asked_only_after_the_declared_filters(request_):
    with pytest.raises(UnsupportedError):
        bind(kernel("gpu", devices=("cuda",), accepts=f"{__name__}:never")).choose(request_)
    assert not CALLS


def test_nothing_registered_is_said(request_):
    with pytest.raises(UnsupportedError, match="none is registered"):
        bind().choose(request_)


def test_equal_priorities_are_ambiguous_and_an_override_settles_it(request_):
    pair = kernel("one", priority=3), kernel("two", priority=3)
    with pytest.raises(AmbiguityError, match=r"one of some-plugin 1\.0 and two of") as caught:
        bind(*pair).choose(request_)
    assert caught.value.fix == "choose with --kernel custom=NAME"
    choice = bind(*pair, overrides={"custom": "two"}).choose(request_)
    assert choice.spec.name == "two"
    assert choice.rejected == (("one", "--kernel custom=two asks for another"),)


def test_an_override_is_still_filtered(request_):
    kernels = kernel("gpu", devices=("cuda",)), kernel("any")
    with pytest.raises(UnsupportedError, match="gpu runs on cuda, not on cpu"):
        bind(*kernels, overrides={"custom": "gpu"}).choose(request_)


@pytest.mark.parametrize("overrides", [{"custom": "absent"}, {"linear": "any"}, {"typo": "any"}])
def test_an_override_must_name_a_kernel_of_the_op(overrides):
    with pytest.raises(ConfigError, match="has no kernel"):
        bind(kernel("any"), overrides=overrides)


def test_equal_requests_are_decided_once(request_):
    binder = bind(kernel("no", accepts=f"{__name__}:never"), kernel("yes"))
    assert binder.choose(request_) is binder.choose(evolve(request_, sizes={"num_heads": 2}))
    assert len(CALLS) == 1
    binder.choose(evolve(request_, sizes={"num_heads": 3}))
    assert [choice.request.sizes["num_heads"] for choice in binder.choices] == [2, 3]


def test_bind_builds_with_the_constants(request_):
    assert bind(kernel("any")).bind(request_, table=7)() == (request_, {"table": 7})


@pytest.mark.parametrize(
    ("facts", "what"),
    [
        ({"factory": f"{__name__}:broken_factory"}, "ZeroDivisionError: no such tile"),
        ({"factory": f"{__name__}:missing"}, "cannot load what a spec points to"),
        ({"accepts": f"{__name__}:raises"}, "KeyError: 'head_dim'"),
        ({"accepts": f"{__name__}:says_true"}, "True"),
    ],
)
def test_broken_kernels_are_named_with_their_plugin(facts, what, request_):
    with pytest.raises(PluginError) as caught:
        bind(kernel("broken", **facts)).bind(request_)
    assert what in caught.value.why
    assert caught.value.where == "broken of some-plugin 1.0"


def test_constants_must_be_those_of_the_contract():
    request = KernelRequest(op="linear", device="cpu", dtype="float32")
    with pytest.raises(PluginError, match=r"its contract has \['bias', 'weight'\]"):
        bind(kernel("any", op="linear")).bind(request, weights=None)
