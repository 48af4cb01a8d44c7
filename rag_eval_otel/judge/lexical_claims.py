"""What an answer claims, as the offline judge reads it, and whether passages back it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Literal

from rag_eval_otel.judge.lexical_phrases import (
    EVASIVE,
    FRAME,
    GREETING,
    MENTIONED,
    POINTER,
    YES_NO,
)
from rag_eval_otel.judge.text import Term, content, sentences, terms
from rag_eval_otel.judge.text_forms import is_sentence
from rag_eval_otel.judge.text_kinds import read
from rag_eval_otel.judge.text_passages import Passages, Support

_SUPPORTED = 0.6  # share of a claim's weight that must be found
_HALF = 0.5  # what a find counts where one side is negated, or a claim's end is missing
_MAX_CLAIMS = 100
_MAX_READ = 500  # sentences of an answer
_MAX_SHOWN = 1000  # characters of a question that a mere number is shown with
_MAX_FRAMES = 3  # phrases around a sentence, one within the other
_MAX_QUOTED = 6  # missing words named in a reason
_DENIAL = "No, it is not so: "
_CLOSING = "\"'”\u2019 .!)*"  # what may follow a sentence's last word


def claims_of(answer: str, *, question: str = "") -> list[str]:
    """Return the sentences of ``answer`` that claim something of the subject.

    A hint whom to ask is no claim beside another sentence; alone it may be the answer. What claims
    nothing by itself is shown with ``question``: a mere number after it, a mere yes or no as what
    it asks.
    """
    told = _told(answer)
    plain = [sentence for sentence in told if not _is_remark(sentence) and _has_content(sentence)]
    claims = [sentence for sentence in plain if not POINTER.search(sentence)]
    if not claims and not any(EVASIVE.search(sentence) for sentence in told):
        claims = plain or _yes_or_no(told, question)
    shown = " ".join(question[:_MAX_SHOWN].split())
    return [_with_question(MENTIONED.sub("", one), shown) for one in claims[:_MAX_CLAIMS]]


def _with_question(claim: str, question: str) -> str:
    is_number = all(term.kind in {"number", "stop"} for term in terms(claim))
    return f"{question} {claim}" if is_number and question.endswith("?") else claim


def bare(sentence: str) -> str:
    """Return ``sentence`` without phrases such as "according to the document, the answer is"."""
    for _ in range(_MAX_FRAMES):
        sentence = FRAME.sub("", sentence)
    return sentence


def _told(answer: str) -> list[str]:
    return [bare(sentence) for sentence in sentences(answer)[:_MAX_READ]]


def evades(answer: str) -> bool:
    """Tell whether ``answer`` gives none: it says that it cannot, or only greets or asks."""
    told = _told(answer)
    return not claims_of(answer) and (not told or any(_is_remark(sentence) for sentence in told))


def _yes_or_no(told: Sequence[str], question: str) -> list[str]:
    """Return the claim that a mere yes or no makes of ``question``."""
    kind, asked = read(question)
    said = YES_NO.search(" ".join(told))
    if kind != "polar" or not said or not _has_content(asked):
        return []
    asked = " ".join(asked.split()).rstrip("? ")
    return [f"Yes, {asked}." if said["yes"] else f"{_DENIAL}{asked}."]


def _is_remark(sentence: str) -> bool:
    """Tell whether a sentence evades, greets or asks."""
    is_question = sentence.rstrip(_CLOSING).endswith("?")
    return is_question or any(form.search(sentence) for form in (EVASIVE, GREETING))


def _has_content(sentence: str) -> bool:
    return any(term.weight for term in terms(sentence))


def support_of(claim: str, passages: Passages, *, beyond: Iterable[str] = ()) -> Support:
    """Tell how far ``passages`` back ``claim``, apart from the words in ``beyond``."""
    given = set(beyond)
    question, claim = _apart(claim)
    wanted = content(terms(claim))
    if claim.startswith(_DENIAL):
        wanted = [replace(term, is_negated=True) for term in wanted]
    wanted = [term for term in wanted if term.key not in given] or wanted
    found = passages.support(wanted, about=content(terms(question)))
    is_denied = found.is_denied and is_sentence(claim)
    share = _HALF * found.share if is_denied else found.share
    return replace(found, share=_by_end(share, wanted, found), is_denied=is_denied)


def _apart(claim: str) -> tuple[str, str]:
    """Return the question that ``claim`` is shown with, and what is claimed."""
    question, mark, answer = claim.rpartition("? ")
    return (question, answer) if mark and _has_content(answer) else ("", claim)


def _by_end(share: float, wanted: Sequence[Term], found: Support) -> float:
    """Return at most a half where most of a claim's second half, which says the new, is missing."""
    end = wanted[len(wanted) // 2 :]
    missing = {term.key for term in found.missing}
    lost = sum(term.weight for term in end if term.key in missing)
    if len(wanted) > len(end) > 1 and lost and lost >= _HALF * sum(t.weight for t in end):
        return min(share, _HALF)
    return share


def verdict_on(support: Support) -> tuple[Literal[0, 1], str]:
    """Return the verdict on a claim, and what was missing."""
    if support.share >= _SUPPORTED and not support.lacks_exact:
        return 1, "found in the contexts"
    if support.is_denied:
        return 0, "the contexts say the opposite"
    missing = ", ".join(term.text for term in support.missing[:_MAX_QUOTED])
    return 0, f"not found together: {missing or 'all of it'}"
