"""The tokenizer gives Hugging Face's ids, exact bytes, and no control token by accident."""

import json
import threading
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ninfer_core.api import ArtifactError, UnsupportedError
from ninfer_core.text.tokenizer import HfTokenizer

PIECES = st.one_of(
    st.text(max_size=8),
    st.sampled_from(["<|im_start|>", "<|im_end|>", "<think>", "</think>", "<|", "end|>", "\n\n"]),
)
TEXTS = st.lists(PIECES, max_size=8).map("".join)


@given(text=TEXTS)
def test_special_encoding_equals_hugging_face(tokenizer, hf_tokenizer, text):
    assert tokenizer.encode(text, special=True) == hf_tokenizer.encode(text).ids


@given(text=TEXTS)
def test_plain_encoding_has_no_control_token_and_keeps_the_bytes(tokenizer, text):
    ids = tokenizer.encode(text)
    assert not set(ids) & set(tokenizer.control_ids.values())
    assert b"".join(map(tokenizer.token_bytes, ids)) == text.encode()


@given(text=TEXTS)
def test_bytes_of_special_encoding_are_the_text(tokenizer, text):
    ids = tokenizer.encode(text, special=True)
    assert b"".join(map(tokenizer.token_bytes, ids)) == text.encode()


def test_control_tokens_are_all_added_tokens_flagged_special_or_not(tokenizer):
    assert {"<|im_end|>", "<think>", "</think>"} <= tokenizer.control_ids.keys()
    assert tokenizer.encode("<think>", special=True) == [tokenizer.control_ids["<think>"]]


def test_every_id_has_bytes_and_unused_ids_have_none(tokenizer):
    assert all(tokenizer.token_bytes(index) for index in range(tokenizer.vocab_size))
    assert tokenizer.token_bytes(tokenizer.vocab_size + 7) == b""
    assert tokenizer.token_bytes(tokenizer.control_ids["<|im_end|>"]) == b"<|im_end|>"


def test_tokens_of_white_space(tokenizer):
    texts = {index: tokenizer.token_bytes(index) for index in range(tokenizer.vocab_size)}
    spaces = {index for index, each in texts.items() if each.decode(errors="replace").isspace()}
    assert tokenizer.space_ids == spaces
    assert {texts[index] for index in spaces} >= {b"\n", b" ", b"\t", b"\n\n"}


def test_ignored_merges_cannot_reach_a_control_token(hf_tokenizer):
    """With ``ignore_merges`` a whole word that is in the vocabulary becomes its id at once."""
    spec = json.loads(hf_tokenizer.to_str())
    spec["model"]["ignore_merges"] = True
    spec["model"]["vocab"]["STOP"] = 900
    spec["added_tokens"].append(spec["added_tokens"][0] | {"id": 900, "content": "STOP"})
    tokenizer = HfTokenizer(json.dumps(spec).encode())
    assert 900 not in tokenizer.encode("STOP")
    assert tokenizer.encode("STOP", special=True) == [900]


def test_lone_surrogates_become_replacement_characters(tokenizer):
    ids = tokenizer.encode("ok \ud83d end")
    assert b"".join(map(tokenizer.token_bytes, ids)).decode() == "ok \ufffd end"


def test_other_kinds_are_refused(hf_tokenizer):
    spec = json.loads(hf_tokenizer.to_str())
    spec["model"] = {"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "a"}
    with pytest.raises(UnsupportedError, match="byte-level BPE"):
        HfTokenizer(json.dumps(spec).encode())


@pytest.mark.parametrize("run", ["a", " ", "7", "東"])
def test_a_very_long_run_is_tokenised_in_reasonable_time(tokenizer, run):
    started = time.monotonic()
    ids = tokenizer.encode(run * 200_000)
    assert b"".join(map(tokenizer.token_bytes, ids)) == (run * 200_000).encode()
    assert time.monotonic() - started < 10


def test_other_threads_go_on_while_a_long_text_is_tokenised(tokenizer):
    done, gaps = threading.Event(), [0.0]

    def watch():
        while not done.is_set():
            begun = time.monotonic()
            time.sleep(0.001)
            gaps.append(time.monotonic() - begun)

    text = "words of many kinds, and 123 numbers. " * 20_000
    watcher = threading.Thread(target=watch)
    watcher.start()
    begun = time.monotonic()
    tokenizer.encode(text)
    took = time.monotonic() - begun
    done.set()
    watcher.join()
    assert max(gaps) < max(0.1, took / 2)


@pytest.mark.parametrize(
    "change",
    [
        {"model": None}, {"added_tokens": None}, {"added_tokens": [{}]},
        {"model": {"type": "BPE", "vocab": ["a"], "merges": []}},
        {"model": {"type": "BPE", "vocab": {"a": 0}, "merges": [["a", "z"]]}},
        {"model": {"type": "BPE", "vocab": {"a": 1 << 40}, "merges": []}},
        {"model": {"type": "BPE", "vocab": {}, "merges": []}, "added_tokens": []},
    ],
)
def test_a_damaged_file_is_refused(hf_tokenizer, change):
    spec = json.loads(hf_tokenizer.to_str()) | change
    with pytest.raises(ArtifactError, match=r"damaged \[tokenizer.json\]"):
        HfTokenizer(json.dumps(spec).encode())
