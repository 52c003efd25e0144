"""SmolLM2, converted from its GGUF file, against transformers with the same file in fp32.

`data/make_oracle.py` recorded what transformers computes.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ninfer_convert.conversion import convert
from ninfer_core.cli.main import main
from ninfer_core.plugin_host import PluginSelection, load_plugins
from ninfer_pack_smollm2.embedded import locate
from ninfer_pack_smollm2.pack import LlamaPack

DATA = Path(__file__).parent / "data"
ORACLE = json.loads((DATA / "oracle.json").read_text())
MODULES = ("ninfer_pack_smollm2.plugin", "ninfer_profile_cpu.plugin", "ninfer_perplexity.plugin")


@pytest.fixture
def artifact(tmp_path):
    registry = load_plugins(PluginSelection(modules=MODULES, names=())).registry
    path = tmp_path / "model.ninfer"
    convert(locate(), path, pack=LlamaPack(), registry=registry)
    return path


def test_losses_are_those_of_transformers(artifact, tmp_path, monkeypatch):
    monkeypatch.setenv("NINFER_PLUGINS", "")
    plugins = [word for module in MODULES for word in ("-p", module)]
    code = main([
        "perplexity", str(artifact), "--corpus", str(DATA / "manifest.json"), "--profile", "cpu",
        "--context", str(ORACLE["context"]), "--stride", str(ORACLE["stride"]),
        "--output", str(tmp_path), *plugins,
    ])
    report = json.loads((tmp_path / "report.json").read_text())
    assert code == 0
    for text in report["texts"]:
        expected = ORACLE["texts"][text["name"]]
        assert text["tokens"] == expected["tokens"]
        spans = [[each[key] for key in ("begin", "first", "end")] for each in text["windows"]]
        assert spans == [span[:3] for span in expected["windows"]]
        losses = [window["nll"] for window in text["windows"]]
        assert losses == pytest.approx([span[3] for span in expected["windows"]], rel=1e-5)
    assert report["overall"]["perplexity"] == pytest.approx(ORACLE["perplexity"], rel=1e-5)
