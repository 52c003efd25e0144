"""The command: exit codes, messages, and what it writes where."""

from __future__ import annotations

import json

import pytest
import torch

from ninfer_convert.cli import main
from ninfer_core.artifact.container import open_artifact

PLUGINS = ["-p", "ninfer_pack_smollm2.plugin"]
LLAMA = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 20,
    "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "rms_norm_eps": 1e-5,
    "num_attention_heads": 2, "max_position_embeddings": 64, "tie_word_embeddings": True,
}


@pytest.fixture(autouse=True)
def no_installed_plugins(monkeypatch):
    monkeypatch.setenv("NINFER_PLUGINS", "")


@pytest.fixture
def llama(write_directory):
    layer, matrix, vector = "model.layers.0.", torch.randn(32, 32), torch.ones(32)
    matrices = ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj",
                "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"]
    tensors = {"model.embed_tokens.weight": torch.randn(20, 32), "model.norm.weight": vector}
    tensors |= {f"{layer}{name}.weight": matrix.clone() for name in matrices}
    tensors |= {f"{layer}{name}.weight": vector.clone()
                for name in ("input_layernorm", "post_attention_layernorm")}
    return write_directory({"model.safetensors": tensors}, None, **LLAMA)


def test_convert_and_inspect(llama, tmp_path, capfd):
    out = tmp_path / "out.ninfer"
    assert main([str(llama), "--out", str(out), "--name", "Mine", *PLUGINS]) == 0
    written = capfd.readouterr()
    assert written.out == ""
    assert "11 tensors -> 8 objects" in written.err
    assert main(["inspect", str(out)]) == 0
    shown = capfd.readouterr().out
    assert shown.startswith("Mine: set ")
    lines = [line.split() for line in shown.splitlines()]
    assert ["text/layers/0/mlp/up", "text/layers/0/mlp/gate_up[1024:2048]"] in lines
    assert ["text/output_head", "text/token_embedding"] in lines
    assert '"hidden_size": 32' in shown


def test_a_recipe_by_name_and_small_files(llama, tmp_path):
    out = tmp_path / "out.ninfer"
    options = ["--recipe", "q8", "--max-file-bytes", "16384", "--pack", "smollm2"]
    assert main([str(llama), "--out", str(out), *options, *PLUGINS]) == 0
    assert open_artifact(out).objects["text/layers/0/mlp/down"].format == "q8_g32_fp16"
    assert len(list(tmp_path.glob("out.ninfer*"))) > 1


def test_recipes_of_the_chosen_pack_have_names(llama, tmp_path, monkeypatch):
    (tmp_path / "own_recipes").mkdir()
    text = '[[store]]\npattern = "*"\nformat = "q5_g64_fp16"\n'
    (tmp_path / "own_recipes" / "mixed.toml").write_text(text)
    (tmp_path / "own_plugin.py").write_text(
        "from attrs import evolve\n"
        "from ninfer_core.api import hookimpl\n"
        "from ninfer_pack_smollm2.plugin import NINFER_API, PACK\n"
        "@hookimpl\n"
        "def ninfer_model_packs():\n"
        "    return [evolve(PACK, name='own', embedded=(), recipes='own_recipes')]\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    out = tmp_path / "out.ninfer"
    options = ["--recipe", "mixed", "-p", "own_plugin"]
    assert main([str(llama), "--out", str(out), "--components", "text", *options]) == 0
    assert open_artifact(out).objects["text/layers/0/mlp/down"].format == "q5_g64_fp16"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["{llama}", "--out", "{out}"], "none of the packs fits"),
        (["{llama}", "--out", "{out}", "--pack", "other", *PLUGINS], "--pack other is unknown"),
        (["{llama}", "--out", "{out}", "--recipe", "q3", *PLUGINS], "no such recipe"),
        (["{llama}", "--out", "{llama}/config.json", *PLUGINS], "config.json"),
        (["{llama}/config.json", "--out", "{out}", *PLUGINS], "not a source checkpoint"),
        (["{llama}"], "--out"),
        (["{llama}", "--out", "{out}", "--components", "mtp", *PLUGINS], "no such component"),
        (["{llama}", "--out", "{out}", "--proposal", "0", *PLUGINS], "--proposal"),
        (["{llama}", "--out", "{out}", "--proposal", "some", *PLUGINS], "--proposal"),
        (["{llama}", "--out", "{out}", "--proposal", "full", *PLUGINS], "no draft head"),
        (["{llama}", "--out", "{out}", "--proposal-corpus", "{out}"], "needs --proposal N"),
        (["{llama}", "--out", "{out}", "--proposal", "full", "--proposal-corpus", "x"],
         "needs --proposal N"),
        (["inspect", "{llama}/config.json"], "config.json"),
        (["inspect", "{out}"], "out.ninfer"),
    ],
)
def test_errors_are_one_message_and_exit_1(llama, tmp_path, capfd, arguments, message):
    places = {"llama": llama, "out": tmp_path / "out.ninfer"}
    assert main([argument.format(**places) for argument in arguments]) == 1
    written = capfd.readouterr()
    assert written.out == ""
    assert written.err.startswith("error: ")
    assert message in written.err
    assert "Traceback" not in written.err
    assert json.loads((llama / "config.json").read_text()) == LLAMA


def test_help_is_on_stdout(capfd):
    with pytest.raises(SystemExit) as exit_:
        main(["--help"])
    assert exit_.value.code == 0
    assert "--recipe" in capfd.readouterr().out
