"""SmolLM2 itself, converted from its GGUF file, against transformers with the same file in fp32."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from ninfer_core.artifact.container import open_artifact
from ninfer_pack_smollm2.embedded import locate
from ninfer_pack_smollm2.pack import LlamaPack

ORACLE = json.loads((Path(__file__).parent / "data" / "oracle.json").read_text())
TEXT = """\
The river rose in the night. By morning the lower field was a lake, and the 3 oldest apple trees
stood in it up to their forks. Nobody had seen such water since 1954, when the mill was still a
mill and the road to town ran along the bank. "It will go down by Sunday," said the miller's
grandson, who had never run a mill in his life; he sold insurance, 12 miles away, and knew about
floods what his customers told him. The children had built a raft of two doors and four barrels.
    def depth(day):
        return max(0.0, 2.75 - 0.4 * day)
They measured with a stick, wrote the numbers on the barn, and drew a line through them that said
Thursday. On Thursday the sun came out, the herons came down, and the lake, without a sound, went.
"""


@pytest.fixture(scope="module")
def artifact(plugins, tmp_path_factory):
    from ninfer_convert.conversion import convert

    path = tmp_path_factory.mktemp("smollm2") / "model.ninfer"
    report = convert(locate(), path, pack=LlamaPack(), registry=plugins.registry)
    assert all(stored.kept == stored.objects for stored in report.formats.values())
    return path


@pytest.fixture(scope="module")
def frontend(artifact):
    opened = open_artifact(artifact)
    pack = LlamaPack()
    return pack.frontend(pack.configure(opened.description()), opened.resources())


def test_logits_are_those_of_transformers(artifact, frontend, read):
    from transformers import AutoModelForCausalLM

    tokens = frontend.tokenizer.encode(TEXT)[:200]
    assert len(tokens) == 200
    path = locate()
    theirs = AutoModelForCausalLM.from_pretrained(
        path.parent, gguf_file=path.name, dtype=torch.float32
    )
    with torch.inference_mode():
        expected = theirs(torch.tensor([tokens])).logits[0]
    difference = (read(artifact).logits(tokens) - expected).abs().max()
    print(difference)
    assert difference < 1e-3


@pytest.mark.parametrize("case", ORACLE, ids=lambda case: case["prompt"][:20])
def test_prompts_are_rendered_like_transformers_renders_them(frontend, case):
    prepared = frontend.prepare([{"role": "user", "content": case["prompt"]}])
    assert prepared.token_ids == tuple(case["ids"])
