"""Makes oracle.json: the losses that transformers computes with the same GGUF file in fp32.

Usage: python make_oracle.py SmolLM2-135M-Instruct.Q4_1.gguf

Windows are those of the documentation: the first is tokens 0 to CONTEXT, each later one begins
STRIDE tokens after the one before, and scores what no earlier one has. Losses are in nats, summed
in fp64 from fp32 logits. The tokenizer that transformers makes of a GGUF file leaves out the cut at
digits, so no digit in the texts follows several blanks or newlines.
"""

import json
import math
import sys
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

CONTEXT, STRIDE = 2048, 1536
HERE = Path(__file__).parent


def windows(ids):
    scored = 1
    while scored < len(ids):
        begin = max(0, scored - (CONTEXT - STRIDE)) if scored > 1 else 0
        end = min(begin + CONTEXT, len(ids))
        yield begin, scored, end
        scored = end


def loss(model, ids, begin, first, end):
    logits = model(torch.tensor([ids[begin:end]]), use_cache=False).logits[0]
    rows = logits[first - 1 - begin : -1].double()
    return float(torch.nn.functional.cross_entropy(
        rows, torch.tensor(ids[first:end]), reduction="sum"
    ))


@torch.inference_mode()
def main(path):
    file = Path(path)
    tokenizer = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
    model = AutoModelForCausalLM.from_pretrained(
        file.parent, gguf_file=file.name, dtype=torch.float32
    )
    made, total, targets = {}, 0.0, 0
    for stream in json.loads((HERE / "manifest.json").read_text())["streams"]:
        ids = tokenizer((HERE / stream["path"]).read_text()).input_ids
        spans = [(*span, loss(model, ids, *span)) for span in windows(ids)]
        nll = sum(span[-1] for span in spans)
        made[stream["name"]] = {"tokens": len(ids), "nll": nll, "windows": spans}
        total, targets = total + nll, targets + len(ids) - 1
    oracle = {
        "context": CONTEXT, "stride": STRIDE, "texts": made,
        "perplexity": math.exp(total / targets),
    }
    (HERE / "oracle.json").write_text(json.dumps(oracle, indent=1) + "\n")


if __name__ == "__main__":
    main(sys.argv[1])
