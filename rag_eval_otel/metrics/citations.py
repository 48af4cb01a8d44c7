"""Do the contexts that an answer cites support what it says?"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from rag_eval_otel.judge import tasks as kinds
from rag_eval_otel.judge.tasks import AskLike
from rag_eval_otel.metrics.base import BaseMetric, in_order, task_about
from rag_eval_otel.metrics.groundedness import sentences_of
from rag_eval_otel.types import EmbedFn, Sample, Score

_RANK = r"[1-9]\d{0,2}"
_MARK = rf"(?:\[\^?{_RANK}(?:[ \t]*[,;][ \t]*\^?{_RANK})*\]|【{_RANK}(?:[:†][^】\n]{{0,80}})?】)"
_MARKER = re.compile(_MARK)
_CLOSING = "\"'\u2019\u201d\u00bb)\\]*\u300d\u300f\uff09"
_STOP = rf"[.!?…।॥\u061f\u06d4。\uff01\uff1f][{_CLOSING}]*"
_AFTER_STOP = re.compile(rf"({_STOP})\s*((?:{_MARK}[ \t]*)+)")
_NOTE = re.compile(r"^[ \t]*\[\^?\d{1,3}\]:.*$", re.MULTILINE)  # what a footnote refers to
_MOST_CITED = 4  # citations of a sentence; a text must not multiply what the judge reads


class Cited(NamedTuple):
    """A sentence of an answer, and the numbers (from 1) of contexts that it cites."""

    text: str
    numbers: tuple[int, ...]

    @property
    def parts(self) -> Iterator[Cited]:
        """For each number, the sentence with this number only, and with all but this number."""
        for number in self.numbers:
            yield Cited(self.text, (number,))
            yield self.without(number)

    def without(self, number: int) -> Cited:
        return Cited(self.text, tuple(n for n in self.numbers if n != number))


def cited_sentences(answer: str) -> list[Cited]:
    """Return the sentences of ``answer`` without their markers, and what each sentence cites."""
    moved = _AFTER_STOP.sub(r" \2\1 ", _NOTE.sub("", answer))  # [1] belongs to what it follows
    cited = []
    for sentence, *_ in sentences_of(moved):
        marks = (re.split("[:†]", mark)[0] for mark in _MARKER.findall(sentence))
        numbers = dict.fromkeys(int(n) for mark in marks for n in re.findall(r"\d+", mark))
        text = " ".join(_MARKER.sub(" ", sentence).split())
        if re.search(r"\w", text):
            cited.append(Cited(text, tuple(numbers)[:_MOST_CITED]))
    return cited


@dataclass(frozen=True, slots=True, kw_only=True)
class CitationRecall(BaseMetric):
    """The share of the answer's sentences that the contexts they cite support together (ALCE).

    The markers ``[1]``, ``[1, 3]``, ``[^1]`` and ``【1†source】`` in the answer cite contexts by
    their rank. One request asks the judge about all sentences. A sentence without a marker, or with
    a marker that points at no context, is not supported.

    Special cases: undefined if the answer has no marker (``no_citations``), or if the judge leaves
    out a verdict (``judge_incomplete``); 0 without contexts (``no_context``).

    Source: citation recall in ALCE (Gao et al. 2023). Per sentence, the first four citations count.
    """

    name: str = "citation_recall"

    blank = {"answer": None, "contexts": 0.0}  # noqa: RUF012  # never changed
    asks = (kinds.CITATIONS,)

    async def compute(self, sample: Sample, ask: AskLike, embed: EmbedFn) -> Score:  # noqa: ARG002
        sentences = cited_sentences(sample.answer)
        if not any(sentence.numbers for sentence in sentences):
            return self.undefined("no_citations")
        contexts = list(dict.fromkeys(sample.context_texts))  # requests show equal ones once
        ranked = enumerate((passage.text for passage in sample.contexts), start=1)
        places = {rank: contexts.index(text) + 1 for rank, text in ranked if text.strip()}
        valid = [s for s in sentences if s.numbers and places.keys() >= set(s.numbers)]
        asked = dict.fromkeys(one for s in valid for one in (s, *s.parts) if one.numbers)
        claims = [f"{', '.join(str(places[n]) for n in one.numbers)}: {one.text}" for one in asked]
        supports: dict[Cited, bool] = {}
        if claims:
            kind = kinds.CITATIONS
            task = task_about(sample, kind, self.examples, contexts=contexts, claims=claims)
            verdicts = in_order((await ask(task)).verdicts, len(claims))
            if verdicts is None:
                return self.undefined("judge_incomplete", detail={"claims": claims})
            flags = (bool(verdict.verdict) for verdict in verdicts)
            supports = dict(zip(asked, flags, strict=True))
        cited = [number for sentence in sentences for number in sentence.numbers]
        detail = {
            "claims": claims,
            "verdicts": [int(flag) for flag in supports.values()],
            "citations": len(cited),
            "invalid": sum(number not in places for number in cited),
        }
        marks = [mark for sentence in sentences for mark in self._marks(sentence, supports)]
        bad = " / ".join(s.text for s in sentences if not supports.get(s))
        why = f"Not backed by what it cites: {bad}" if bad else "All citations hold."
        return self.score_of(sum(marks) / len(marks), explanation=why, detail=detail)

    def _marks(self, sentence: Cited, supports: Mapping[Cited, bool]) -> list[bool]:
        return [supports.get(sentence, False)]


@dataclass(frozen=True, slots=True, kw_only=True)
class CitationPrecision(CitationRecall):
    """The share of the answer's citations that are needed, or support their sentence alone (ALCE).

    A citation is good if all citations of its sentence together support the sentence, and if it
    does so alone, or the others do not without it. A citation of a context that does not exist is
    wrong, and so are the others of its sentence. Markers and special cases are those of
    `CitationRecall`, whose request it shares.

    Source: citation precision in ALCE (Gao et al. 2023), which leaves citations that do not exist
    out of the share.
    """

    name: str = "citation_precision"

    def _marks(self, sentence: Cited, supports: Mapping[Cited, bool]) -> list[bool]:
        if not supports.get(sentence):
            return [False] * len(sentence.numbers)
        alone = [supports[Cited(sentence.text, (n,))] for n in sentence.numbers]
        rests = (supports.get(sentence.without(n)) for n in sentence.numbers)
        return [one or not rest for one, rest in zip(alone, rests, strict=True)]
