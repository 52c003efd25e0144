"""Files of states: exact, whole or not at all, and bounded."""

from __future__ import annotations

import json
import os
from functools import cache
from pathlib import Path
from shutil import rmtree
from zlib import crc32

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ninfer_core.api import ArtifactError, ConfigError
from ninfer_disk_tier import state_file
from ninfer_fixtures.registered import disk_tier
from ninfer_fixtures.state_lab import Lab

TOKENS = [*range(150)]
SCOPE = ("thinking", b"\xff\0", 7, None)


@pytest.fixture
def lab():
    return Lab


@pytest.fixture
def make(tmp_path):
    """``(identity, specs) -> DiskTier`` on the test's folder."""
    stores = cache(lambda specs: Lab(specs).store)

    def make(identity=b"model", specs="hybrid", pages=100):
        return disk_tier(tmp_path, pages, identity)(stores(specs))

    return make


@pytest.fixture
def writer(lab):
    return lab()


def save(disk, lab, count=150, scope=SCOPE, replay=0, kind="turn"):
    """Keep the state after the first tokens, the last ``replay`` of them recorded."""
    state = lab.begin(TOKENS, count - replay)
    if replay:
        lab.read(state, TOKENS, 4, accepted=replay)
    snapshot = lab.store.snapshot(state, count, next_token=TOKENS[count % len(TOKENS)])
    lab.store.close(state)
    stored = disk.save(snapshot, scope, kind, np.array(TOKENS[:count], np.int32))
    lab.store.drop(snapshot)
    return stored


@pytest.mark.parametrize("specs", ["hybrid", "paged", "recurrent"])
@pytest.mark.parametrize("replay", [0, 3])
@pytest.mark.parametrize("count", [128, 150])
def test_another_process_reads_what_was_written(make, lab, specs, count, replay):
    save(make(specs=specs), lab(specs), count, replay=replay)
    disk, reader = make(specs=specs), lab(specs)
    [(stored, scope, kind, tokens)] = disk.scan()
    assert (scope, kind, tokens.tolist()) == (SCOPE, "turn", TOKENS[:count])
    snapshot = disk.load(stored)
    assert snapshot.replay == replay
    assert snapshot.next_token == stored.next_token == TOKENS[count % len(TOKENS)]
    reader.verify_snapshot(snapshot, TOKENS[:count])


def test_room_is_counted_before_and_after(make, lab):
    disk, writer = make(), lab()
    snapshot = writer.store.snapshot(writer.begin(TOKENS), 150)
    wanted, free = disk.num_pages_to_save(snapshot, SCOPE), disk.num_free
    stored = disk.save(snapshot, SCOPE, "turn", np.array(TOKENS, np.int32))
    size = stored.path.stat().st_size / writer.store.page_bytes
    assert size <= free - disk.num_free <= wanted <= size + 2
    disk.drop(stored)
    assert disk.num_free == free and not stored.path.exists()


def test_identities_do_not_meet(make, lab):
    save(make(), lab())
    assert [*make(identity=b"other").scan()] == [*make(specs="paged").scan()] == []
    assert len([*make().scan()]) == 1


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
@given(data=st.data())
def test_any_damage_is_seen(make, writer, data):
    """Wherever a byte changes or the file ends."""
    disk = make()
    stored = save(disk, writer)
    whole = stored.path.read_bytes()
    from_end = st.integers(1, 400) | st.integers(1, 40_000)
    at = max(0, len(whole) - data.draw(from_end))
    changed = bytearray(whole)
    changed[at] ^= 1 << data.draw(st.integers(0, 7))
    is_cut = data.draw(st.booleans())
    stored.path.unlink()
    stored.path.write_bytes(whole[:at] if is_cut else changed)
    with pytest.raises(ArtifactError, match=r"a stored state is damaged .*\.state"):
        disk.load(stored)
    disk = make()
    found = [each for each, *_ in disk.scan()]
    assert stored.path.exists() == bool(found)
    for each in found:  # pages are not looked at before they are wanted
        assert not is_cut
        with pytest.raises(ArtifactError, match="a page is wrong"):
            disk.load(each)


def test_a_file_that_is_gone_is_lost(make, lab):
    disk = make()
    stored = save(disk, lab())
    stored.path.unlink()
    with pytest.raises(ArtifactError, match="a stored state is lost"):
        disk.load(stored)


def test_foreign_and_half_written_files_are_deleted(make, lab, caplog):
    disk = make()
    stored = save(disk, lab())
    alien = save(make(identity=b"other"), lab()).path
    strange = stored.path.with_name("strange.state")
    strange.write_bytes(b"what is this?")
    foreign = stored.path.with_name("foreign.state")
    alien.rename(foreign)
    copy = stored.path.with_name("copy.state")
    copy.write_bytes(stored.path.read_bytes())
    half = stored.path.with_name("half.1.part")
    half.write_bytes(b"half")
    assert [each.path for each, *_ in make().scan()] == [stored.path]
    assert not any(path.exists() for path in (strange, foreign, copy, half))
    assert "strange.state]: the length is wrong" in caplog.text
    assert "copy.state]: the name is wrong" in caplog.text
    assert "the identity is wrong" in caplog.text


def test_a_failed_write_leaves_nothing(make, lab, monkeypatch):
    disk, writer = make(), lab()
    monkeypatch.setattr(Path, "replace", lambda *_: (_ for _ in ()).throw(OSError("disk full")))
    with pytest.raises(OSError, match="disk full"):
        save(disk, writer)
    assert disk.num_free == 100 and not [*disk._folder.iterdir()]


def test_the_longest_unused_come_first(make, lab):
    disk, writer = make(), lab()
    files = [save(disk, writer, count) for count in (70, 80, 90)]
    for age, stored in enumerate(files):
        os.utime(stored.path, (0, 1000 - age))
    disk.load(files[2])
    assert [each.path for each, *_ in make().scan()] == [files[each].path for each in (1, 0, 2)]


def test_a_folder_that_is_gone_is_made_again(make, lab):
    disk, writer = make(), lab()
    rmtree(save(disk, writer).path.parents[1])
    disk.load(save(disk, writer, 80))


def rewrite(path, catalogue):
    """Give a file another catalogue (bytes, or members to change) with a checksum that holds."""
    content = path.read_bytes()
    length, _, _ = state_file._FOOTER.unpack(content[-state_file._FOOTER.size :])
    begin = len(content) - state_file._FOOTER.size - length
    if isinstance(catalogue, dict):
        old = json.loads(content[begin : begin + length])
        catalogue = json.dumps({**old, **catalogue}).encode()
    footer = state_file._FOOTER.pack(len(catalogue), crc32(catalogue), state_file._MAGIC)
    path.write_bytes(content[:begin] + catalogue + footer)


@pytest.mark.parametrize("catalogue", [
    b"[" * 100_000, b"[]", b"{}", b"1", b"\xff", {"num_rows": -1}, {"num_rows": "8"},
    {"num_tokens": 0}, {"num_tokens": 10**30}, {"num_image": 1000}, {"next_token": "a"},
    {"replay": None}, {"kind": ["turn"]}, {"more": 1}, {"scope": "[1]"}, {"scope": "(" * 1000},
    {"scope": "-" * 100_000 + "1"}, {"scope": "open('x')"}, {"scope": "{'a': 1}"}, {"scope": 1},
], ids=lambda each: str(each)[:24])
def test_a_catalogue_of_whatever_content_is_damage(make, lab, catalogue):
    stored = save(make(), lab())
    rewrite(stored.path, catalogue)
    with pytest.raises(ArtifactError, match="a stored state is damaged"):
        make().load(stored)
    assert not [*make().scan()] and not stored.path.exists()


@pytest.mark.parametrize("content", ["pipe", "directory", "link to itself", "link to nothing"])
def test_what_is_no_file_is_passed_over(make, lab, content, caplog):
    """A pipe that nobody writes to would be waited for."""
    path = save(make(), lab()).path.with_name("odd.state")
    match content:
        case "pipe":
            os.mkfifo(path)
        case "directory":
            path.mkdir()
        case "link to itself":
            path.symlink_to(path)
        case "link to nothing":
            path.symlink_to("nowhere")
    assert len([*make().scan()]) == 1
    assert "odd.state" in caplog.text
    assert os.path.lexists(path) == (content == "directory")


def test_a_pipe_in_the_place_of_a_file_is_damage(make, lab):
    disk = make()
    stored = save(disk, lab())
    stored.path.unlink()
    os.mkfifo(stored.path)
    with pytest.raises(ArtifactError, match="the kind of file is wrong"):
        disk.load(stored)


def test_a_kind_of_another_version_is_given_up(lab, make, tmp_path, caplog):
    """It is whole, so the tier finds it, but nobody knows what it is worth."""
    old = save(make(), lab(), 128)
    new = save(make(), lab(), 150, kind="prophecy")
    started = lab(disk=disk_tier(tmp_path, 100))
    assert [point.num_tokens for point in started.cache.points] == [128]
    assert "unknown kind 'prophecy'" in caplog.text
    assert old.path.exists() and not new.path.exists()
    started.cache.audit()


def test_a_folder_that_cannot_be_made_is_named(tmp_path, lab):
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(ConfigError, match=r"(?s)cannot be kept there .*file.*give --disk-cache"):
        disk_tier(tmp_path / "file", 10)(lab().store)
