"""``ngram_rows``: rows of hashed n-gram embeddings, by the last tokens of a sequence (after Over-
Tokenized Transformer, Huang et al., 2025; as in Qwen4-Exp).

Constants: ``window``: the `SlotPlanes` of one layer, int64: committed ``[slots, n - 1]``, the last
tokens before the frontier in order, each as its id + 1, 0 before the first token; record
``[slots, rows]``. ``multipliers`` int64 ``[n]``; ``moduli`` and ``offsets`` int64 ``[heads]``.
Sizes: ``ngram_size`` (n), ``heads_per_ngram`` (h), ``eos``; heads = ``(n - 1) h``.

Call: ``(batch, rows) -> rows``; ``rows`` int64 ``[T, heads]``. Of the token at position p, ``c_0``
is its id; ``c_s`` is the id of the token s places before, or ``eos`` if that lies before the
sequence or one of the tokens at ``p - s .. p - 1`` is ``eos``. Heads ``(m - 2) h`` to
``(m - 1) h`` are of the m-gram, m from 2 to n: ``x_m = c_0 M_0 xor ... xor c_{m-1} M_{m-1}`` and
``rows[j] = x_m mod moduli[j] + offsets[j]``.

Numerics: exact; products are below 2^63.

Effects: on the window as ``causal_conv1d`` on its columns.
"""

from ninfer_core.api import LazyRef, OpContract

CONTRACT = OpContract(
    name="ngram_rows",
    constants=("window", "multipliers", "moduli", "offsets"),
    weights=(),
    sizes=("ngram_size", "heads_per_ngram", "eos"),
    reference=LazyRef("ninfer_ops.ngram_rows.reference:bind"),
)
