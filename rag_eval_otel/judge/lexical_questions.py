"""Questions in the offline judge: those it writes, splits and compares, and what answers them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from rag_eval_otel.judge.lexical_contexts import claims_of, evades
from rag_eval_otel.judge.text import MAX_CHARACTERS, content, keys, sentences, terms
from rag_eval_otel.judge.text_forms import given, is_sentence, told
from rag_eval_otel.judge.text_kinds import MEASURED, AnswerKind, asked, read
from rag_eval_otel.judge.text_questions import agreement

_LEADS: Mapping[AnswerKind, str] = {
    "person": "Who is it",
    "group": "Which organisation is it",
    "place": "Where is it",
    "title": "By what name",
    "time": "When is it",
    "span": "How long is it",
    "count": "How many are there",
    "money": "How much is it",
    "share": "What percentage is it",
    "thing": "What is it",
    "clause": "What about it",
    "reason": "Why is it so",
    "aim": "What is it for",
    "manner": "How is it done",
    "polar": "Is it so",
}
"""How a question is put, by the kind of thing that the answer gives; none has words of content."""

_COPULA = re.compile(
    r"\s(?:is|are|was|were|ist|sind|war|waren|est|sont|était|es|son|era|fue|beträgt|heißt)\s"
)
_PRONOUNS = frozenset(
    "it they he she there this that er sie es man il elle ils".split()  # noqa: SIM905  # as text
)
_ASKING = (
    r"(?:(?:by|in|at|on|for|from|to|until|since|with) )?(?:who|whom|what|which|when|where|why|how"
    r"|wer|was|wann|wo|wie|warum|welche[rsnm]?|qui|quand|où|comment|pourquoi|quel(?:le)?s?|quién|qué"
    r"|cuándo|dónde|cómo|cuál|cuánt[oa]s?)\b"
)
_PARTS = re.compile(
    rf"(?<=\?)\s+|,? +(?:and|und|et|y)(?: also)? +(?={_ASKING})|; *(?={_ASKING})", re.IGNORECASE
)
_INTENT = "To know: "
_DRAWS = 3
_MAX_ASKED = 100  # words of a question
_MAX_SPLIT = 10_000  # characters of a question that are split
_MAX_PARTS = 8
_KIND = 0.4  # what the kind of thing that a sentence gives counts, beside the words it shares
_ANSWERED = 0.4  # from which an answer is one to a question
_FIRST = 20  # claims of an answer among which one may answer a question


def reverse_questions(claims: Sequence[str]) -> list[str]:
    """Return three questions that ``claims`` may answer, the likeliest first.

    A few words alone are what was asked for, so that only their kind is known. Of a sentence that
    says what something is, the question is about that; of others, about all of their words but the
    numbers.
    """
    first = claims[0]
    if not is_sentence(first):
        leads = [_LEADS[kind] for kind in given(first)]
        return [f"{leads[i % len(leads)]}?" for i in range(_DRAWS)]
    subject, kinds = _read(first)
    return [
        _question(kinds[0], [subject]),
        _question(kinds[min(1, len(kinds) - 1)], [subject]),
        _question(kinds[0], claims),
    ]


def _read(sentence: str) -> tuple[str, list[AnswerKind]]:
    """Return what ``sentence`` is about, and the kinds of thing it may tell of that."""
    kinds = told(sentence)
    subject, *said = _COPULA.split(f" {sentence}", maxsplit=1)
    is_plain = said and "," not in subject and subject.strip().casefold() not in _PRONOUNS
    if not is_plain or len(kinds) == 1:
        return sentence, kinds
    of = asked(f"What is {subject}?") or "thing"
    is_it = [] if is_sentence(said[0]) else given(said[0])
    if is_it in (["thing"], ["clause", "thing"]) and kinds[0] != "clause":
        is_it = kinds
    if is_it and (of == "thing" or is_it[0] in MEASURED):
        return subject, is_it
    return (sentence, kinds) if of == "thing" else (subject, [of, kinds[0]])


def _question(kind: AnswerKind, claims: Sequence[str]) -> str:
    words = [term.text for claim in claims for term in terms(claim) if _may_be_asked(term.kind)]
    about = " ".join(words[:_MAX_ASKED])
    return f"{_LEADS[kind]}: {about}?" if about else f"{_LEADS[kind]}?"


def _may_be_asked(kind: str) -> bool:
    return kind not in {"stop", "number"}


def sub_questions(question: str) -> list[str]:
    """Return the parts of ``question`` that have a question word each."""
    shown = " ".join(question[:_MAX_SPLIT].split())
    parts = [part.strip(" ,") for part in _PARTS.split(shown) if part.strip(" ,?")]
    return [part if part.endswith("?") else f"{part}?" for part in parts[:_MAX_PARTS]]


def intent(question: str) -> str:
    """Return ``question`` as something that is wanted."""
    return f"{_INTENT}{' '.join(question[:MAX_CHARACTERS].split())}"


def wanted(purpose: str) -> str:
    """Return the question that is in ``purpose``."""
    return purpose.removeprefix(_INTENT)


def shared_words(question: str, answer: str) -> float:
    """Return the share of what ``question`` is about that ``answer`` names, in [0, 1]."""
    about = [term for part in sentences(read(question)[1]) for term in content(terms(part))]
    held = set().union(*(keys(sentence) for sentence in sentences(answer)))
    total = sum(term.weight for term in about)
    return sum(term.weight for term in about if term.key in held) / total if total else 0.0


def fit(question: str, claim: str) -> float:
    """Return how far ``claim`` gives the kind of thing that ``question`` asks for, in [0, 1]."""
    if not is_sentence(claim):
        return max(agreement(question, kind) for kind in given(claim))
    return max(agreement(question, kind) for kind in _read(claim)[1] + told(claim))


def relevancy(question: str, answer: str) -> float:
    """Return how well ``answer`` addresses ``question``, in [0, 1].

    Few words are judged by the kind of thing they give, sentences by that and by the share of the
    question's words that they name. A refusal is 0.
    """
    claims = claims_of(answer, question=question)[:_FIRST]
    if not claims or evades(answer):
        return 0.0
    kind = max(fit(question, claim) for claim in claims)
    if not any(is_sentence(claim) for claim in claims):
        return kind
    return _KIND * kind + (1 - _KIND) * shared_words(question, answer)


def addresses(question: str, answer: str) -> bool:
    """Tell whether ``answer`` is one to ``question``."""
    return relevancy(question, answer) >= _ANSWERED
