"""Text to ids and back for byte-level BPE."""

from __future__ import annotations

import json
from functools import cached_property
from typing import Any

from tokenizers import Tokenizer

from ninfer_core.api import ArtifactError, NInferError, UnsupportedError
from ninfer_core.text.control_text import ControlText
from ninfer_core.text.unicode import unicode_scalars

_PRINTABLE = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
_OTHERS = [byte for byte in range(256) if byte not in _PRINTABLE]
_BYTES = {chr(byte): byte for byte in _PRINTABLE}
_BYTES |= {chr(256 + index): byte for index, byte in enumerate(_OTHERS)}
"""The byte behind each character of a byte-level vocabulary (GPT-2)."""


def _text_bytes(text: str) -> bytes:
    return bytes(_BYTES[char] for char in text)


def _without_controls(spec: dict[str, Any], controls: dict[str, int]) -> Tokenizer:
    """A tokenizer that cannot produce a control token from any text."""
    never = controls.keys() - {spec["model"].get("unk_token")}
    vocab = {text: index for text, index in spec["model"]["vocab"].items() if text not in never}
    model = spec["model"] | {"vocab": vocab}
    off = dict.fromkeys(("post_processor", "truncation", "padding"))
    return Tokenizer.from_str(json.dumps(spec | off | {"added_tokens": [], "model": model}))


class HfTokenizer:
    """A byte-level BPE tokenizer from the bytes of a Hugging Face ``tokenizer.json``.

    Every added token is a control token, whether it is flagged special or not.

    :ivar vocab_size: one more than the largest id.
    :ivar control_ids: id of each control token by its text.
    :ivar control_text: hides control-token text of content from ``encode(..., special=True)``.
    :raises UnsupportedError: if the tokenizer is of another kind.
    :raises ArtifactError: if the file is damaged.
    """

    def __init__(self, tokenizer_json: bytes) -> None:
        try:
            self._read(json.loads(tokenizer_json))
        except NInferError:
            raise
        except Exception as error:  # the library raises nothing more specific
            raise ArtifactError(
                "a file of the text side is damaged", where="tokenizer.json", why=repr(error)
            ) from error

    def _read(self, spec: dict[str, Any]) -> None:
        if spec["model"].get("type") != "BPE" or "ByteLevel" not in json.dumps(spec["decoder"]):
            raise UnsupportedError("unsupported tokenizer", why="it is no byte-level BPE")
        self.control_ids = {token["content"]: token["id"] for token in spec["added_tokens"]}
        self.control_text = ControlText(self.control_ids)
        self._plain = _without_controls(spec, self.control_ids)
        self._texts = {index: text for text, index in spec["model"]["vocab"].items()}
        self._bytes = {index: text.encode() for text, index in self.control_ids.items()}
        self.vocab_size = 1 + max(*self._texts, *self._bytes)

    def encode(self, text: str, *, special: bool = False) -> list[int]:
        """Ids of ``text``; with ``special`` control-token text becomes control tokens, except
        where ``control_text`` hid it (and it is revealed)."""
        if not special:
            return self._encode_plain(text)
        ids: list[int] = []
        for index, piece in enumerate(self.control_text.split(text)):
            if index % 2:
                ids.append(self.control_ids[piece])
            else:
                ids += self._encode_plain(self.control_text.reveal(piece))
        return ids

    def token_bytes(self, token_id: int) -> bytes:
        """The exact bytes of one token; control tokens give their text, unused ids nothing."""
        known = self._bytes.get(token_id)
        if known is None:
            known = self._bytes[token_id] = _text_bytes(self._texts.get(token_id, ""))
        return known

    @cached_property
    def space_ids(self) -> frozenset[int]:
        """Tokens of white space alone."""
        candidates = [(index, text) for index, text in self._texts.items()
                      if text[-1:] > "~"]  # printable ASCII stands for itself
        return frozenset(index for index, text in candidates
                         if _text_bytes(text).decode(errors="replace").isspace())

    def _encode_plain(self, text: str) -> list[int]:
        """A batch of one: what encodes one text alone keeps all threads of the process waiting."""
        texts = [unicode_scalars(text)]
        [encoding] = self._plain.encode_batch_fast(texts, add_special_tokens=False)
        ids: list[int] = encoding.ids
        return ids
