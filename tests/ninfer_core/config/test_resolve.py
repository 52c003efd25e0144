"""A plan from options and plugins, without a byte of the weights."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest
import torch
from attrs import evolve

from ninfer_artifact_writer.writer import ArtifactWriter
from ninfer_core import api
from ninfer_core.config import LaunchConfig, resolve
from ninfer_core.plugin_host import PluginRecord, PluginReport, PluginSelection, load_plugins

VOCAB, HIDDEN = 96, 32
TABLE_BYTES, MATRIX_BYTES = 4 * VOCAB * HIDDEN, 4 * HIDDEN * 2 * HIDDEN
PAGE_BYTES = 2 * 64 * 2 * 16 * 4  # layers x tokens x (key, value) x dim x fp32


class Pack:
    """Has one more parameter for each component beside the text."""

    def configure(self, model):
        return model.components

    def parameters(self, config):
        return (
            api.ParameterSpec("text/table", (VOCAB, HIDDEN), "table"),
            api.ParameterSpec("text/head", (VOCAB, HIDDEN), tied_to="text/table"),
            api.ParameterSpec("text/up", (2 * HIDDEN, HIDDEN)),
            *(api.ParameterSpec(f"{name}/up", (2 * HIDDEN, HIDDEN))
              for name in config if name != "text"),
        )

    def states(self, config):
        planes = (api.StatePlane("key", (1, 16)), api.StatePlane("value", (1, 16)))
        return (api.PagedStateSpec("kv", 2, planes), api.SlotStateSpec("s", 1, (16,), (16,)))

    def operations(self, config):
        return {"vocab_size": VOCAB, "max_context": 1024}


class Profile:
    name, device, capability = "box", "cpu", 0
    compute_dtype, default_kv_dtype, layouts = "float32", "fp32", {}
    budget = 10_000_000

    def scratch_bytes(self, work):
        return 0

    def memory_budget(self):
        return self.budget

    def figures(self):
        return api.MachineFigures("Box 9", 1000, 1e9, {"float32": 1e9}, 0, "datasheet")


@pytest.fixture
def parts(monkeypatch):
    """The plugin's code, as a module that tests may change."""
    module = ModuleType("mini_parts")
    module.Pack, module.Profile = Pack, type("Profile", (Profile,), {})
    module.claim = lambda model: api.Claim(50, "mini")
    module.detect = lambda: api.Detection(50, "a box")
    module.Speculator = object
    monkeypatch.setitem(sys.modules, "mini_parts", module)
    return module


@pytest.fixture
def report(parts):
    core = load_plugins(PluginSelection(names=()))
    kernel = api.KernelSpec("linear", "box.linear", "mini_parts:Pack")
    mini = PluginRecord(
        "mini", "ninfer.plugins", "mini-dist", "1.0", "mini.plugin", "active",
        specs={
            "packs": (api.ModelPackSpec("mini", "mini_parts:Pack", "mini_parts:claim"),),
            "profiles": (
                api.HardwareProfileSpec("box", "mini_parts:detect", "mini_parts:Profile"),),
            "kernels": (kernel,),
            "speculators": (
                api.SpeculatorSpec("toy", "mini_parts:Speculator", max_drafts=6),
                api.SpeculatorSpec("short", "mini_parts:Speculator", max_drafts=2),
                api.SpeculatorSpec("inner", "mini_parts:Speculator", component="extra"),
                api.SpeculatorSpec("absent", "mini_parts:Speculator", component="gone"),
            ),
        },
    )
    return PluginReport((core.records[0], mini))


def write(path, text=(), **components):
    """The mini model, with ``text`` in its text component and other components beside it."""
    components["text"] = {"config": {"architectures": ["Mini"]}, **dict(text)}
    with ArtifactWriter(path, components=components) as writer:
        for name, shape in (("table", (VOCAB, HIDDEN)), ("up", (2 * HIDDEN, HIDDEN))):
            image = torch.zeros(shape).view(torch.uint8).flatten()
            writer.add_tensor(name, shape, "fp32", "contiguous_le_v1", image)
        writer.bind("text/table", "table")
        writer.bind("text/head", "table")
        for name in ("proposal", *components):
            writer.bind(f"{name}/up", "up")
    return str(path)


@pytest.fixture
def path(tmp_path):
    return write(tmp_path / "mini.ninfer")


def line(plan, name):
    return next(each for each in plan.ledger.lines if each.name == name)


def test_every_choice_is_filled_in_and_has_its_reason(report, path):
    plan = resolve(LaunchConfig(model=path), report)
    assert (plan.config.pack, plan.config.profile) == ("mini", "box")
    assert (plan.config.max_context, plan.config.kv_dtype) == (1024, "fp32")
    assert plan.num_pages == 16 + 3
    reasons = {option: (value, why) for option, value, why in plan.reasons}
    assert reasons["pack"] == ("mini", "score 50: mini")
    assert reasons["profile"] == ("box", "score 50: a box")
    assert reasons["kv_dtype"] == ("fp32", "default of profile box")
    assert reasons["context_capacity"][1] == "1 x 1024 tokens in pages, and 3 for a kept state"
    assert {"box.linear", "reference.linear"} <= plan.kernels.keys()


def test_a_table_of_the_host_counts_where_it_goes_to_the_device(report, path, monkeypatch):
    specs = tuple(
        evolve(spec, on_host=spec.kind == "table") for spec in Pack().parameters(["text"]))
    monkeypatch.setattr(Pack, "parameters", lambda self, config: specs)
    host = resolve(LaunchConfig(model=path), report)
    device = resolve(LaunchConfig(model=path, tables_on_device=True), report)
    assert [spec.kind for spec in host.parameters if spec.on_host] == ["table"]
    assert not any(spec.on_host for spec in device.parameters)
    assert line(device, "weights").nbytes - line(host, "weights").nbytes == TABLE_BYTES
    assert "stay in host memory" in line(host, "weights").arithmetic
    assert "stay in host memory" not in line(device, "weights").arithmetic


def test_tables_go_to_the_device_only_if_there_are_any(report, path):
    with pytest.raises(api.ConfigError, match="leaves no table in host memory"):
        resolve(LaunchConfig(model=path, tables_on_device=True), report)


def test_what_was_asked_for_is_kept_and_said(report, path):
    config = LaunchConfig(model=path, max_context=100, kv_dtype="int8", profile="box", pack="mini")
    plan = resolve(config, report)
    assert (plan.kv.name, plan.num_pages) == ("int8", 2 + 3)
    reasons = {option: why for option, _, why in plan.reasons}
    assert reasons["max_context"] == reasons["kv_dtype"] == "asked for"
    assert reasons["profile"] == "asked for with --profile; a box"


def test_the_ledger_counts_each_stored_tensor_once_and_shows_its_arithmetic(report, path):
    config = LaunchConfig(
        model=path, max_concurrency=2, prefill_chunk=64, prefix_cache=False)
    plan = resolve(config, report)
    assert line(plan, "weights").nbytes == TABLE_BYTES + MATRIX_BYTES
    assert line(plan, "weights").arithmetic == "2 stored tensors of 2 parameters"
    slot = 64 + 64  # state and one recorded row, aligned
    assert line(plan, "state").nbytes == 33 * PAGE_BYTES + 3 * slot
    assert line(plan, "state").arithmetic == (
        "(32 + 1 padding) pages x 16,384 B + (2 + 1 padding) slots x 128 B")
    assert line(plan, "workspace").nbytes == 64 * 3 * HIDDEN * 4 + 2 * VOCAB * 4
    assert plan.ledger.total_bytes == sum(each.nbytes for each in plan.ledger.lines)


def test_rows_of_logits_are_those_of_decoding_or_more_if_more_are_asked_for(report, path):
    config = LaunchConfig(model=path, max_concurrency=2)
    decoding, asked = resolve(config, report), resolve(config, report, max_logits=50)
    assert (decoding.max_logits, asked.max_logits) == (2, 50)
    assert resolve(config, report, max_logits=1).max_logits == 2
    grown = line(asked, "workspace").nbytes - line(decoding, "workspace").nbytes
    assert grown == 48 * VOCAB * 4


def test_the_state_line_is_what_the_store_allocates(report, path):
    from ninfer_core.state.store import StateStore

    plan = resolve(LaunchConfig(model=path, max_concurrency=3), report)
    store = StateStore(
        plan.states, plan.kv, num_pages=plan.num_pages, max_sequences=3, max_context=1024,
        max_verify_rows=plan.max_verify_rows)
    tensors = (store.memory.rows, store._slots, store._records)
    assert line(plan, "state").nbytes == sum(each.nbytes for each in tensors)


@pytest.mark.parametrize(("capacity", "pages"), [
    (5 * PAGE_BYTES + 1, 6), (PAGE_BYTES - 1, 0), (None, None)])
def test_host_memory_for_states_counts_where_it_is_the_machines_own(
    report, path, parts, capacity, pages
):
    config = LaunchConfig(model=path, host_capacity=capacity)
    plain = resolve(LaunchConfig(model=path), report).ledger
    names = [each.name for each in resolve(config, report).ledger.lines]
    assert names == ["weights", "state", "workspace", *(["host"] if capacity else [])]
    if capacity:
        assert line(resolve(config, report), "host").nbytes == pages * PAGE_BYTES
    parts.Profile.device = "cuda"
    assert resolve(config, report).ledger == plain


def test_what_does_not_fit_is_refused_with_both_numbers(report, path, parts, monkeypatch):
    monkeypatch.setattr("ninfer_core.artifact.container.Shards.read", pytest.fail)
    parts.Profile.budget = 100_000
    with pytest.raises(api.CapacityError) as caught:
        resolve(LaunchConfig(model=path), report)
    total = resolve(LaunchConfig(model=path), report, absent=True).ledger.total_bytes
    assert f"{total:,} bytes" in str(caught.value) and "100,000 bytes" in str(caught.value)
    parts.Profile.budget = total
    assert resolve(LaunchConfig(model=path), report).ledger.fits


def test_a_plan_for_an_absent_machine_takes_its_figures(report, path, parts, monkeypatch):
    monkeypatch.setattr(parts.Profile, "memory_budget", pytest.fail)
    plan = resolve(LaunchConfig(model=path), report, absent=True)
    assert not plan.ledger.fits
    assert (plan.ledger.budget_bytes, plan.ledger.budget_source) == (
        1000, "memory of Box 9, datasheet")


@pytest.mark.parametrize(("capacity", "pages"), [(16 * PAGE_BYTES, 16), (20 * PAGE_BYTES - 1, 19)])
def test_a_capacity_in_bytes_is_cut_to_pages(report, path, capacity, pages):
    plan = resolve(LaunchConfig(model=path, context_capacity=capacity), report)
    assert plan.num_pages == pages
    assert plan.config.context_capacity == pages * PAGE_BYTES


def test_a_capacity_may_be_below_one_sequence_but_not_below_a_page(report, path):
    """What does not fit is refused request by request."""
    plan = resolve(LaunchConfig(model=path, context_capacity=2 * PAGE_BYTES), report)
    assert (plan.num_pages, plan.config.max_context) == (2, 1024)
    with pytest.raises(api.CapacityError, match=r"16,383 B / 16,384 B a page"):
        resolve(LaunchConfig(model=path, context_capacity=PAGE_BYTES - 1), report)


def test_auto_takes_what_is_left_and_shows_its_arithmetic(report, path, parts):
    plan = resolve(LaunchConfig(model=path, context_capacity="auto"), report)
    others = plan.ledger.total_bytes - plan.num_pages * PAGE_BYTES - 1_000_000
    left = 9_000_000 - others
    assert plan.num_pages == left // PAGE_BYTES
    assert line(plan, "reserve").nbytes == 1_000_000
    assert plan.config.context_capacity == plan.num_pages * PAGE_BYTES
    reasons = {option: why for option, _, why in plan.reasons}
    assert reasons["context_capacity"] == (
        f"auto: 10,000,000 B budget - {others:,} B for the rest - 1,000,000 B reserve = "
        f"{left:,} B / 16,384 B a page")
    parts.Profile.budget = others + others // 9 + PAGE_BYTES
    with pytest.raises(api.CapacityError, match=r"auto: .* no room|no room for a page.*auto"):
        resolve(LaunchConfig(model=path, context_capacity="auto"), report)


@pytest.mark.parametrize(("options", "more"), [({}, 3), ({"prefix_cache": False}, 0)])
def test_the_default_pool_has_room_for_a_kept_state(report, path, options, more):
    assert resolve(LaunchConfig(model=path, max_concurrency=3, **options), report).num_pages == (
        48 + more)


def test_a_context_beyond_the_models_is_refused(report, path):
    with pytest.raises(api.ConfigError, match="1025 > 1024"):
        resolve(LaunchConfig(model=path, max_context=1025), report)


@pytest.mark.parametrize(("options", "word"), [
    ({"kv_dtype": "fp3"}, "--kv-dtype fp3 is unknown: installed: bf16, fp32, fp8, int8"),
    ({"spec": "gone", "draft_tokens": 1}, "--spec gone is unknown"),
    ({"pack": "gone"}, "--pack gone is unknown"),
    ({"profile": "gone"}, "--profile gone is unknown"),
])
def test_unknown_names_are_refused_with_the_known_ones(report, path, options, word):
    with pytest.raises(api.UnsupportedError, match=word):
        resolve(LaunchConfig(model=path, **options), report)


def with_tiers(report, *names):
    *others, mini = report.records
    tiers = tuple(api.StateTierSpec(name, "mini_parts:Pack") for name in names)
    return PluginReport((*others, evolve(mini, specs={**mini.specs, "state_tiers": tiers})))


def test_states_that_outlive_the_process_need_somebody_who_keeps_them(report, path):
    config = LaunchConfig(model=path, disk_cache="states")
    with pytest.raises(api.UnsupportedError, match=r"(?s)--disk-cache.*install.*ninfer-disk-tier"):
        resolve(config, report)
    assert resolve(config, with_tiers(report, "one")).state_tier.spec.name == "one"
    both = with_tiers(report, "one", "two")
    with pytest.raises(api.AmbiguityError, match="--state-tier one or --state-tier two"):
        resolve(config, both)
    chosen = resolve(evolve(config, state_tier="two"), both)
    assert chosen.state_tier.spec.name == "two"
    with pytest.raises(api.UnsupportedError, match="--state-tier three is unknown"):
        resolve(evolve(config, state_tier="three"), both)
    assert resolve(LaunchConfig(model=path), both).state_tier is None


def test_a_speculator_widens_the_decode_step(report, path):
    plan = resolve(LaunchConfig(model=path, spec="toy", draft_tokens=3), report)
    assert plan.speculator.name == "toy"
    assert plan.max_verify_rows == 4
    assert plan.max_tokens == 512


@pytest.mark.parametrize(("spec", "asked", "drafts", "why"), [
    ("toy", None, 3, "default"), ("toy", 6, 6, "asked for"), ("short", None, 2, "default"),
    (None, None, None, None),
])
def test_drafts_have_a_default_and_a_reason(report, path, spec, asked, drafts, why):
    plan = resolve(LaunchConfig(model=path, spec=spec, draft_tokens=asked), report)
    assert (plan.config.draft_tokens, plan.max_verify_rows) == (drafts, 1 + (drafts or 0))
    reasons = {option: reason for option, *reason in plan.reasons}
    assert reasons.get("draft_tokens") == ([str(drafts), why] if spec else None)
    assert reasons.get("spec") == ([spec, "asked for"] if spec else None)


def test_more_drafts_than_the_speculator_takes_are_refused(report, path):
    with pytest.raises(api.ConfigError, match="7 are asked for, and --spec toy takes 1 to 6"):
        resolve(LaunchConfig(model=path, spec="toy", draft_tokens=7), report)


@pytest.mark.parametrize(("options", "used"), [
    ({}, {"text"}), ({"spec": "toy"}, {"text"}), ({"spec": "inner"}, {"text", "extra"}),
    ({"spec": "inner", "lm_head_draft": True}, {"text", "extra", "proposal"}),
])
def test_only_components_in_use_are_shown_to_the_pack(report, tmp_path, options, used):
    proposal = {"domain": "indexed", "rows": 8}
    path = write(
        tmp_path / "whole.ninfer", {"proposal": proposal}, extra={"config": {"depth": 1}},
        vision={"config": {}})
    plan = resolve(LaunchConfig(model=path, **options), report)
    assert plan.model_config.keys() == used
    assert plan.model_config.get("extra", {"depth": 1}) == {"depth": 1}
    assert plan.model_config.get("proposal", proposal) == proposal
    names = {each.name.partition("/")[0] for each in plan.parameters}
    assert names == used


def test_a_missing_component_is_named_with_who_needs_it(report, path):
    with pytest.raises(api.ArtifactError, match=r"'gone'.*--spec absent needs it; there are text"):
        resolve(LaunchConfig(model=path, spec="absent"), report)


@pytest.mark.parametrize(("spec", "error", "why"), [
    ("toy", api.ConfigError, "--spec toy does not draft with a head"),
    ("inner", api.ArtifactError, "no draft head"),
])
def test_a_draft_head_must_be_there_and_of_use(report, tmp_path, spec, error, why):
    path = write(tmp_path / "headless.ninfer", extra={"config": {}})
    with pytest.raises(error, match=why):
        resolve(LaunchConfig(model=path, spec=spec, lm_head_draft=True), report)


def test_a_missing_parameter_is_named(report, path, monkeypatch):
    monkeypatch.setattr(
        Pack, "parameters", lambda self, config: (api.ParameterSpec("text/gone", (1, 1)),))
    with pytest.raises(api.ArtifactError, match="text/gone"):
        resolve(LaunchConfig(model=path), report)


@pytest.mark.parametrize("shape", [(2 * HIDDEN, HIDDEN + 1), (2 * HIDDEN + 1, HIDDEN), (HIDDEN,)])
def test_a_parameter_of_another_shape_is_named_with_both(report, path, monkeypatch, shape):
    monkeypatch.setattr(
        Pack, "parameters", lambda self, config: (api.ParameterSpec("text/up", shape),))
    with pytest.raises(api.ArtifactError, match=r"text/up: \[64, 32\] stored, \[") as error:
        resolve(LaunchConfig(model=path), report)
    assert f"{list(shape)} wanted" in str(error.value)


@pytest.mark.parametrize("method", ["configure", "states", "parameters", "operations"])
def test_a_pack_that_fails_is_named_with_its_distribution(report, path, monkeypatch, method):
    monkeypatch.setattr(Pack, method, lambda self, given: 1 / 0)
    with pytest.raises(api.PluginError, match=r"mini-dist 1\.0.*ZeroDivisionError"):
        resolve(LaunchConfig(model=path), report)


def test_an_error_for_users_passes_as_it_is(report, path, monkeypatch):
    def configure(self, model):
        raise api.ArtifactError("config lacks 'layers'")

    monkeypatch.setattr(Pack, "configure", configure)
    with pytest.raises(api.ArtifactError, match="config lacks 'layers'"):
        resolve(LaunchConfig(model=path), report)


def test_no_model_at_all(report):
    with pytest.raises(api.ConfigError, match="no model is given"):
        resolve(LaunchConfig(), report)


def test_a_codec_that_fails_is_named(report, path, monkeypatch):
    monkeypatch.setattr("ninfer_core.state.codecs.Int8Codec", lambda: 1 / 0)
    with pytest.raises(api.PluginError, match=r"ninfer-core.*division by zero"):
        resolve(LaunchConfig(model=path, kv_dtype="int8"), report)
