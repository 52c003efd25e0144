"""Scored claims and detections, kernels of a profile, embedded models."""

from __future__ import annotations

import pytest

from ninfer_core.api import AmbiguityError, ModelDescription, UnsupportedError
from ninfer_core.plugin_host import (
    choose_only,
    choose_pack,
    choose_profile,
    find_embedded,
    kernels_of,
    load_plugins,
)

MODEL = ModelDescription("artifact", ("LlamaForCausalLM",), {})


def test_the_highest_claim_wins_and_the_others_keep_their_reasons(site):
    site.pack("guess", "return Claim(10, 'looks like it')")
    site.pack("exact", "return Claim(100, model.architectures[0])")
    site.pack("foreign", "return None")
    choice = choose_pack(load_plugins(site.selection()), MODEL)
    assert (choice.spec.name, choice.reason) == ("exact", "score 100: LlamaForCausalLM")
    assert choice.provenance.distribution == "exact-dist"
    assert dict(choice.rejected) == {
        "guess": "score 10: looks like it",
        "foreign": "it does not claim LlamaForCausalLM",
    }


@pytest.mark.parametrize("kind", ["pack", "profile"])
def test_equal_scores_are_an_error_that_names_both_and_the_flag(site, kind):
    for name in ("first", "second"):
        if kind == "pack":
            site.pack(name, "return Claim(50, 'mine')")
        else:
            site.profile(name, "return Detection(50, 'mine')")
    report = load_plugins(site.selection())

    def choose(name=None):
        return choose_pack(report, MODEL, name) if kind == "pack" else choose_profile(report, name)

    with pytest.raises(AmbiguityError) as caught:
        choose()
    text = str(caught.value)
    assert "first-dist 1.0" in text and "second-dist 1.0" in text
    assert f"--{kind} first or --{kind} second" in text
    assert choose("second").spec.name == "second"


def test_no_claim_lists_every_refusal(site):
    site.pack("foreign", "return None")
    with pytest.raises(UnsupportedError, match="foreign: it does not claim LlamaForCausalLM"):
        choose_pack(load_plugins(site.selection()), MODEL)


def test_no_pack_at_all(site):
    with pytest.raises(UnsupportedError, match="none installed"):
        choose_pack(load_plugins(site.selection()), MODEL)


def test_a_pack_may_be_forced_on_a_model_that_it_does_not_claim(site):
    site.pack("mine", "return None")
    choice = choose_pack(load_plugins(site.selection()), MODEL, "mine")
    assert choice.reason == "asked for with --pack; it does not claim LlamaForCausalLM"


def test_a_profile_that_does_not_fit_is_not_chosen(site):
    site.profile("absent", "return Detection(None, 'no such card')")
    site.profile("present", "return Detection(1, 'a CPU')")
    choice = choose_profile(load_plugins(site.selection()))
    assert choice.spec.name == "present"
    assert choice.rejected == (("absent", "no such card"),)


def test_kernels_of_other_profiles_are_not_used(site):
    kernel = """
        @hookimpl
        def ninfer_kernels():
            return [KernelSpec("linear", "{name}.linear", "builtins:int")]
    """
    for name in ("mine", "other"):
        site.profile(name, "return Detection(None, '')")
        (site.path / name / "plugin.py").open("a").write(
            "\n@hookimpl\ndef ninfer_kernels():\n"
            f"    return [KernelSpec('linear', '{name}.linear', 'builtins:int')]\n")
    site.install("extra", kernel)
    report = load_plugins(site.selection())
    mine = report.registry.profiles["mine"].provenance
    used = kernels_of(report.registry, mine)
    assert {"mine.linear", "extra.linear", "reference.linear"} <= used.keys()
    assert "other.linear" in report.registry.kernels and "other.linear" not in used


EMBEDDED = """
    def model(name, default):
        return EmbeddedModel(name=name, locate="builtins:int", requirement="x==1", sha256="0" * 64,
                             license="MIT", default=default)

    @hookimpl
    def ninfer_model_packs():
        return [ModelPackSpec(name="{name}", pack="builtins:int", claim="builtins:int",
                              embedded=(model("{name}-small", True), model("shared", False)))]
"""


def test_embedded_models_by_name_and_default(site):
    site.install("one", EMBEDDED)
    registry = load_plugins(site.selection()).registry
    assert find_embedded(registry).name == "one-small"
    assert find_embedded(registry, "shared").name == "shared"
    with pytest.raises(UnsupportedError, match=r"no embedded model 'gone'.*one-small, shared"):
        find_embedded(registry, "gone")


def test_two_defaults_and_two_of_one_name_are_ambiguous(site):
    site.install("one", EMBEDDED)
    site.install("two", EMBEDDED)
    registry = load_plugins(site.selection()).registry
    with pytest.raises(AmbiguityError, match=r"one-small of one-dist.*two-small of two-dist"):
        find_embedded(registry)
    with pytest.raises(AmbiguityError, match="embedded model 'shared'"):
        find_embedded(registry, "shared")
    assert find_embedded(registry, "two-small").name == "two-small"


def test_without_packs_there_is_no_default(site):
    with pytest.raises(UnsupportedError, match="no default embedded model: installed: none"):
        find_embedded(load_plugins(site.selection()).registry)


def test_an_unknown_profile_is_told_of_those_there_are(site):
    site.profile("box", "return Detection(50, 'a box')")
    with pytest.raises(UnsupportedError, match="--profile nope is unknown: installed: box"):
        choose_profile(load_plugins(site.selection(profile="nope")), "nope")


ENGINE = """
    @hookimpl
    def ninfer_constraint_engines():
        return [ConstraintSpec(name="{name}", compiler="{name}.compiler:Compiler")]
"""


def test_the_only_constraint_engine_or_the_one_that_is_asked_for(site):
    def choose(name=None):
        report = load_plugins(site.selection())
        return choose_only(report, "constraints", "--constraints", name)

    assert choose() is None
    for name in ("first", "second"):
        site.write(f"{name}.compiler", "Compiler = object\n")
    site.install("first", ENGINE)
    assert choose().spec.name == "first"
    site.install("second", ENGINE)
    with pytest.raises(AmbiguityError, match="--constraints first or --constraints second"):
        choose()
    assert choose("second").spec.name == "second"
    with pytest.raises(UnsupportedError, match="--constraints third is unknown"):
        choose("third")
