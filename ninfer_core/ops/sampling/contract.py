"""``sampling``: from logits to tokens, and which drafts are kept.

Sizes: ``vocab_size`` (V).

A bound kernel is not a callable but a :class:`~ninfer_core.sampling.verify.Judge`: its methods and
what they give are that class's, which is the reference too. A kernel is derived from it, and what
it does not do itself it leaves to it.

Numerics: penalties and weights in FP32 or better, masses in FP64 or as exact; ties go to the lower
id. A token may be another than the reference's only where the number that was drawn lies within the
rounding of FP32 of a bound between two tokens, or a filter's bound so near to a token. A
batch-invariant kernel gives a row the same token, bit for bit, whatever other rows there are.

Effects: none; logits stay as they are.
"""

from ninfer_core.api import LazyRef, OpContract

CONTRACT = OpContract(
    name="sampling",
    constants=(),
    weights=(),
    sizes=("vocab_size",),
    reference=LazyRef("ninfer_core.sampling.verify:bind"),
)
