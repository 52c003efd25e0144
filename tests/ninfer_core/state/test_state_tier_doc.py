"""The tier of docs/plugin-api.md does what the page says, and the cache with it what it does with
any."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ninfer_core.api import ArtifactError, StateTierContext

PAGE = (Path(__file__).parents[3] / "docs" / "plugin-api.md").read_text()
TOKENS = [*range(200)]


@pytest.fixture
def start(lab, tmp_path):
    """A process whose tier is the page's."""
    [example] = (each for each in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
                 if "class PackedTier" in each)
    names = {"__name__": "example"}
    exec(compile(example, "docs/plugin-api.md", "exec"), names)

    def start(specs="hybrid", pages=60, identity=b"model"):
        return lab(specs, disk=lambda store: names["PackedTier"](StateTierContext(
            str(tmp_path), pages * store.page_bytes, identity, store.page_bytes)))

    return start


def keep(lab, count, scope):
    state = lab.begin(TOKENS, count)
    lab.cache.capture(state, TOKENS, count, scope, "turn")
    lab.store.close(state)
    assert lab.cache.persist()


@pytest.mark.parametrize("specs", ["hybrid", "paged", "recurrent"])
def test_another_process_goes_on_from_what_was_kept(start, specs):
    first = start(specs)
    keep(first, 150, ("a", 1)), keep(first, 64, "b")
    second = start(specs)
    for count, scope in ((150, ("a", 1)), (64, "b")):
        match = second.cache.match(TOKENS, scope)
        assert match.num_tokens == count and match.point.kind == "turn"
        state = second.cache.restore(match.point)
        second.verify(state, TOKENS[:count])
        second.store.close(state)
    assert second.cache.statistics.restored == {"device": 0, "packed": 2}
    second.verify_cache()
    assert start(specs, identity=b"another").cache.points == ()


def test_room_is_kept_and_damage_is_a_miss(start, tmp_path):
    first = start()
    keep(first, 150, "a"), keep(first, 64, "b")
    room = max(each.num_pages for each in first.disk.kept)
    assert len(start(pages=room).cache.points) == 1
    [path] = tmp_path.rglob("*.packed")
    again = start()
    path.write_bytes(path.read_bytes()[:-1])
    [point] = again.cache.points
    with pytest.raises(ArtifactError, match="damaged"):
        again.cache.restore(point)
    assert again.cache.points == () and not path.exists()
    path.write_bytes(b"")
    assert start().cache.points == ()
