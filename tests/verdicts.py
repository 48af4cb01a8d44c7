"""Compare the samples found in a recording with its true samples."""

from collections.abc import Sequence
from typing import Literal, TypeAlias

from rag_eval_otel.capture.sample import Outcome
from rag_eval_otel.types import Sample
from replay import Recording, Truth

Verdict: TypeAlias = Literal["exact", "incomplete", "none", "refused", "unstated", "wrong"]
"""``none``: there is no true sample, and none was found. ``incomplete``: only some were found."""


def verdict(recording: Recording, found: Sequence[Outcome]) -> Verdict:
    """Compare question, contexts with their order, answer, and the number of samples."""
    if recording.truths is None:
        return "unstated"
    samples = [one.result for one in found if isinstance(one.result, Sample)]
    if unmatched(recording.truths, samples):
        return "wrong"
    if not recording.truths:
        return "none"
    if not samples:
        return "refused"
    return "exact" if len(samples) == len(recording.truths) else "incomplete"


def unmatched(truths: Sequence[Truth], samples: Sequence[Sample]) -> list[Sample]:
    left, wrong = list(truths), []
    for sample in samples:
        truth = next((one for one in left if _is_true(sample, one)), None)
        if truth is None:
            wrong.append(sample)
        else:
            left.remove(truth)
    return wrong


def _is_true(sample: Sample, truth: Truth) -> bool:
    found = (sample.question, tuple(p.text for p in sample.contexts), sample.answer)
    stated = (truth.question, truth.contexts, truth.answer)
    return all(t is None or t == f for t, f in zip(stated, found, strict=True))
