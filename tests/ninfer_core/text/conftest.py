"""A small byte-level BPE tokenizer, trained here, and the same one as Hugging Face runs it."""

from itertools import pairwise

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

from ninfer_core.text.tokenizer import HfTokenizer

CORPUS = [
    "the quick brown fox jumps over the lazy dog\n\nthe end of the story\n",
    "<think>no</think> system user assistant tool im_start im_end think 12345\n\n",
    "für élan 東京 東京 🦊🦊 naïve\n\n\n  indented   text\n",
] * 4
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
MARKERS = ["<think>", "</think>", "<tool_call>"]


@pytest.fixture(scope="session")
def hf_tokenizer() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=420, special_tokens=SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    # Like Qwen's: control tokens that are not flagged as special.
    tokenizer.add_tokens([AddedToken(text, special=False, normalized=False) for text in MARKERS])
    return tokenizer


@pytest.fixture(scope="session")
def tokenizer(hf_tokenizer: Tokenizer) -> HfTokenizer:
    return HfTokenizer(hf_tokenizer.to_str().encode())


@pytest.fixture(scope="session")
def cut():
    """``(text, bounds) -> pieces``: the text cut at these places, as far as it has them."""

    def cut(text: str, bounds: list[int]) -> list[str]:
        places = [0, *sorted(min(bound, len(text)) for bound in bounds), len(text)]
        return [text[a:b] for a, b in pairwise(places)]

    return cut
