"""From an artifact and plugins to answers, with the real parts in between."""

import sys
from types import ModuleType

import pytest
import torch
from attrs import evolve, fields_dict

from ninfer_artifact_writer.writer import ArtifactWriter
from ninfer_core import api
from ninfer_core.config import LaunchConfig, resolve
from ninfer_core.engine.client import EngineClient
from ninfer_core.engine.load import load_engine
from ninfer_core.engine.request import GenerationRequest
from ninfer_core.plugin_host import PluginRecord, PluginReport, PluginSelection, load_plugins
from ninfer_core.sampling.verify import Judge


class Box:
    """A machine on which nothing is fast and everything exact."""

    name, device, capability = "box", "cpu", 0
    compute_dtype, default_kv_dtype, layouts = "float32", "fp32", {}
    prepared = 0

    def scratch_bytes(self, work):
        return 0

    def memory_budget(self):
        return 100_000_000

    def prepare(self, num_threads):
        Box.prepared += 1
        Box.num_threads = num_threads


class Repeat:
    """Drafts the last token again."""

    def __init__(self, context):
        self.max_drafts, Repeat.context = context.draft_tokens, context

    def propose(self, requests):
        return [api.Draft((each.tokens[-1],) * each.limit) for each in requests]

    def advance(self, steps):
        pass

    def release(self, request_id):
        pass


@pytest.fixture
def report(monkeypatch):
    module = ModuleType("box_parts")
    module.Box, module.Repeat = Box, Repeat
    module.detect = lambda: api.Detection(50, "a box")
    monkeypatch.setitem(sys.modules, "box_parts", module)
    box = PluginRecord(
        "box", "ninfer.plugins", "box-dist", "1.0", "box.plugin", "active",
        specs={
            "profiles": (api.HardwareProfileSpec("box", "box_parts:detect", "box_parts:Box"),),
            "speculators": (api.SpeculatorSpec("repeat", "box_parts:Repeat"),),
        },
    )
    modules = ("ninfer_pack_toy.plugin", "ninfer_drafting.plugin", "ninfer_disk_tier.plugin")
    loaded = load_plugins(PluginSelection(names=(), modules=modules))
    return PluginReport((*loaded.records, box))


@pytest.fixture
def path(report, tmp_path):
    """The toy pack's tiny model with random weights."""
    pack = report.registry.packs["toy"].spec.pack.load()()
    description, generator = pack.tiny(), torch.Generator().manual_seed(3)
    parts = {name: {"config": config} for name, config in description.components.items()}
    with ArtifactWriter(tmp_path / "toy.ninfer", components=parts) as writer:
        for spec in pack.parameters(pack.configure(description)):
            if not spec.tied_to:
                values = torch.randn(spec.shape, generator=generator) / spec.shape[-1] ** 0.5
                image = values.view(torch.uint8).flatten()
                writer.add_tensor(spec.name, spec.shape, "fp32", "contiguous_le_v1", image)
            writer.bind(spec.name, spec.tied_to or spec.name)
    return str(tmp_path / "toy.ninfer")


def answer(report, **options):
    config = LaunchConfig(max_context=256, prefill_chunk=64, **options)
    phases = []
    plan = resolve(config, report)
    loaded = load_engine(plan, lambda phase, done, total: phases.append((phase, done, total)))
    prompt = loaded.frontend.prepare([{"role": "user", "content": "what? " * 15}])
    request = GenerationRequest(prompt, api.SamplingParams(), 12, ignore_eos=True)
    with EngineClient(loaded.engine) as client:
        *_, last = client.submit(request)
    loaded.engine.audit()
    if last.cause:
        raise last.cause
    return plan, loaded, last, phases


def test_a_loaded_engine_answers_as_planned(report, path):
    prepared = Box.prepared
    plan, loaded, last, phases = answer(report, model=path)
    assert Box.prepared == prepared + 1
    assert len(last.token_ids) == 12
    assert loaded.report.nbytes == next(e.nbytes for e in plan.ledger.lines if e.name == "weights")
    assert phases[-1] == ("weights", loaded.report.nbytes, loaded.report.nbytes)
    assert {choice.spec.op for choice in loaded.kernels} >= {"linear", "paged_attention"}


def test_a_speculator_by_name_changes_nothing_but_the_work(report, path):
    plain = answer(report, model=path)[2]
    drafted = answer(report, model=path, spec="repeat", draft_tokens=3, max_concurrency=2)[2]
    assert drafted.token_ids == plain.token_ids
    assert drafted.usage.drafted_tokens > 0


def test_a_speculator_is_told_what_it_works_for(report, path):
    _, loaded, *_ = answer(report, model=path, spec="repeat", draft_tokens=4, max_concurrency=2)
    assert Repeat.context.model is loaded.model
    assert isinstance(Repeat.context.judge, Judge)
    names = fields_dict(api.SpeculatorContext).keys() - {"model", "judge"}
    assert {name: getattr(Repeat.context, name) for name in names} == {
        "draft_tokens": 4, "vocab_size": loaded.frontend.tokenizer.vocab_size, "max_sequences": 2,
        "max_tokens": 64, "max_context": 256, "device": "cpu",
    }


@pytest.mark.parametrize("spec", ["mtp", "ngram"])
def test_speculators_change_nothing_but_the_work(report, path, spec):
    plain = answer(report, model=path)[2]
    _, loaded, last, _ = answer(report, model=path, spec=spec)
    assert last.token_ids == plain.token_ids
    assert loaded.engine.drafts.drafted == last.usage.drafted_tokens
    if spec == "mtp":
        assert last.usage.drafted_tokens > 0
        assert last.usage.rounds + last.usage.fallback_steps + last.usage.accepted_tokens == 11


def test_the_component_of_a_speculator_is_loaded_with_it_only(report, path):
    plain, drafting = (
        resolve(LaunchConfig(model=path, max_context=256, spec=spec), report)
        for spec in (None, "mtp")
    )
    more = {each.name for each in drafting.parameters} - {each.name for each in plain.parameters}
    assert more and all(name.startswith("mtp/") for name in more)
    assert {state.name for state in drafting.states} - {s.name for s in plain.states} == {"mtp_kv"}
    assert drafting.config.draft_tokens == 3
    both = [{line.name: line.nbytes for line in each.ledger.lines} for each in (plain, drafting)]
    assert all(both[0][name] < both[1][name] for name in ("weights", "state"))
    loaded = load_engine(plain)
    assert loaded.report.nbytes == both[0]["weights"]
    assert loaded.model.predictor is None


@pytest.mark.parametrize("threads", [None, 1, 3])
def test_the_profile_is_told_how_many_threads(report, path, threads):
    answer(report, model=path, threads=threads)
    assert Box.num_threads == threads


def test_a_pack_that_fails_to_build_is_named(report, path, monkeypatch):
    plan = resolve(LaunchConfig(model=path, max_context=64), report)
    monkeypatch.setattr(type(plan.model_pack), "build", lambda *args: 1 / 0)
    with pytest.raises(api.PluginError, match=r"toy.*division by zero"):
        load_engine(plan)


def test_weights_beyond_the_budget_are_refused_before_they_are_read(report, path):
    plan = resolve(LaunchConfig(model=path, max_context=64), report)
    small = evolve(plan, ledger=evolve(plan.ledger, budget_bytes=1000))
    with pytest.raises(api.CapacityError, match="budget of 1,000"):
        load_engine(small)


@pytest.mark.parametrize(("fault", "why"), [
    (lambda context: 1 / 0, "division by zero"),
    (lambda context: Repeat(evolve(context, draft_tokens=4)), "up to 4, and a step has room for 3"),
])
def test_a_speculator_at_fault_is_named(report, path, monkeypatch, fault, why):
    plan = resolve(LaunchConfig(model=path, max_context=64, spec="repeat", draft_tokens=3), report)
    monkeypatch.setattr("box_parts.Repeat", fault)
    with pytest.raises(api.PluginError, match=f"box-dist.*{why}"):
        load_engine(plan)


def ask_again(loaded):
    """The same question twice; what was reused each time."""
    prompt = loaded.frontend.prepare([{"role": "user", "content": "what? " * 15}])
    request, ends = api.SamplingParams(), []
    for _ in range(2):
        with_cache = GenerationRequest(prompt, request, 12, ignore_eos=True)
        loaded.engine.submit(with_cache, lambda e: hasattr(e, "usage") and ends.append(e))
        loaded.engine.run_until_idle()
        loaded.engine.audit()
    assert ends[0].token_ids == ends[1].token_ids
    return [end.reuse for end in ends]


@pytest.mark.parametrize("spec", [None, "mtp"])
def test_states_are_kept_if_they_are_to_be(report, path, spec):
    options = {"model": path, "max_context": 256, "prefill_chunk": 64, "spec": spec}
    first, second = ask_again(load_engine(resolve(LaunchConfig(**options), report)))
    assert (first.num_tokens, second.num_tokens, second.tier) == (0, 64, "device")
    off = resolve(LaunchConfig(**options, prefix_cache=False), report)
    assert [each.num_tokens for each in ask_again(load_engine(off))] == [0, 0]


def test_states_on_disk_outlive_the_engine_and_are_of_one_model(report, path, tmp_path):
    config = LaunchConfig(
        model=path, max_context=256, prefill_chunk=64, disk_cache=str(tmp_path / "states"),
        host_capacity=1 << 20)
    loaded = load_engine(resolve(config, report))
    ask_again(loaded)
    loaded.engine.close()
    first, _ = ask_again(load_engine(resolve(config, report)))
    assert (first.num_tokens, first.tier) == (64, "disk")
    other = evolve(config, kernels={"linear": "reference.linear"})
    first, _ = ask_again(load_engine(resolve(other, report)))
    assert first.num_tokens == 0


def test_a_tier_that_fails_to_start_is_named_with_its_distribution(report, path):
    """Also where what it finds cannot be read."""
    class Broken:
        name, kept, num_free = "broken", frozenset(), 0

        def __init__(self, context):
            assert context.location == "shelf" and context.max_bytes == 1 << 20

        def scan(self):
            raise RuntimeError("out of order")

    sys.modules["box_parts"].Broken = Broken
    *others, box = report.records
    tiers = (api.StateTierSpec("broken", "box_parts:Broken"),)
    box = evolve(box, specs={**box.specs, "state_tiers": tiers})
    config = LaunchConfig(
        model=path, max_context=256, disk_cache="shelf", disk_capacity=1 << 20, state_tier="broken")
    with pytest.raises(api.PluginError, match=r"box-dist 1.0 .*out of order"):
        load_engine(resolve(config, PluginReport((*others, box))))


def test_the_queue_is_as_planned(report, path):
    config = LaunchConfig(model=path, max_context=64, max_queue=3, queue_timeout_s=2.5)
    limits = load_engine(resolve(config, report)).engine.limits
    assert (limits.max_queue, limits.queue_timeout_s, limits.max_sequences) == (3, 2.5, 1)


def test_tokens_that_the_tokenizer_has_beyond_the_model_are_refused(report, path):
    plan = resolve(LaunchConfig(model=path, max_context=64), report)
    loaded = load_engine(evolve(plan, operations={**plan.operations, "vocab_size": 10}))
    within, beyond = (
        GenerationRequest(api.PreparedPrompt((1, last), ""), api.SamplingParams(), 1)
        for last in (9, 10)
    )
    loaded.engine.submit(within, print)
    with pytest.raises(api.RequestError, match="do not exist"):
        loaded.engine.submit(beyond, print)
