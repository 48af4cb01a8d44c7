"""`LexicalJudge`: answers every task offline, by comparing words.

No key, no network, no model, always the same reply. It sees whether words, names and numbers
recur, not what they mean: good for wiring, demos and a free first look, not an LLM judge.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal

from rag_eval_otel.errors import UnparsableReplyError
from rag_eval_otel.judge.tasks import (
    JudgedStatement,
    JudgedStatements,
    Rating,
    Reply,
    ReverseQuestion,
    Statements,
    Task,
    Verdict,
    Verdicts,
)
from rag_eval_otel.judge.text import (
    Passages,
    Support,
    Term,
    content,
    keys,
    sentences,
    terms,
    within_limit,
)
from rag_eval_otel.types import Replies

_SUPPORTED = 0.7  # share of a claim's weight that must be found
_MAX_CLAIMS = 100
_MAX_ASKED = 100  # words of a reverse question
_MAX_QUOTED = 6  # missing words named in a reason
_SUBJECT_WORDS = 3  # from which a subject says what was asked
_CLOSING = "\"'”\u2019 .!)*"  # what may follow a sentence's last word

_RELEVANCE = ((0.6, 0.3), (0.7, 0.4))  # by voice: shares from which the rating is 2, and 1
_GROUNDED = (0.8, 0.45)

_SOURCE = r"(?:contexts?|documents?|passages?|texts?|handbooks?|sources?|articles?|pages?)"
_NOT = r"(?: not|n['\u2019]t)"
_EVASIVE = re.compile(
    r"\b(?:"
    rf"(?:i|we) (?:(?:do|could|can|did|was|were|am|are){_NOT}|cannot)(?: \w+){{0,2}}"
    r" (?:know|find|found|answer|say|tell|determine|help|see|provide|access|sure|certain)"
    r"|(?:i am|i['\u2019]m|we are|we['\u2019]re) (?:not sure|unsure)|as an ai"
    r"|unable to (?:answer|find|provide|determine|help|locate|assist|say|tell)"
    r"|can(?:not| not|['\u2019]t) be (?:answered|determined)"
    r"|(?:is|are|was|has|have|find|found|contains?|provides?) (?:no|not enough|insufficient)"
    r" (?:relevant |specific |further |such )?information"
    r"|(?:not|\w+n['\u2019]t) (?:have|provide|contain|give) (?:any |enough |that |specific )?"
    rf"(?:information|details)|{_SOURCE} only mentions?"
    r"|(?:not|\w+n['\u2019]t|never) (?:\w+ )?(?:mentioned|specified|stated|provided|given|covered"
    rf"|found)(?: anywhere)? (?:in|by) (?:\w+ ){{0,3}}{_SOURCE}"
    rf"|{_SOURCE}(?: \w+){{0,3}} do(?:es)?{_NOT}"
    r" (?:\w+ )?(?:mention|specify|say|state|contain|provide|cover|include|answer)"
    r"|je ne (?:sais|peux) pas|je n['\u2019]ai pas (?:trouvé|d['\u2019]information)"
    r"|(?:aucune |pas d['\u2019])information|(?:ich weiß|weiß ich) (?:\w+ ){0,2}nicht"
    r"|(?:ich kann|kann ich) (?:\w+ ){0,4}nichts?|keine (?:information|angabe)\w*"
    r"|no (?:lo )?sé|no puedo|no (?:hay|tengo|encuentro) (?:\w+ )?información"
    r")(?!\w)",
    re.IGNORECASE,
)
_GREETING = re.compile(
    r"^\W*(?:hi|hello|hey|thanks|thank you|welcome|certainly|of course|great question"
    r"|good (?:morning|afternoon|evening|question)|i hope"
    r"|(?:please )?(?:let me know|feel free|go ahead)"
    r"|(?:i am|i['\u2019]m) (?:happy|glad|ready) to"
    r"|bonjour|merci|hallo|guten tag|danke|hola|gracias)\b",
    re.IGNORECASE,
)
_POINTER = re.compile(
    r"^\W*(?:please|i(?: would|['\u2019]d)? (?:recommend|suggest)|bitte|veuillez|por favor"
    r"|(?:you (?:may|might|can|could|should) )?(?:want to |try to )?(?:ask|contact|check|consult)"
    r"|try (?:asking|contacting|checking))\b",
    re.IGNORECASE,
)
_FRAME = re.compile(
    r"^\W*(?:(?:i am|i['\u2019]m) (?:very )?(?:sorry|afraid)|sorry|i apologi[sz]e|je suis désolée?"
    r"|lo siento|(?:according to|based on|as stated in|from) (?:the|your) (?:\w+ )?"
    rf"(?:{_SOURCE}|information)(?: provided)?|(?:the )?answer(?: is)?\s*:)"
    r"(?:\W+(?:but|that)\b)?\W*",
    re.IGNORECASE,
)
_COPULA = re.compile(r"\s(?:is|are|was|were|has|have|ist|sind|war|est|sont|es|son|era)\s")
_LEADS: Mapping[str, re.Pattern[str]] = {
    "Why": re.compile(r"^\W*(?:because|due to|since|so that|in order)\b", re.IGNORECASE),
    "When": re.compile(
        r"\b(?:january|february|september|october|november|december)\b"
        r"|(?:^|\d )(?:march|april|may|june|july|august)\b(?= ?\d|\W*$)"
        r"|^\W*(?:in )?(?:1\d|20)\d\d\W*$",
        re.IGNORECASE,
    ),
    "What percentage": re.compile(r"\d ?(?:%|percent)"),
    "How much": re.compile(r"[$€£] ?\d|\d (?:euro|dollar|pound)"),
    "How many": re.compile(r"(?:^|\s)\d[\d,.]* [a-z]{3}"),
    "Where": re.compile(r"^\W*(?:In|At|On|Near|Between) (?:the )?[A-ZÀ-Þ]"),
    "Who": re.compile(r"^\W*[A-ZÀ-Þ]\w+(?: [A-ZÀ-Þ]\w+){1,2}\W*$"),
}
"""How a question begins, by the first form that the answer has."""


class LexicalJudge:
    """Answers every task by comparing words: offline, free, the same every time.

    A task it does not know is answered by an `UnparsableReplyError`. Texts are read up to
    `text.MAX_CHARACTERS`, so that a reply takes bounded time whatever it is shown.
    """

    model = "lexical"
    revision = 1
    """To be raised with every change of what it answers: a part of the version of its scores."""

    async def reply(self, tasks: Sequence[Task[Any]]) -> Replies:
        """Answer ``tasks`` at once; nothing is requested, so the usage is zero."""
        return Replies(parts=tuple(_answer(task) for task in tasks), model=self.model)


def _answer(task: Task[Any]) -> Reply | UnparsableReplyError:
    answer = _ANSWERS.get(task.prompt)
    if answer is None:
        return UnparsableReplyError(f"the lexical judge cannot answer {task.prompt!r}")
    return answer(task)


def _claims(answer: str) -> list[str]:
    """Return the sentences of ``answer`` that claim something of the subject.

    A hint whom to ask is no claim beside another sentence; alone it may be the answer.
    """
    told = [_FRAME.sub("", sentence) for sentence in sentences(answer)]
    plain = [sentence for sentence in told if not _is_remark(sentence) and _has_content(sentence)]
    claims = [sentence for sentence in plain if not _POINTER.search(sentence)]
    if not claims and not any(_EVASIVE.search(sentence) for sentence in told):
        claims = plain
    return claims[:_MAX_CLAIMS]


def _is_remark(sentence: str) -> bool:
    """Tell whether a sentence evades, greets or asks."""
    is_question = sentence.rstrip(_CLOSING).endswith("?")
    return is_question or any(form.search(sentence) for form in (_EVASIVE, _GREETING))


def _has_content(sentence: str) -> bool:
    return any(term.weight for term in terms(sentence))


def _support(claim: str, passages: Passages, *, beyond: Iterable[str] = ()) -> Support:
    """Tell how far ``passages`` back ``claim``, apart from the words in ``beyond``."""
    given = set(beyond)
    wanted = content(terms(claim))
    return passages.support([term for term in wanted if term.key not in given] or wanted)


def _verdict(support: Support) -> tuple[Literal[0, 1], str]:
    """Return the verdict, and what was missing."""
    if support.share >= _SUPPORTED and not support.lacks_exact:
        return 1, "found in the contexts"
    missing = ", ".join(term.text for term in support.missing[:_MAX_QUOTED])
    return 0, f"not found together: {missing or 'all of it'}"


def _statements(task: Task[Any]) -> Statements:
    return Statements(statements=_claims(task.text("answer")))


def _verdicts(task: Task[Any]) -> Verdicts:
    passages = Passages(task.texts("contexts"))
    judged = [_verdict(_support(claim, passages)) for claim in task.texts("statements")]
    return Verdicts(
        verdicts=[
            Verdict(index=i, verdict=flag, reason=reason)
            for i, (flag, reason) in enumerate(judged, start=1)
        ]
    )


def _judged_statements(task: Task[Any]) -> JudgedStatements:
    passages = Passages(task.texts("contexts"))
    asked = keys(task.text("question"))
    claims = _claims(task.text("answer"))
    judged = [_verdict(_support(claim, passages, beyond=asked)) for claim in claims]
    return JudgedStatements(
        statements=[
            JudgedStatement(statement=claim, verdict=flag, reason=reason)
            for claim, (flag, reason) in zip(claims, judged, strict=True)
        ]
    )


def _rating(share: float, steps: tuple[float, float], *, reason: str) -> Rating:
    full, partly = steps
    if share >= full:
        return Rating(rating=2, reason=reason)
    return Rating(rating=1 if share >= partly else 0, reason=reason)


def _context_relevance_1(task: Task[Any]) -> Rating:
    """Rate by the best single context, read as a whole."""
    asked = content(terms(task.text("question")))
    shares = [_coverage(asked, text) for text in within_limit(task.texts("contexts"))]
    share = max(shares, default=0.0)
    return _rating(
        share, _RELEVANCE[0], reason=f"one context has {share:.0%} of what is asked about"
    )


def _coverage(asked: Sequence[Term], text: str) -> float:
    held = set().union(*(keys(sentence) for sentence in sentences(text)))
    total = sum(term.weight for term in asked)
    return sum(term.weight for term in asked if term.key in held) / total if total else 0.0


def _context_relevance_2(task: Task[Any]) -> Rating:
    """Rate by the best neighbouring sentences."""
    support = _support(task.text("question"), Passages(task.texts("contexts")))
    reason = f"neighbouring sentences have {support.share:.0%} of what is asked about"
    return _rating(support.share, _RELEVANCE[1], reason=reason)


def _groundedness_1(task: Task[Any]) -> Rating:
    """Rate by the share of the answer's words that are found where their sentence is."""
    supports = _supports(task)
    share = sum(support.share for support in supports) / max(1, len(supports))
    return _rating(share, _GROUNDED, reason=f"{share:.0%} of its words are found")


def _groundedness_2(task: Task[Any]) -> Rating:
    """Rate by the claims: 2 if all are backed, 1 if some are."""
    flags = [_verdict(support)[0] for support in _supports(task)]
    share = sum(flags) / max(1, len(flags))
    reason = f"{sum(flags)} of {len(flags)} claims are backed"
    return _rating(share, (1.0, 1 / _MAX_CLAIMS), reason=reason)


def _supports(task: Task[Any]) -> list[Support]:
    passages = Passages(task.texts("contexts"))
    return [_support(claim, passages) for claim in _claims(task.text("answer"))]


def _reverse_question(task: Task[Any]) -> ReverseQuestion:
    claims = _claims(task.text("answer"))
    told = claims or sentences(task.text("answer"))
    evades = not claims and (not told or any(_is_remark(sentence) for sentence in told))
    question = _DRAWS[task.draw % len(_DRAWS)](told) if told else ""
    return ReverseQuestion(question=question, noncommittal=1 if evades else 0)


def _first_sentence(claims: Sequence[str]) -> str:
    sentence = " ".join(claims[0].split()[:_MAX_ASKED])
    return f"{_lead(claims[0])}: {sentence.rstrip(_CLOSING)}?"


def _subject(claims: Sequence[str]) -> str:
    """Ask what stands before the first claim's "is", or for all of its words."""
    subject, *said = _COPULA.split(claims[0], maxsplit=1)
    if said and "," not in subject and len(_words(subject)) >= _SUBJECT_WORDS:
        return f"What is {subject}?"
    return _all_content(claims[:1])


def _all_content(claims: Sequence[str]) -> str:
    words = [word for claim in claims for word in _words(claim)]
    return f"{_lead(claims[0])} {' '.join(words[:_MAX_ASKED])}?"


def _words(claim: str) -> list[str]:
    """Return the words with content; not the numbers, which are what was asked for."""
    return [term.text for term in content(terms(claim)) if term.kind != "number"]


def _lead(claim: str) -> str:
    return next((lead for lead, form in _LEADS.items() if form.search(claim)), "What")


_DRAWS: Sequence[Callable[[Sequence[str]], str]] = (_first_sentence, _subject, _all_content)

_ANSWERS: Mapping[str, Callable[[Task[Any]], Reply]] = {
    "statements": _statements,
    "verdicts": _verdicts,
    "judged_statements": _judged_statements,
    "context_relevance_1": _context_relevance_1,
    "context_relevance_2": _context_relevance_2,
    "groundedness_1": _groundedness_1,
    "groundedness_2": _groundedness_2,
    "reverse_question": _reverse_question,
}
