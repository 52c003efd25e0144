"""What one step of the model sees of the sequences it serves."""

from __future__ import annotations

import torch
from attrs import define
from torch import Tensor

PAGE_TOKENS = 64
"""Tokens of one page. Page 0 is never handed out: padded rows write there."""

ROW_TOKENS = 16
"""Most tokens of a decode row, drafts included. Kernels that say that they are batch invariant give
a token the same bits in steps whose rows have no more, whatever else is in them; longer rows read
prompts, and may take another route."""


@define(eq=False)
class StepBatch:
    """Persistent input buffers of a step, filled by the engine, read by the model and its ops.

    A step serves B *rows* (sequences); row b brings the tokens
    ``row_start[b] .. row_start[b+1]`` of the T tokens. All tensors are allocated once at their
    largest size; the counts say how much of them is live.

    :ivar num_tokens: T. :ivar num_rows: B. :ivar num_logits: rows of logits wanted.
    :ivar num_pages: of steps with longer rows than those of decode, how many no row exceeds, one of
        few numbers; 0 if any may have as many as the table holds.
    :ivar token_ids: int64 ``[max_tokens]``.
    :ivar positions: int64 ``[max_tokens]``, position in the sequence.
    :ivar rope_positions: int64 ``[3, max_tokens]``, position for rotation by axis (time, height,
        width); in text all three go up together with ``positions``.
    :ivar token_row: int32 ``[max_tokens]``, row of each token.
    :ivar row_start: int32 ``[max_rows + 1]``.
    :ivar context_len: int32 ``[max_rows]``, tokens of the sequence before this step.
    :ivar page_table: int32 ``[max_rows, max_pages]``.
    :ivar slots: int32 ``[max_rows]``, state slot of each row; slot 0 is never handed out.
    :ivar replay: int32 ``[max_rows]``: recorded rows of the previous step to apply to the slot
        state before anything else.
    :ivar certain: int32 ``[max_rows]``: 1 when all the row's tokens are committed for sure
        (prefill, plain decode): slot state advances in place. 0 when they may be rejected (verify):
        committed state is advanced by ``replay`` only and every token is recorded.
    :ivar logit_rows: int64 ``[max_logits]``, token indexes whose logits are wanted, each once; if
        they are as many as tokens, in order.
    """

    token_ids: Tensor
    positions: Tensor
    rope_positions: Tensor
    token_row: Tensor
    row_start: Tensor
    context_len: Tensor
    page_table: Tensor
    slots: Tensor
    replay: Tensor
    certain: Tensor
    logit_rows: Tensor
    num_tokens: int = 0
    num_rows: int = 0
    num_logits: int = 0
    num_pages: int = 0

    @classmethod
    def allocate(
        cls, *, max_tokens: int, max_rows: int, max_pages: int, max_logits: int,
        device: torch.device | str = "cpu",
    ) -> StepBatch:
        """Zeroed buffers of the largest sizes (``max_pages`` per row)."""

        def zeros(*shape: int, dtype: torch.dtype = torch.int32) -> Tensor:
            return torch.zeros(shape, dtype=dtype, device=device)

        return cls(
            token_ids=zeros(max_tokens, dtype=torch.int64),
            positions=zeros(max_tokens, dtype=torch.int64),
            rope_positions=zeros(3, max_tokens, dtype=torch.int64),
            token_row=zeros(max_tokens),
            row_start=zeros(max_rows + 1),
            context_len=zeros(max_rows),
            page_table=zeros(max_rows, max_pages),
            slots=zeros(max_rows),
            replay=zeros(max_rows),
            certain=zeros(max_rows),
            logit_rows=zeros(max_logits, dtype=torch.int64),
        )

    def move(self, later: Tensor) -> None:
        """Let rows of equally many tokens begin later, and apply as many recorded rows more before
        them.

        :param later: int64 ``[B]``, on the device of the buffers.
        """
        count, end = self.num_rows, self.num_tokens
        self.positions[:end].view(count, -1).add_(later.unsqueeze(-1))
        self.rope_positions[:, :end].view(3, count, -1).add_(later.unsqueeze(-1))
        self.context_len[:count].add_(later)
        self.replay[:count].add_(later)
