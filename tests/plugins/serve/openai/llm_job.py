"""The command ``llm`` against the server, set up as the documents say: no part of the default
tests, because it is not installed with the project.

    pip install llm
    LLM=DIR/bin/llm pytest tests/plugins/serve/openai/llm_job.py
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path

import pytest

ROUTES = "ninfer_serve.openai.routes:routes"
DOCUMENT = Path(__file__).parents[4] / "docs/serving.md"


@pytest.fixture
def server(serve):
    return serve(ROUTES)


@pytest.fixture
def llm(server, tmp_path):
    """``(*arguments)``: what ``llm -m ninfer`` prints."""
    executable = os.environ.get("LLM")
    if not executable:
        pytest.skip("LLM does not name the command")
    [documented] = re.findall(r"### llm\n.*?```yaml\n(.*?)```", DOCUMENT.read_text(), re.DOTALL)
    settings = documented.replace("http://127.0.0.1:8080", server.url).replace("smollm2", "tiny")
    (tmp_path / "extra-openai-models.yaml").write_text(settings)

    def run(*arguments):
        done = subprocess.run(
            [executable, "-m", "ninfer", *arguments], check=False, capture_output=True, text=True,
            stdin=subprocess.DEVNULL, timeout=60, env={
                "PATH": os.environ["PATH"], "LLM_USER_PATH": str(tmp_path), "LLM_LOAD_PLUGINS": "",
                "OPENAI_API_KEY": "any"})
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    return run


@pytest.mark.parametrize("how", [[], ["--no-stream"]])
def test_a_conversation_goes_on(server, llm, kit, how):
    server.engine.script = [kit.reply("Par", "is."), kit.reply("France.")]
    assert llm(*how, "-s", "Be brief.", "What is the capital of France?") == "Paris."
    assert llm(*how, "-c", "Of which country?") == "France."
    first, second = (request.prompt for request in server.engine.requests)
    assert "Be brief." in first.text
    assert "Paris." in second.text


def test_options_are_sent(server, llm, kit):
    server.engine.script = kit.reply("A.")
    assert llm("-o", "temperature", "0.5", "-o", "max_tokens", "7", "Hello") == "A."
    [request] = server.engine.requests
    assert (request.sampling.temperature, request.max_tokens) == (0.5, 7)


def test_an_answer_of_a_schema(server, llm, kit):
    server.engine.script = kit.reply('{"city": "Paris"}')
    assert json.loads(llm("--schema", "city str", "Where?")) == {"city": "Paris"}
    [request] = server.engine.requests
    assert request.grammar.kind == "json_schema" and '"city"' in request.grammar.source
