"""What the offline judge says of claims and contexts."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

from rag_eval_otel.judge.replies import (
    Decision,
    JudgedStatement,
    JudgedStatements,
    Rating,
    RelevantContexts,
    RelevantStatements,
    Sentence,
    SupportedSentences,
    TwoMarks,
    Useful,
    Verdict,
    Verdicts,
)
from rag_eval_otel.judge.tasks import Task
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
from rag_eval_otel.judge.text_forms import is_sentence
from rag_eval_otel.judge.text_kinds import read

_SOURCE = r"(?:contexts?|documents?|passages?|texts?|handbooks?|sources?|articles?|pages?)"
_NOT = r"(?: not|n['\u2019]t)"
EVASIVE = re.compile(
    r"\b(?:"
    rf"(?:i|we) (?:(?:do|could|can|did|was|were|am|are){_NOT}|cannot)(?: \w+){{0,2}}"
    r" (?:know|find|found|answer|say|tell|determine|help|see|provide|access|sure|certain)"
    r"|(?:i am|i['\u2019]m|we are|we['\u2019]re) (?:not sure|unsure)|as an ai"
    r"|unable to (?:answer|find|provide|determine|help|locate|assist|say|tell)"
    r"|can(?:not| not|['\u2019]t) be (?:answered|determined|found)"
    r"|no (?:relevant |specific |further )?information (?:is |was )?(?:available|about|on|provided"
    r"|given|found)|there is (?:nothing|no (?:mention|answer))"
    rf"|no (?:\w+ ){{1,4}}(?:mentioned|specified|stated) (?:in|by) (?:\w+ ){{0,2}}{_SOURCE}"
    rf"|{_SOURCE}(?: \w+){{0,4}} (?:is|are) (?:incomplete|silent|unclear)"
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
    r"|nicht (?:erwähnt|angegeben|genannt|enthalten) (?:wird|werden|ist|sind)|wird nicht (?:erwähnt"
    r"|angegeben|genannt)|(?:ne|n['\u2019]) ?(?:mentionne|précise|contient|indique)"
    r"|pas (?:mentionnée?|précisée?|indiquée?)"
    r"|no (?:lo )?sé|no puedo|no (?:hay|tengo|encuentro) (?:\w+ )?información"
    r"|no se (?:menciona|especifica|indica)"
    r")(?!\w)",
    re.IGNORECASE,
)
GREETING = re.compile(
    r"^\W*(?:hi|hello|hey|thanks|thank you|welcome|certainly|of course|great question"
    r"|good (?:morning|afternoon|evening|question)|i hope"
    r"|(?:please )?(?:let me know|feel free|go ahead)"
    r"|(?:i am|i['\u2019]m) (?:happy|glad|ready) to"
    r"|bonjour|merci|hallo|guten tag|danke|hola|gracias)\b",
    re.IGNORECASE,
)
POINTER = re.compile(
    r"^\W*(?:please|i(?: would|['\u2019]d)? (?:recommend|suggest)|bitte|veuillez|por favor"
    r"|(?:you (?:may|might|can|could|should) )?(?:want to |try to )?(?:ask|contact|check|consult)"
    r"|try (?:asking|contacting|checking))\b",
    re.IGNORECASE,
)
FRAME = re.compile(
    r"^\W*(?:(?:i am|i['\u2019]m) (?:very )?(?:sorry|afraid)|sorry|i apologi[sz]e|je suis désolée?"
    r"|lo siento|(?:according to|based on|as stated in|from) (?:the|your) (?:\w+ )?"
    rf"(?:{_SOURCE}|information)(?: provided)?|(?:the )?answer(?: is)?\s*:"
    r"|(?:the )?answer is\b(?! (?:not|un|in|no)\w*\b)|(?:it )?(?:seems|appears)(?: like)? that"
    r"|(?:die )?antwort(?: ist| lautet)?\s*:|laut (?:dem |der )?\w+|(?:la )?réponse(?: est)?\s*:"
    r"|(?:la )?respuesta(?: es)?\s*:|d['\u2019]après le \w+|según el \w+)"
    r"(?:\W+(?:but|that|dass|que)\b)?[\s,:]*",
    re.IGNORECASE,
)
MENTIONED = re.compile(
    rf",? ?(?:\b(?:as|that (?:is|are)) )?\b(?:mentioned|described|stated|provided|given|shown)"
    rf" in the (?:\w+ )?{_SOURCE}",
    re.IGNORECASE,
)
YES_NO = re.compile(r"^\W*(?:(?P<yes>yes|ja|oui|sí)|(?P<no>no|nein|non))\b[\W]*$", re.IGNORECASE)


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


_RELEVANCE = ((0.6, 0.3), (0.7, 0.4))  # by voice: shares from which the rating is 2, and 1
_GROUNDED = (0.8, 0.45)
_ALL_OR_SOME = (1.0, 0.001)
_NEEDED = 0.4  # share of what is asked about from which a sentence is needed
_ON_SUBJECT = 0.3  # share from which a context is about what is asked
_TAKEN = 0.5  # share of an answer's own words that must stand in a context of use
_HALVES = 2

_Steps = tuple[float, float]


def verdicts(task: Task[Any]) -> Verdicts:
    """Tell for every statement whether the contexts back it."""
    passages = Passages(task.texts("contexts"))
    judged = [verdict_on(support_of(claim, passages)) for claim in task.texts("statements")]
    return Verdicts(
        verdicts=[
            Verdict(index=i, verdict=flag, reason=reason)
            for i, (flag, reason) in enumerate(judged, start=1)
        ]
    )


def supported(task: Task[Any]) -> SupportedSentences:
    """Tell for every sentence of an answer whether the contexts back all that it claims."""
    passages, question = Passages(task.texts("contexts")), task.text("question")
    told = task.texts("sentences")
    if not claims_of("\n".join(told), question=question):  # a refusal, with a hint whom to ask
        told = ("",) * len(told)
    claims = [claims_of(text, question=question) for text in told]
    verdicts = [
        Sentence(index=i, verdict=_worth(one, passages, question))
        for i, one in enumerate(claims, start=1)
    ]
    return SupportedSentences(verdicts=verdicts)


def _worth(claims: Sequence[str], passages: Passages, question: str) -> Literal[0, 1, 2]:
    beyond = keys(question)
    flags = [verdict_on(support_of(claim, passages, beyond=beyond))[0] for claim in claims]
    return min(flags) if flags else 2


def judged_statements(task: Task[Any]) -> JudgedStatements:
    """Return the answer's claims with their verdicts; the question's words are given."""
    return _judged(task, "answer")


def reference_statements(task: Task[Any]) -> JudgedStatements:
    """Return the reference's claims with their verdicts; the question's words are given."""
    return _judged(task, "reference")


def _judged(task: Task[Any], name: Literal["answer", "reference"]) -> JudgedStatements:
    passages, question = Passages(task.texts("contexts")), task.text("question")
    beyond = keys(question)
    claims = claims_of(task.text(name), question=question)
    found = [verdict_on(support_of(claim, passages, beyond=beyond)) for claim in claims]
    return JudgedStatements(
        statements=[
            JudgedStatement(statement=claim, verdict=flag, reason=reason)
            for claim, (flag, reason) in zip(claims, found, strict=True)
        ]
    )


def _asked_about(question: str) -> Mapping[str, Term]:
    """Return the terms of what ``question`` is about, apart from its question word, by key."""
    about = [term for term in terms(read(question)[1]) if term.weight]
    return {term.key: term for term in about or content(terms(question))}


def _rating(share: float, *, steps: _Steps, reason: str) -> Rating:
    full, partly = steps
    if share >= full:
        return Rating(rating=2, reason=reason)
    return Rating(rating=1 if share >= partly else 0, reason=reason)


def context_relevance_1(task: Task[Any]) -> Rating:
    """Rate by the best single context, read as a whole."""
    asked = _asked_about(task.text("question"))
    share = max((_coverage(asked, _held(text)) for text in _contexts(task)), default=0.0)
    reason = f"one context has {share:.0%} of what is asked about"
    return _rating(share, steps=_RELEVANCE[0], reason=reason)


def _contexts(task: Task[Any]) -> Iterator[str]:
    return within_limit(task.texts("contexts"))


def _coverage(asked: Mapping[str, Term], held: Iterable[str]) -> float:
    total = sum(term.weight for term in asked.values())
    return _weight(asked, held) / total if total else 0.0


def _weight(asked: Mapping[str, Term], held: Iterable[str]) -> float:
    return sum(asked[key].weight for key in held if key in asked)


def _held(text: str) -> set[str]:
    return set().union(*(keys(sentence) for sentence in sentences(text)))


def context_relevance_2(task: Task[Any]) -> Rating:
    """Rate by the best neighbouring sentences."""
    share = _nearby(task).share
    reason = f"neighbouring sentences have {share:.0%} of what is asked about"
    return _rating(share, steps=_RELEVANCE[1], reason=reason)


def _nearby(task: Task[Any]) -> Support:
    return Passages(task.texts("contexts")).support(_asked_about(task.text("question")).values())


def context_relevancy_rubric(task: Task[Any]) -> TwoMarks:
    """Mark the best single context for the subject, neighbouring sentences for sufficiency."""
    asked = _asked_about(task.text("question"))
    subject = max((_coverage(asked, _held(text)) for text in _contexts(task)), default=0.0)
    sufficiency = _nearby(task).share
    return TwoMarks(
        subject=_mark(subject),
        sufficiency=_mark(sufficiency),
        reason=f"one context has {subject:.0%} of what is asked about, neighbouring sentences"
        f" {sufficiency:.0%}",
    )


def _mark(share: float) -> float:
    return min(2.0, round(2 * _HALVES * share) / _HALVES)


def relevant_statements(task: Task[Any]) -> RelevantStatements:
    """Return the sentences that hold much of what is asked about."""
    return RelevantStatements(
        relevant_statements=[sentence for sentence, flag in _flagged(task) if flag]
    )


def relevant_contexts(task: Task[Any]) -> RelevantContexts:
    """Return the numbers of the contexts with a sentence that holds much of what is asked about."""
    flagged = {sentence for sentence, flag in _flagged(task) if flag}
    told = (set(sentences(text)) for text in task.texts("contexts"))
    return RelevantContexts(numbers=[i for i, one in enumerate(told, start=1) if one & flagged])


def context_statements(task: Task[Any]) -> JudgedStatements:
    """Return every sentence, with whether it holds much of what is asked about."""
    return JudgedStatements(
        statements=[
            JudgedStatement(statement=sentence, verdict=flag) for sentence, flag in _flagged(task)
        ]
    )


def _flagged(task: Task[Any]) -> Iterator[tuple[str, Literal[0, 1]]]:
    asked = _asked_about(task.text("question"))
    least = _NEEDED * sum(term.weight for term in asked.values())
    for text in _contexts(task):
        for sentence in sentences(text):
            weight = _weight(asked, keys(sentence))
            yield sentence, 1 if weight and weight >= least else 0


def useful_for_answer(task: Task[Any]) -> Useful:
    """Tell whether something of the answer can be taken from the context."""
    return _useful(task, "answer")


def useful_for_reference(task: Task[Any]) -> Useful:
    """Tell whether something of the reference can be taken from the context."""
    return _useful(task, "reference")


def _useful(task: Task[Any], name: Literal["answer", "reference"]) -> Useful:
    """Ask for words of the question in the context, and for those that are the answer's own."""
    question, context = task.text("question"), task.text("context")
    passages, beyond = Passages([context]), keys(question)
    claims = claims_of(task.text(name), question=question)
    share = max((support_of(one, passages, beyond=beyond).share for one in claims), default=0.0)
    about = passages.support(_asked_about(question).values()).share
    is_useful = share >= _TAKEN and about >= _ON_SUBJECT
    return Useful(
        verdict=1 if is_useful else 0,
        reason=f"it has {share:.0%} of what the {name} says, {about:.0%} of what is asked about",
    )


def groundedness_1(task: Task[Any]) -> Rating:
    """Rate by the share of the answer's words that are found where their sentence is."""
    supports = _supports(task)
    share = sum(support.share for support in supports) / max(1, len(supports))
    return _rating(share, steps=_GROUNDED, reason=f"{share:.0%} of its words are found")


def groundedness_2(task: Task[Any]) -> Rating:
    """Rate by the claims: 2 if all are backed, 1 if some are."""
    backed, claims = _backed(task)
    reason = f"{backed} of {claims} claims are backed"
    return _rating(backed / max(1, claims), steps=_ALL_OR_SOME, reason=reason)


def _supports(task: Task[Any]) -> list[Support]:
    passages = Passages(task.texts("contexts"))
    return [support_of(claim, passages) for claim in claims_of(task.text("answer"))]


def _backed(task: Task[Any]) -> tuple[int, int]:
    flags = [verdict_on(support)[0] for support in _supports(task)]
    return sum(flags), len(flags)


def response_supported(task: Task[Any]) -> Decision:
    """Tell whether every claim of the answer is backed."""
    backed, claims = _backed(task)
    return Decision(passing=0 < claims == backed, reason=f"{backed} of {claims} claims are backed")


def response_relevancy(task: Task[Any]) -> Decision:
    """Tell whether the contexts are about the question and back the answer to it."""
    about = _nearby(task).share
    flags = [one.verdict for one in judged_statements(task).statements]
    is_backed = bool(flags) and all(flags) and not evades(task.text("answer"))
    return Decision(
        passing=is_backed and about >= _ON_SUBJECT,
        reason=f"{sum(flags)} of {len(flags)} claims are backed, by contexts with {about:.0%} of"
        " what is asked about",
    )
