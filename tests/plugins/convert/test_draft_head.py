"""The draft head: which tokens are in it, and which rows they have."""

from __future__ import annotations

import pytest
import torch
from tokenizers import AddedToken, Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace

from ninfer_convert.draft_head import DraftHead
from ninfer_core.api import ConfigError
from ninfer_core.artifact.container import open_artifact

VOCAB, WIDTH = 14, 8
"""Rows of the head; the tokenizer knows ten words, ids 0 to 9, and two special tokens behind."""
HEAD = torch.randn(VOCAB, WIDTH, generator=torch.Generator().manual_seed(0))


def tokenizer() -> bytes:
    made = Tokenizer(WordLevel({f"w{index}": index for index in range(10)}, unk_token="w0"))
    made.pre_tokenizer = Whitespace()
    made.add_tokens([AddedToken("<end>", special=True), AddedToken("<think>", special=False)])
    return made.to_str().encode()


@pytest.fixture
def source(write_directory):
    return write_directory({"m.safetensors": {"head.weight": HEAD}}, None)


@pytest.fixture
def pack(table_pack, entry):
    def make(resources=None, **options):
        head = entry("text/output_head", (VOCAB, WIDTH), lambda tensors: tensors["head.weight"])
        found = {"tokenizer.json": tokenizer()} if resources is None else resources
        return table_pack(*options.pop("entries", (head,)), resources=found,
                          **{"head_width": WIDTH, **options})

    return make


@pytest.fixture
def drafted(source, pack, converted, load, plugins):
    """Ids of a draft head, after a look at its rows."""

    def convert(wanted, made=None):
        weights = load(converted(source, made or pack(), draft_head=wanted))
        ids = weights.tensor("proposal/token_ids").tolist()
        codec = plugins.registry.formats["q4_g64_fp16"].spec.codec.load()()
        expected = codec.dequantize(codec.quantize(HEAD[ids]))
        assert torch.equal(weights.tensor("proposal/head"), expected)
        return ids

    return convert


def test_without_a_corpus_it_has_the_lowest_ids_and_special_tokens(drafted):
    assert drafted(DraftHead(5)) == [0, 1, 2, 10, 11]


def test_a_corpus_brings_its_most_frequent_tokens(drafted, tmp_path):
    corpus = tmp_path / "corpus.txt"
    corpus.write_text("w7 w3 w9\nw3 w9 w4\n" * 3 + "w5 w6 w5 w6\n")
    assert drafted(DraftHead(5, corpus)) == [3, 4, 9, 10, 11]


def test_ties_go_to_the_lower_id(drafted, tmp_path):
    (tmp_path / "corpus.txt").write_text("w8 w6 w4\nw2")
    assert drafted(DraftHead(4, tmp_path / "corpus.txt")) == [2, 4, 10, 11]


def test_padding_of_the_vocabulary_is_no_token(drafted):
    assert drafted(DraftHead(12)) == [*range(12)]


def test_the_catalogue_describes_it(source, pack, converted):
    artifact = open_artifact(converted(source, pack(), draft_head=DraftHead(5)))
    proposal = artifact.components["text"].proposal
    assert (proposal.domain, proposal.rows) == ("indexed", 5)
    head, ids = (artifact.objects[f"proposal/{name}"] for name in ("head", "token_ids"))
    assert (head.shape, head.format) == ((5, WIDTH), "q4_g64_fp16")
    assert (ids.shape, ids.format) == ((5,), "int32")
    assert ("proposal/head", "text/final_hidden") in {(u.parameter, u.input) for u in artifact.uses}


def test_a_full_head_has_no_ids(source, pack, converted, load):
    weights = load(converted(source, pack(), draft_head=DraftHead()))
    proposal = weights.artifact.components["text"].proposal
    assert (proposal.domain, proposal.rows) == ("full", VOCAB)
    assert weights.tensor("proposal/head").shape == HEAD.shape
    assert "proposal/token_ids" not in weights.artifact.bindings


def test_a_tied_head_is_made_of_the_embedding(drafted, pack, entry):
    find = {"find": lambda tensors: tensors["head.weight"]}
    tied = (entry("text/token_embedding", (VOCAB, WIDTH), kind="table", **find),
            entry("text/output_head", (VOCAB, WIDTH), tied_to="text/token_embedding"))
    assert drafted(DraftHead(3), pack(entries=tied)) == [0, 10, 11]


@pytest.mark.parametrize("rows", [1, 13])
def test_impossible_sizes_are_refused(source, pack, converted, rows):
    with pytest.raises(ConfigError, match=rf"{rows} is not within 2 .* and 12"):
        converted(source, pack(), draft_head=DraftHead(rows))


def test_more_rows_than_the_head_has_are_refused_before_the_pack_is_asked(source, pack, converted):
    """A real pack refuses such a config, which nobody has written."""
    def configure(model):
        raise AssertionError

    asked = pack()
    asked.configure = configure
    with pytest.raises(ConfigError, match=r"--proposal\]: 9999 > 14"):
        converted(source, asked, draft_head=DraftHead(9999))


def test_a_model_without_one_is_refused(source, pack, converted):
    with pytest.raises(ConfigError, match="no draft head"):
        converted(source, pack(head_width=0), draft_head=DraftHead(5))


def test_a_shortlist_needs_a_tokenizer(source, pack, converted):
    with pytest.raises(ConfigError, match=r"tokenizer\.json"):
        converted(source, pack(resources={}), draft_head=DraftHead(5))
    converted(source, pack(resources={}), draft_head=DraftHead())


def test_a_corpus_that_cannot_be_read_is_named(source, pack, converted, tmp_path):
    (tmp_path / "odd.txt").write_bytes(b"\xff\xfe\xff")
    for name in ("odd.txt", "absent.txt"):
        with pytest.raises(ConfigError, match=name):
            converted(source, pack(), draft_head=DraftHead(5, tmp_path / name))
