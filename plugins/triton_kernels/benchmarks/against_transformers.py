"""Decode and prefill beside transformers: the same layers at real sizes, bf16, one card, one run.

Each side runs in a process of its own, one after the other: ours is ``ninfer bench step``; the
other has a static cache and decodes eagerly, as one captured graph of the eager step, and compiled
(``reduce-overhead``); what it has measured within its time counts. Its delta rule is that of
flash-linear-attention, if that is installed, but compiled: Dynamo does not trace that one's
launches (``triton.heuristics``), so that every such layer would break the graph and be compiled for
itself, again and again; there the rule is transformers' own, of which Inductor makes a kernel, and
the step is one graph. Compiling takes a minute or more, and the kernels of flash-linear-attention
are tuned when they first run: with ``--warm`` all that is done and nothing reported, so that a
second run finds it in the caches of Triton and Inductor (``TRITON_CACHE_DIR``,
``TORCHINDUCTOR_CACHE_DIR``).

    python plugins/triton_kernels/benchmarks/against_transformers.py qwen3.6-27b --layers 4
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

CALLS, WARM_UP = 20, 4
TINY = {
    "hidden_size": 64, "intermediate_size": 128, "vocab_size": 512, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 32, "linear_key_head_dim": 16,
    "linear_value_head_dim": 16, "linear_num_key_heads": 2, "linear_num_value_heads": 4,
}
"""Sizes of the other side's layers without a GPU, where only the script is tried."""


def main() -> None:
    """Both sides, or, with ``--side``, one in this process."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", help="card of a dense Qwen model")
    parser.add_argument("--profile", default="hopper")
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--context", type=int, default=1024, help="tokens before a decode step")
    parser.add_argument("--prompt", type=int, default=8192, help="tokens of a prompt")
    parser.add_argument("--seconds", type=float, default=150.0, help="for each side, at most")
    parser.add_argument("--warm", action="store_true", help="fill the caches of compilers alone")
    parser.add_argument("--json", type=Path, help="write all figures there")
    parser.add_argument("--side", choices=("theirs",), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.side:
        theirs(options)
    else:
        compare(options)


def compare(options: argparse.Namespace) -> None:
    """Run both and print what each took, and the ratios."""
    other = [json.loads(line) for line in _run(
        [sys.executable, __file__, *sys.argv[1:], "--side", "theirs"], options.seconds
    ).splitlines() if line.startswith("{")]
    ours = _run([
        sys.executable, "-m", "ninfer_core.cli.main", "bench", "step", options.model,
        "--profile", options.profile, "--format", "bf16", "--layers", str(options.layers),
        "--contexts", str(options.context), "--prefill", str(options.prompt), "--prompt",
        str(options.prompt), "--json", "--log-level", "error",
    ], options.seconds)
    if options.warm:
        return
    steps = json.loads(ours)["steps"] if ours.startswith("{") else []
    mine = {each["kind"]: each["seconds"] for each in steps}
    if options.json:
        options.json.write_text(json.dumps({"ours": steps, "theirs": other}, indent=1))
    for each in other:
        if "seconds" not in each:
            print(each)
            continue
        own = mine.get("prompt" if each["what"].startswith("prompt") else "decode")
        print(f"{each['what']:32} theirs {each['seconds'] * 1e3:9.3f} ms"
              + (f"   ours {own * 1e3:9.3f} ms   ratio {each['seconds'] / own:.2f}" if own else ""))


def _run(command: list[str], seconds: float) -> str:
    """What a process prints, as far as it comes in its time."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "out"
        with path.open("w") as out:
            try:
                subprocess.run(command, stdout=out, timeout=seconds, check=True)
            except (subprocess.SubprocessError, OSError) as error:
                print(f"# {error}", flush=True)
        return path.read_text()


def theirs(options: argparse.Namespace) -> None:
    """Measure transformers, each figure printed as soon as it is there."""
    import torch
    import transformers
    from transformers import DynamicCache, StaticCache
    from transformers.models.qwen3_5 import modeling_qwen3_5 as modeling

    device = "cuda" if torch.cuda.is_available() else "cpu"
    config, model, delta_rule = _build(options, device)
    print(json.dumps({"transformers": transformers.__version__, "delta_rule": delta_rule,
                      "layers": options.layers}), flush=True)
    generator = torch.Generator(device).manual_seed(1)
    ids = torch.randint(500, (1, max(options.prompt, options.context)), device=device,
                        generator=generator)
    place = torch.full((1, 1), options.context, device=device)
    with torch.inference_mode():
        cache = StaticCache(config=config, max_cache_len=options.context + 256)
        model(ids[:, : options.context], past_key_values=cache, use_cache=True, logits_to_keep=1)

        def step(run: Callable[..., Any] = model) -> None:
            run(ids[:, :1], position_ids=place, past_key_values=cache, use_cache=True)

        def prompt() -> None:
            model(ids[:, : options.prompt], past_key_values=DynamicCache(config=config),
                  use_cache=True, logits_to_keep=1)

        def compiled() -> Callable[[], None]:
            own = modeling.torch_recurrent_gated_delta_rule
            modeling.torch_recurrent_gated_delta_rule = getattr(own, "__wrapped__", own)
            fast = torch.compile(model, mode="reduce-overhead" if device == "cuda" else "default",
                                 fullgraph=True, dynamic=False)

            def call() -> None:
                torch.compiler.cudagraph_mark_step_begin()
                step(fast)

            begin = time.perf_counter()
            call()
            print(json.dumps({"compiled_in_s": time.perf_counter() - begin}), flush=True)
            return call

        _emit("decode, eager", lambda: step, device)
        if device == "cuda":
            _emit("decode, one captured graph", lambda: _captured(step), device)
        _emit(f"prompt of {options.prompt}", lambda: prompt, device, calls=4)
        _emit("decode, compiled", compiled, device)


def _build(options: argparse.Namespace, device: str) -> tuple[Any, Any, str]:
    """The card's config, its model with random weights, and whose delta rule it has."""
    import torch
    from transformers.models.qwen3_5 import modeling_qwen3_5 as modeling
    from transformers.models.qwen3_5.configuration_qwen3_5 import Qwen3_5TextConfig

    from ninfer_core.cli.models import find_card
    from ninfer_core.plugin_host import PluginSelection, load_plugins

    card = find_card(options.model, load_plugins(PluginSelection()).registry)
    assert card is not None, f"{options.model} is no card"
    text = dict(card.spec.outline.load()().components["text"]["config"])
    text.pop("architectures")
    text |= {"num_hidden_layers": options.layers,
             "layer_types": text["layer_types"][: options.layers]}
    config = Qwen3_5TextConfig(**(text if device == "cuda" else text | TINY))
    torch.set_default_dtype(torch.bfloat16)
    with torch.device(device):
        model = modeling.Qwen3_5ForCausalLM(config).eval()
    torch.set_default_dtype(torch.float32)
    try:
        import fla  # type: ignore[import-not-found]
    except ImportError:
        return config, model, "torch"
    return config, model, f"flash-linear-attention {fla.__version__}"


def _captured(step: Callable[[], None]) -> Callable[[], None]:
    """The eager step as a graph: what compiling saves but for its fusions."""
    import torch

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    replay: Callable[[], None] = graph.replay
    return replay


def _emit(
    what: str, make: Callable[[], Callable[[], object]], device: str, calls: int = CALLS
) -> None:
    """Median seconds of a call, or why there are none, as a line of JSON."""
    import torch

    wait = torch.cuda.synchronize if device == "cuda" else lambda: None
    try:
        call = make()
        for _ in range(min(WARM_UP, calls)):
            call()
        seconds = []
        for _ in range(calls):
            wait()
            begin = time.perf_counter()
            call()
            wait()
            seconds.append(time.perf_counter() - begin)
    except Exception as error:  # what others do may fail on a card; the rest counts
        print(json.dumps({"what": what, "error": repr(error)[:500]}), flush=True)
        return
    print(json.dumps({"what": what, "seconds": statistics.median(seconds)}), flush=True)


if __name__ == "__main__":
    os.environ.setdefault("TRITON_CACHE_AUTOTUNING", "1")
    main()
