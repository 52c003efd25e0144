"""L1: what a pack says of models, and a profile of machines."""

from __future__ import annotations

import time
from pathlib import Path

from ninfer_conformance.subject import Subject
from ninfer_conformance.tolerances import require
from ninfer_core.api import Claim, Detection, ModelDescription, NInferError
from ninfer_core.plugin_host.guard import no_heavy_imports

_FOREIGN = ("BertModel", "WhisperForConditionalGeneration", "ResNetForImageClassification", "")
_MAX_CLAIM_S = 0.02


def claims_its_tiny_model(subject: Subject) -> None:
    """Its own tiny model, always alike, at once; and it can configure it."""
    model = subject.implementation.tiny()
    first, start = _claim(subject, model), time.perf_counter()
    second, seconds = _claim(subject, model), time.perf_counter() - start
    require(first, f"it does not claim its own tiny model {model.architectures}")
    require(first == second, f"asked twice it answers {first} and {second}")
    require(seconds < _MAX_CLAIM_S, f"a claim takes {seconds:.3f} s, more than {_MAX_CLAIM_S} s")
    subject.implementation.configure(model)


def refuses_other_architectures(subject: Subject) -> None:
    """No foreign architecture, nor one whose name merely contains its own."""
    own = subject.implementation.tiny().architectures
    near = [name for mine in own for name in (f"Not{mine}", f"{mine}Vision")]
    for name in (*_FOREIGN, *near):
        for origin in ("artifact", "huggingface", "gguf"):
            model = ModelDescription(origin, (name,) if name else (), {"model_type": name})
            claim = _claim(subject, model)
            require(claim is None, f"it claims {name!r} of {origin} origin: {claim}")


def finds_embedded_models(subject: Subject) -> None:
    """Each is a file, or its absence an error that says what to do."""
    for model in subject.spec.embedded:
        try:
            path = Path(model.locate.load()())
        except NInferError as error:
            require(error.fix, f"{model.name} is absent, and the error has no fix: {error}")
        else:
            require(path.exists(), f"{model.name} is located at {path}, which does not exist")


def detects_a_machine(subject: Subject) -> None:
    """Always alike, and without torch."""
    with no_heavy_imports():
        first, second = (subject.spec.detect.load()() for _ in range(2))
    require(isinstance(first, Detection), f"detect gives {first!r}, which is no Detection")
    require(first == second, f"asked twice it answers {first} and {second}")


def figures_are_sane(subject: Subject) -> None:
    """Figures are positive on every machine, and the budget on the profile's own."""
    profile, figures = subject.implementation, subject.implementation.figures()
    flops = figures.flops.get(profile.compute_dtype, 0)
    least = min(figures.memory_bytes, figures.read_bytes_per_s, figures.launch_s, flops)
    require(least > 0, f"a figure is missing or not positive: {figures}")
    if subject.spec.detect.load()().score is not None:
        budget, most = profile.memory_budget(), 2 * figures.memory_bytes
        require(0 < budget <= most, f"the budget is {budget} bytes, not between 0 and {most}")


def _claim(subject: Subject, model: ModelDescription) -> Claim | None:
    with no_heavy_imports():
        claim: Claim | None = subject.spec.claim.load()(model)
    return claim


PACK_CHECKS = (claims_its_tiny_model, refuses_other_architectures, finds_embedded_models)
PROFILE_CHECKS = (detects_a_machine, figures_are_sane)
