"""lm-eval against a server with SmolLM2, and against transformers with the same weights: no part of
the default tests, because it installs much and takes minutes.

    pip install "lm-eval[api]" accelerate torch transformers gguf     # in an environment of its own
    LM_EVAL=.../bin/lm_eval pytest tests/plugins/serve/lm_eval_job.py
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ninfer_core.artifact.container import open_artifact
from ninfer_core.cli.models import artifact_path
from ninfer_core.plugin_host import load_plugins
from ninfer_pack_smollm2.embedded import locate

LM_EVAL = os.environ.get("LM_EVAL", "lm_eval")
QUESTIONS = (
    ("The capital of France is", ["Paris", "London", "Rome", "Madrid"], 0),
    ("The opposite of hot is", ["cold", "warm", "blue", "fast"], 0),
    ("A baby dog is called a", ["kitten", "calf", "puppy", "foal"], 2),
    ("Water freezes into", ["ice", "steam", "sand", "milk"], 0),
    ("Bees make", ["bread", "honey", "wine", "glass"], 1),
    ("The largest planet is", ["Mars", "Venus", "Jupiter", "Earth"], 2),
    ("Die Hauptstadt von Österreich ist", ["Wien", "Köln", "Zürich", "Łódź"], 0),
    ("def add(a, b):\n    return", ["a + b", "a - c", "None", "'🙂'"], 0),
)
TEXTS = (
    "The river rose in the night. By morning the lower field was a lake, and the oldest apple "
    "trees stood in it up to their forks. Nobody had seen such water since the mill was a mill.",
    "Ærøskøbing, Łódź, 北京, Ελλάδα: towns in many letters, and a fox 🦊 between them.",
)
TASKS = {
    "own_choice": {
        "output_type": "multiple_choice", "doc_to_text": "{{question}}",
        "doc_to_target": "{{answer}}", "doc_to_choice": "{{choices}}",
        "metric_list": [{"metric": "acc", "aggregation": "mean", "higher_is_better": True}],
    },
    "own_text": {
        "output_type": "loglikelihood_rolling", "doc_to_text": "", "doc_to_target": "{{text}}",
        "metric_list": [{"metric": "byte_perplexity"}],
    },
    "own_answer": {
        "output_type": "generate_until", "doc_to_text": "{{question}}",
        "doc_to_target": "{{choices[answer]}}",
        "generation_kwargs": {"until": ["\n\n"], "max_gen_toks": 24, "do_sample": False},
        "metric_list": [{"metric": "exact_match", "aggregation": "mean",
                         "higher_is_better": True}],
    },
}
OFFLINE = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "OPENAI_API_KEY": "any"}


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    words = ["--port", "0", "--max-concurrency", "2", "--max-context", "512"]
    process = subprocess.Popen(
        [sys.executable, "-m", "ninfer_serve.cli", *words], stderr=subprocess.PIPE, text=True)
    assert process.stderr
    for line in process.stderr:
        if "serving " in line:
            break
    yield line.split()[-1]
    process.terminate()
    process.communicate(timeout=30)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With tasks and their data, and the tokenizer as a checkpoint has it."""
    root = tmp_path_factory.mktemp("lm_eval")
    questions = [dict(zip(("question", "choices", "answer"), each, strict=True))
                 for each in QUESTIONS]
    for name, task in TASKS.items():
        rows = [{"text": text} for text in TEXTS] if name == "own_text" else questions
        data = root / f"{name}.jsonl"
        data.write_text("".join(json.dumps(row) + "\n" for row in rows))
        source = {"dataset_path": "json", "dataset_kwargs": {"data_files": {"test": str(data)}}}
        (root / f"{name}.yaml").write_text(  # JSON is YAML
            json.dumps({"task": name, "test_split": "test", **source, **task}))
    path = artifact_path(None, load_plugins().registry, lambda *_: None)
    for role, content in open_artifact(path).resources("text").items():
        (root / role).write_bytes(content)
    return root


def responses(folder: Path, name: str, model: str, *words: str) -> dict[str, list]:
    """Of each task, what the model answered to each document."""
    out = folder / name
    subprocess.run(
        [LM_EVAL, "run", "--model", model, "--include_path", folder, "--tasks", ",".join(TASKS),
         "--log_samples", "--output_path", out, *words],
        check=True, env={**os.environ, **OFFLINE},
    )
    found = {}
    for task in TASKS:
        [file] = out.rglob(f"samples_{task}_*.jsonl")
        samples = sorted(map(json.loads, file.open()), key=lambda each: each["doc_id"])
        found[task] = [each["resps"] for each in samples]
    return found


@pytest.fixture(scope="module")
def expected(folder: Path) -> dict[str, list]:
    file = locate()
    model = f"pretrained={file.parent},gguf_file={file.name},tokenizer={folder},dtype=float32"
    return responses(folder, "hf", "hf", "--model_args", model, "--device", "cpu")


@pytest.mark.parametrize("as_ids", [True, False])
def test_scores_and_answers_are_those_of_transformers(server, folder, expected, as_ids):
    model = (f"model=smollm2,base_url={server}/v1/completions,tokenizer={folder},max_length=512,"
             f"num_concurrent=2,tokenized_requests={as_ids}")
    found = responses(folder, f"ids-{as_ids}", "local-completions", "--model_args", model,
                      "--batch_size", "4" if as_ids else "1")
    assert found["own_answer"] == expected["own_answer"]
    for ours, theirs in zip(found["own_choice"], expected["own_choice"], strict=True):
        for [[score, is_greedy]], [[wanted, was_greedy]] in zip(ours, theirs, strict=True):
            assert float(score) == pytest.approx(float(wanted), abs=1e-3)
            assert is_greedy == was_greedy
    for [[score]], [[wanted]] in zip(found["own_text"], expected["own_text"], strict=True):
        assert float(score) == pytest.approx(float(wanted), abs=1e-2)
