"""The logits that every token of an answer was drawn from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from ninfer_conformance.tolerances import require, require_close
from ninfer_core.engine.engine import Engine
from ninfer_core.state.step import StepBatch

Prefix = tuple[int, ...]


class Watched:
    """A model, with the logits after every prefix as they were last computed."""

    def __init__(self, model: Any) -> None:
        self._model, self._logits = model, dict[Prefix, Tensor]()
        self._engine: Engine | None = None
        self._tokens = dict[int, tuple[int, list[int]]]()  # of a slot: whose, and which
        if (predictor := getattr(model, "predictor", None)) is not None:
            self.predictor, self.hidden = predictor, model.hidden

    def follow(self, engine: Engine) -> None:
        """From now on this engine runs the model: it knows whose a slot is."""
        self._engine = engine
        self._tokens.clear()

    def forward(self, batch: StepBatch) -> Tensor:
        """The model's step."""
        logits: Tensor = self._model.forward(batch)
        self._logits.update(zip(self.note(batch), logits.clone(), strict=True))
        return logits

    def note(self, batch: StepBatch, shift: int = 0) -> list[Prefix]:
        """Take in the tokens of a batch, which are ``shift`` behind their positions; the tokens up
        to each row of logits."""
        wanted, prefixes = {*batch.logit_rows[: batch.num_logits].tolist()}, []
        slots = batch.slots[batch.token_row[: batch.num_tokens].long()].tolist()
        owners = self._owners()
        for i, slot in enumerate(slots):
            position = int(batch.positions[i]) + shift
            tokens = self._tokens_in(slot, owners[slot], position)
            tokens[position:] = [int(batch.token_ids[i])]
            if i in wanted:
                prefixes.append(tuple(tokens))
        return prefixes

    def logits_after(self, tokens: Sequence[int], num_prompt: int) -> list[Tensor]:
        """``[V]`` for each token of the output."""
        return [self._logits[tuple(tokens[:end])] for end in range(num_prompt, len(tokens))]

    def require_same(self, other: Watched, what: str, tolerance: str) -> None:
        """Fail unless the other model computed the logits of this one, too."""
        for prefix, logits in self._logits.items():
            require(prefix in other._logits, f"{what}: nothing follows {len(prefix)} tokens")
            where = f"{what}: logits of token {len(prefix)}"
            require_close(other._logits[prefix], logits, where, tolerance)

    def _owners(self) -> dict[int, Any]:
        assert self._engine is not None
        sequences = self._engine._sequences.values()
        return {each.state.slot: each for each in sequences if each.state is not None}

    def _tokens_in(self, slot: int, owner: Any, known: int) -> list[int]:
        """Of a sequence that may have got its first tokens from a kept state."""
        whose, tokens = self._tokens.get(slot, (0, []))
        if whose != owner.id or len(tokens) < known:
            tokens = owner.tokens[:known]
            self._tokens[slot] = owner.id, tokens
        return tokens
