"""Converted models that read token ids, and tiny random checkpoints of Qwen hybrids."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from fnmatch import fnmatchcase
from itertools import count
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import transformers
from attrs import define, field, frozen
from safetensors.torch import load_file, save_file
from torch import Tensor

from ninfer_checkpoints.cards import read_card
from ninfer_core.artifact.container import open_artifact
from ninfer_core.artifact.store import WeightStore, load_weights
from ninfer_core.cli.main import main
from ninfer_core.engine.build import build_model
from ninfer_core.ops.binder import Binder
from ninfer_core.plugin_host import PluginReport, PluginSelection, load_plugins
from ninfer_core.state.batch import BatchBuilder, Row
from ninfer_core.state.store import SequenceState, StateStore
from ninfer_fixtures.checkpoint import TinyCheckpoint
from ninfer_fixtures.tiny import tiny_resources

MAX_CONTEXT = 512
DISTRIBUTIONS = (
    "ninfer_convert", "ninfer_pack_smollm2", "ninfer_pack_qwen_dense", "ninfer_pack_qwen_moe",
    "ninfer_pack_glm",
    "ninfer_pack_flash_next", "ninfer_ops", "ninfer_profile_cpu", "ninfer_drafting",
)


@pytest.fixture(scope="session")
def plugins() -> PluginReport:
    modules = tuple(f"{name}.plugin" for name in DISTRIBUTIONS)
    return load_plugins(PluginSelection(modules=modules, names=()))


@pytest.fixture(scope="session")
def stored_as() -> Callable[[str, str], Callable[[str], str]]:
    """``(package, card) -> parameter -> format`` that the card's recipe stores it in."""

    def stored_as(package: str, name: str) -> Callable[[str], str]:
        recipe = read_card(package, name).recipe
        return lambda parameter: next(
            each.format for each in recipe if fnmatchcase(parameter, each.pattern))

    return stored_as


@pytest.fixture
def doctor(monkeypatch, capsys) -> Callable[[str, Path], tuple[int, str, str]]:
    """``(pack, folder) -> (exit code, stdout, stderr)`` of a checkpoint on a Hopper."""
    monkeypatch.setenv("NINFER_PLUGINS", "")
    names = ("convert", "profile_hopper", "drafting", "workbench", "ops")

    def run(pack, folder):
        modules = [f"ninfer_{name}.plugin" for name in (f"pack_{pack}", *names)]
        words = [word for module in modules for word in ("-p", module)]
        code = main(["doctor", str(folder), "--spec", "mtp", "--profile", "hopper", *words])
        return code, *capsys.readouterr()

    return run


@define(eq=False)
class Reading:
    """A sequence on its way: ``frontier`` tokens are committed."""

    state: SequenceState
    frontier: int = 0
    id: int = field(factory=count().__next__)


@frozen(eq=False)
class Reader:
    """A built model and its state."""

    model: object
    store: StateStore
    batches: BatchBuilder

    @contextmanager
    def reading(self) -> Iterator[Reading]:
        """An open sequence."""
        reading = Reading(self.store.open())
        try:
            yield reading
        finally:
            self.store.close(reading.state)

    @torch.inference_mode()
    def step(self, reading: Reading, tokens: Sequence[int]) -> Tensor:
        """fp32 ``[len(tokens), V]`` of one step."""
        self.store.grow(reading.state, reading.frontier + len(tokens))
        row = Row(reading.id, reading.state, reading.frontier, list(tokens), len(tokens))
        logits: Tensor = self.model.forward(self.batches.fill([row])).clone()
        reading.frontier += len(tokens)
        return logits

    def logits(self, tokens: Sequence[int], width: int | None = None) -> Tensor:
        """fp32 ``[len(tokens), V]``, read in steps of ``width`` tokens, or in one."""
        width = width or len(tokens)
        with self.reading() as reading:
            cuts = (tokens[begin : begin + width] for begin in range(0, len(tokens), width))
            return torch.cat([self.step(reading, cut) for cut in cuts])

    def greedy(self, prompt: Sequence[int], length: int) -> list[int]:
        """The prompt and ``length`` tokens, decoded one by one."""
        tokens = list(prompt)
        with self.reading() as reading:
            logits = self.step(reading, tokens)
            for _ in range(length):
                tokens.append(int(logits[-1].argmax()))
                logits = self.step(reading, tokens[-1:])
        return tokens


@pytest.fixture(scope="session")
def load(plugins: PluginReport) -> Callable[[Path], WeightStore]:
    """Map the weights of an artifact."""
    formats = {name: each.spec for name, each in plugins.registry.formats.items()}
    layouts = {name: each.spec for name, each in plugins.registry.layouts.items()}
    return lambda path: load_weights(open_artifact(path), formats=formats, layouts=layouts)


@pytest.fixture(scope="session")
def build_reader(
    plugins: PluginReport, load: Callable[[Path], WeightStore]
) -> Callable[..., Reader]:
    """Build the model of a pack in an artifact, in fp32 on the CPU: on the core's own kernels, or
    on those of the CPU profile too."""

    def build(pack, path: Path, *, profile: bool = False) -> Reader:
        registry, weights = plugins.registry, load(path)
        config = pack.configure(weights.artifact.description())
        store = StateStore(
            pack.states(config), registry.kv_codecs["fp32"].spec, num_pages=2 * MAX_CONTEXT // 64,
            max_sequences=2, max_context=MAX_CONTEXT, max_verify_rows=1,
        )
        sizes = {"max_tokens": MAX_CONTEXT, "max_logits": MAX_CONTEXT}
        kernels = {
            name: each for name, each in registry.kernels.items()
            if profile or name.startswith("reference.")
        }
        model = build_model(
            pack, config, weights=weights, store=store,
            binder=Binder(kernels, registry.contracts, device="cpu"),
            profile=SimpleNamespace(device="cpu", compute_dtype="float32"),
            max_context=MAX_CONTEXT, **sizes,
        )
        return Reader(model, store, BatchBuilder(max_rows=2, max_pages=MAX_CONTEXT // 64, **sizes))

    return build


@pytest.fixture(params=[1, 3, 64, 89])
def width(request) -> int:
    """Tokens of a step of the predictor."""
    return request.param


COMMON = {
    "vocab_size": 283, "hidden_size": 40, "num_hidden_layers": 4, "num_attention_heads": 6,
    "num_key_value_heads": 2, "head_dim": 24, "linear_num_key_heads": 2,
    "linear_num_value_heads": 6, "linear_key_head_dim": 12, "linear_value_head_dim": 10,
    "max_position_embeddings": 1024, "tie_word_embeddings": False,
    "rope_parameters": {
        "rope_type": "default", "rope_theta": 1e7, "partial_rotary_factor": 0.25,
        "mrope_section": [1, 1, 1], "mrope_interleaved": True,
    },
}
KINDS = {
    "dense": ("Qwen3_5TextConfig", "Qwen3_5ForCausalLM", {"intermediate_size": 56}),
    "moe": ("Qwen3_5MoeTextConfig", "Qwen3_5MoeForCausalLM", {
        "num_experts": 7, "num_experts_per_tok": 3, "moe_intermediate_size": 20,
        "shared_expert_intermediate_size": 28,
    }),
    "flash_next": ("Qwen4ExpTextConfig", "Qwen4ExpForCausalLM", {
        "num_experts": 7, "num_experts_per_tok": 3, "moe_intermediate_size": 20,
        "shared_expert_intermediate_size": 28, "output_gate_type": "sigmoid", "eos_token_id": 3,
        "hc_count": 4, "hc_lowrank": 18, "ple_layer_ids": [2], "ple_embed_dim": 32,
        "ple_conv_kernel_size": 4, "ngram_size": 3, "heads_per_ngram": 2, "seed": 1234,
        "ngram_vocab_size_base": 100, "make_ngram_vocab_size_divisible_by": 12,
        "split_ngram_parts": 12, "indexer_n_heads": 6, "indexer_kv_heads": 1,
        "indexer_head_dim": 14, "indexer_budget": 8, "indexer_compress_ratio": 4,
    }),
}
"""Kind -> classes of transformers, and sizes that are not common to all."""


@pytest.fixture(scope="session")
def tiny_checkpoint() -> Callable[..., TinyCheckpoint]:
    """``(path, kind, *, mtp, dtype, rename, change, **sizes)``: write a random checkpoint of one of
    the `KINDS`.

    :param mtp: with a next-token predictor. :param dtype: of the stored numbers.
    :param rename: ``(name) -> name``, of tensors as stored.
    :param change: ``(name, values)``, called with every tensor before it is stored.
    :param sizes: for transformers' config.
    """

    def make(
        path: Path, kind: str = "dense", *, mtp: bool = True, dtype: torch.dtype = torch.float32,
        rename: Callable[[str], str] = str, change: Callable[[str, Tensor], None] | None = None,
        **sizes,
    ) -> TinyCheckpoint:
        config_class, model_class, own = KINDS[kind]
        config = getattr(transformers, config_class)(**{**COMMON, **own, **sizes})
        torch.manual_seed(0)
        model = getattr(transformers, model_class)(config).eval()
        extra = PREDICTORS[kind](model) if mtp else {}
        for name, values in [*model.named_parameters(), *extra.items()]:
            _randomise(name, values.data, dtype)
            if change:
                change(name, values.data)
        model.to(dtype).save_pretrained(path)
        file = path / "model.safetensors"
        stored = {**load_file(file), **{name: each.to(dtype) for name, each in extra.items()}}
        save_file({rename(name): each for name, each in stored.items()}, file, {"format": "pt"})
        for role, content in tiny_resources().items():
            (path / role).write_bytes(content)
        model.float().model.rotary_emb = type(model.model.rotary_emb)(config)  # was rounded too
        return TinyCheckpoint(path, model, extra)

    return make


@pytest.fixture
def quantise(tmp_path) -> Callable[..., tuple[Path, transformers.PreTrainedModel]]:
    """``(plain, choose, change) -> (checkpoint, transformers' model of its numbers)``.

    :param plain: folder of a checkpoint; it gets the numbers that the quantised ones stand for.
    :param choose: ``(name)`` to a function of `ninfer_fixtures.quantised`, or None.
    :param change: of all tensors by name, as they are stored.
    """

    def make(
        plain: Path, choose: Callable[[str], Callable | None],
        change: Callable[[dict[str, Tensor]], dict[str, Tensor]] = dict,
    ) -> tuple[Path, transformers.PreTrainedModel]:
        stored, meant = {}, {}
        for name, values in load_file(plain / "model.safetensors").items():
            if quantiser := choose(name):
                # of one expert the scales of gate and up differ
                pieces, meant[name] = quantiser(name, values * (2 if "gate_proj" in name else 1))
                stored |= pieces
            else:
                stored[name] = meant[name] = values
        folder = tmp_path / "quantised"
        shutil.copytree(plain, folder)
        save_file(meant, plain / "model.safetensors", {"format": "pt"})
        stored = {name: each.contiguous() for name, each in change(stored).items()}
        save_file(stored, folder / "model.safetensors", {"format": "pt"})
        architecture = json.loads((plain / "config.json").read_text())["architectures"][0]
        model = getattr(transformers, architecture).from_pretrained(plain, dtype=torch.float32)
        return folder, model.eval()

    return make


def _predictor(model: transformers.PreTrainedModel) -> dict[str, Tensor]:
    """Names and shapes: a layer of attention, and what is around it."""
    config = model.config
    layer = model.model.layers[config.layer_types.index("full_attention")]
    width = config.hidden_size
    norms = ("pre_fc_norm_embedding", "pre_fc_norm_hidden", "norm")
    return {
        "mtp.fc.weight": torch.empty(width, 2 * width),
        **{f"mtp.{norm}.weight": torch.empty(width) for norm in norms},
        **{f"mtp.layers.0.{name}": torch.empty_like(values)
           for name, values in layer.state_dict().items()},
    }


def _flash_next_predictor(model: transformers.PreTrainedModel) -> dict[str, Tensor]:
    """Names and shapes: a layer of attention, what its input is made of, and its own mixer."""
    config, text = model.config, model.model
    width, wide = config.hidden_size, config.hc_count * config.hidden_size
    modules = {
        "layers.0": text.layers[config.layer_types.index("indexed_attention")],
        "hyper_connection_mixer": text.hyper_connection_mixer,
    }
    return {
        "mtp.pre_fc_norm_embedding.weight": torch.empty(width),
        "mtp.pre_fc_norm_hidden.weight": torch.empty(wide),
        **{f"mtp.fc_{half}.weight": torch.empty(width, width) for half in ("embedding", "hidden")},
        **{f"mtp.{module}.{name}": torch.empty_like(values)
           for module, part in modules.items() for name, values in part.state_dict().items()},
    }


PREDICTORS = {
    "dense": _predictor, "moe": _predictor, "flash_next": _flash_next_predictor,
}


def _randomise(name: str, values: Tensor, dtype: torch.dtype) -> None:
    """Numbers of ``dtype``: large enough for every part to matter, and small enough for fp32 to be
    exact to 1e-5 over a dozen layers, which transformers' own is not with larger ones."""
    if name.endswith("A_log"):
        values.uniform_(0.05, 4).log_()
    elif name.endswith("dt_bias") or "embed_tokens" in name:
        values.normal_()
    elif values.ndim == 1:  # norms; that of Gated DeltaNet is centred on 1, all others on 0
        values.normal_(mean=float(name.endswith("linear_attn.norm.weight")), std=0.3)
    else:
        values.normal_(std=0.7 * values.shape[-1] ** -0.5)
    values.copy_(values.to(dtype))
