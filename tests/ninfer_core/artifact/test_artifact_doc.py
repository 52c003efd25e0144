"""The worked example of docs/artifact.md does what the page says."""

from __future__ import annotations

import re
from pathlib import Path

from ninfer_core.artifact.container import open_artifact

PAGE = (Path(__file__).parents[3] / "docs" / "artifact.md").read_text()


def test_worked_example(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    [example] = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    exec(compile(example, "docs/artifact.md", "exec"), {})
    shards = open_artifact("toy.ninfer").shards
    assert [file.payload_bytes for file in shards.files] == [8192, 2562]
    for name, shown in re.findall(r"^(toy\S+) +00000000  ((?:[0-9a-f]{2} +){16})", PAGE, re.M):
        assert Path(name).read_bytes()[:16] == bytes.fromhex(shown)


def test_sizes_on_the_page_are_those_of_the_tests():
    sizes = ["19,496,960", "24,084,480", "528", "73,428,992", "75,694,080", "41,287,684", "1,028",
             "9,224"]
    assert re.findall(r"^\| (?:q|fp8|nvfp4).*`\[.*\]` \| ([\d,]+) \|$", PAGE, re.M) == sizes
