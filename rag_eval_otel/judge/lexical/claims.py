"""What an answer claims, as the offline judge reads it, and how far passages back it."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Collection, Iterable
from itertools import pairwise

from rag_eval_otel.judge.lexical.words import STOP, has_content, sentences, terms, within_limit

_MAX_CLAIMS = 100
_MAX_READ = 500  # sentences of an answer
_LEAST = 2.0  # weight of a sentence that is a claim by itself
_FEW = 4.0  # weight of words with content from which a sentence is more than a greeting
_REACH = 4  # words between what is lacking and what is not told, in a refusal
_ANYWHERE, _SENTENCE, _PAIRS = 3 / 7, 3 / 7, 1 / 7  # what the ways to be found count
_CURVE = 1.6  # makes a share of .65, from which a claim is rather backed than not, a half
_LACKS = 0.7  # what is left where a number or a negation is found nowhere

# A refusal has one of each: a lack, of telling, and who does not tell.
_LACKING = frozenset(
    "not no never cannot nothing unable insufficient incomplete unclear unsure nicht nichts kein"
    " keine keinen pas aucune aucun ningún ninguna".split()
)
_TELLING = frozenset(
    "know find found answer answered say tell determine determined help see provide provided"
    " provides sure certain mention mentioned mentions specify specified specifies state stated"
    " states contain contains contained include covered given available information details"
    " incomplete unclear unsure ai weiß sagen finden beantworten erwähnt angegeben genannt"
    " enthalten angabe angaben informationen sais trouvé précisé mentionné indiqué répondre"
    " informations sé puedo responder información menciona indica".split()
)
_TELLER = frozenset(
    "i we there context contexts document documents passage passages text texts handbook source"
    " sources article articles page pages ich wir das dokument kontext je nous cela contexte texte"
    " documento contexto puedo sé".split()
)
_OPENERS = frozenset(
    "hi hello hey thanks thank welcome certainly sure please contact feel hope bonjour merci"
    " veuillez hallo danke bitte hola gracias".split()
)
_BUT = re.compile(r",? +(?:but|although|though|aber|mais|pero) ", re.IGNORECASE)


def claims_of(answer: str, *, question: str = "") -> list[str]:
    """Return the sentences of ``answer`` that claim something of the subject; none of a refusal.

    What claims next to nothing by itself goes with its neighbour. Where nothing else is said, a
    question back is taken for a claim, and a mere yes or no is shown after ``question``.
    """
    told = _told(answer)
    said = [sentence for sentence in told if not _is_remark(sentence)]
    if not has_content(terms(" ".join(said))):
        shown = told if has_content(terms(" ".join(told))) else [question, *told]
        is_none = not told or any(map(_is_refusal, told)) or not has_content(terms(" ".join(shown)))
        said = [] if is_none else [" ".join(" ".join(shown).split())]
    claims: list[str] = []
    for sentence in said[:_MAX_CLAIMS]:
        if claims and min(_weight(claims[-1]), _weight(sentence)) < _LEAST:
            claims[-1] += f" {sentence}"
        else:
            claims.append(sentence)
    return claims


def evades(answer: str) -> bool:
    """Tell whether ``answer`` gives none: it says that it cannot, or only greets or asks."""
    told = _told(answer)
    said = " ".join(sentence for sentence in told if not _is_remark(sentence))
    return not has_content(terms(said)) and (not told or any(map(_is_remark, told)))


def _told(answer: str) -> list[str]:
    return [part for one in sentences(answer)[:_MAX_READ] for part in _clauses(one)]


def _clauses(sentence: str) -> list[str]:
    """Return what stands before and after a "but", where one of the two only evades."""
    parts = [part for part in _BUT.split(sentence) if has_content(terms(part))]
    return parts if any(map(_is_refusal, parts)) and len(parts) > 1 else [sentence]


def _weight(sentence: str) -> float:
    return sum(term.weight for term in terms(sentence))


def _is_remark(sentence: str) -> bool:
    """Tell whether a sentence evades or, in few words, greets, asks back or sends elsewhere."""
    found = terms(sentence)
    opens = any(term.text.casefold() in _OPENERS for term in found[:1])
    is_short = sum(term.weight for term in found[1:] if term.weight > STOP) < _FEW
    is_question = sentence.rstrip("\"')* ").endswith("?")
    return (is_short and (opens or is_question)) or _is_refusal(sentence)


def _is_refusal(sentence: str) -> bool:
    words = [term.text.casefold() for term in terms(sentence)]
    if _TELLER.isdisjoint(words):
        return False
    lacking = [i for i, word in enumerate(words) if word in _LACKING]
    telling = [i for i, word in enumerate(words) if word in _TELLING]
    return any(-_REACH <= i - j < _REACH for i in lacking for j in telling)


class Passages:
    """Passages, indexed to find what backs a claim.

    A word of it is looked for anywhere, in the sentence that has most of the claim, and beside the
    word that it stands beside in the claim.
    """

    def __init__(self, texts: Iterable[str]) -> None:
        """Index ``texts``, up to `words.MAX_CHARACTERS` in all."""
        self._places: dict[str, list[int]] = defaultdict(list)
        self._pairs: set[tuple[str, str]] = set()
        told = [sentence for text in within_limit(texts) for sentence in sentences(text)]
        for place, sentence in enumerate(told):
            keys = [term.key for term in terms(sentence)]
            self._pairs.update(pairwise(keys))
            for key in set(keys):
                self._places[key].append(place)

    def probability(self, claim: str, *, beyond: Collection[str] = ()) -> float:
        """Return how likely ``claim`` is backed: less than its share, least without a number."""
        exact = {term.key for term in terms(claim) if term.is_exact}.difference(beyond)
        lacks = _LACKS if exact - self._places.keys() else 1.0
        return lacks * math.pow(self.share(claim, beyond=beyond), _CURVE)

    def share(self, claim: str, *, beyond: Collection[str] = ()) -> float:
        """Return the share of ``claim`` that is found, apart from the words in ``beyond``."""
        own = [term for term in terms(claim) if term.key not in beyond]
        found = own if has_content(own) else terms(claim)
        wanted = {term.key: term.weight for term in found}
        total = sum(wanted.values())
        if not total:
            return 0.0
        anywhere = sum(weight for key, weight in wanted.items() if key in self._places) / total
        places: dict[int, float] = defaultdict(float)
        for key, weight in wanted.items():
            for place in self._places.get(key, ()):
                places[place] += weight / total
        pairs = {(a.key, b.key): a.weight + b.weight for a, b in pairwise(found)}
        held = sum(weight for pair, weight in pairs.items() if pair in self._pairs)
        paired = held / sum(pairs.values()) if pairs else anywhere
        best = max(places.values(), default=0.0)
        return _ANYWHERE * anywhere + _SENTENCE * best + _PAIRS * paired
