"""What is measured of each target, and what is said of many."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from attrs import frozen
from torch import Tensor

from ninfer_perplexity.scorer import Block


@frozen(eq=False)
class Scores:
    """Of n consecutive targets; natural logarithms.

    :ivar nll: fp64 ``[n]``, negative log probabilities of the targets.
    :ivar divergence: fp64 ``[n]``, KL divergence of the model from the reference, or None.
    :ivar agreement: bool ``[n]``, whether both find the same token most likely, or None.
    """

    nll: np.ndarray
    divergence: np.ndarray | None = None
    agreement: np.ndarray | None = None


@frozen
class Summary:
    """Of many targets: means, in nats.

    :ivar divergence_p99: the 99th percentile. :ivar agreement: a share, 0..1.
    """

    targets: int
    nll: float
    perplexity: float
    divergence: float | None
    divergence_p99: float | None
    agreement: float | None


def score(block: Block, reference: Tensor | None) -> Scores:
    """Measure a block.

    :param reference: log probabilities ``[R, V]`` of the reference, or None.
    """
    nll = -block.log_probs.gather(1, block.targets.unsqueeze(1)).squeeze(1)
    if reference is None:
        return Scores(nll.numpy(force=True))
    theirs = torch.log_softmax(reference.to(block.log_probs), dim=-1)  # was rounded when stored
    shares = theirs.exp()
    divergence = (theirs - block.log_probs).mul_(shares).masked_fill_(shares == 0, 0).sum(-1)
    likeliest = block.log_probs.argmax(-1, keepdim=True)
    # Of tokens that rounding made equally likely, either is the reference's first.
    agreement = theirs.gather(1, likeliest).squeeze(1) == theirs.amax(-1)
    arrays = (each.numpy(force=True) for each in (nll, divergence, agreement))
    return Scores(*arrays)


def join(parts: Sequence[Scores]) -> Scores:
    """Scores of all parts in order; either all have a reference or none."""
    nll = np.concatenate([part.nll for part in parts])
    if parts[0].divergence is None:
        return Scores(nll)
    return Scores(
        nll, np.concatenate([part.divergence for part in parts]),
        np.concatenate([part.agreement for part in parts]),
    )


def summarize(scores: Scores) -> Summary:
    """Means over all targets, of which there is at least one."""
    nll, divergence, agreement = float(scores.nll.mean()), scores.divergence, scores.agreement
    return Summary(
        targets=len(scores.nll), nll=nll, perplexity=float(np.exp(nll)),
        divergence=None if divergence is None else float(divergence.mean()),
        divergence_p99=None if divergence is None else float(np.quantile(divergence, 0.99)),
        agreement=None if agreement is None else float(agreement.mean()),
    )
