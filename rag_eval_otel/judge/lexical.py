"""`LexicalJudge`: the offline judge, which compares words and does not know what they mean.

Question words tell the kind of thing that is asked for; dates, numbers and names, what is given.
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import cache, cached_property, lru_cache, partial
from importlib.resources import files
from itertools import chain, pairwise
from statistics import fmean, harmonic_mean
from typing import Any, Literal, NamedTuple, TypeAlias

from rag_eval_otel.errors import JudgeTooLongError, UnparsableReplyError, UnsuitableJudgeError
from rag_eval_otel.judge import tasks as say
from rag_eval_otel.judge.tasks import Task
from rag_eval_otel.types import Replies
from rag_eval_otel.untrusted import normal_form

MAX_CHARACTERS = 100_000  # limit of a text, and of all passages together
MAX = 10_000  # most characters of a question or an answer: four pages, read in a second
_PLACES = 500  # sentences in which a word is compared; a word that is in more of them tells little
NUMBER, WORD, PAIR, STOP = 2.0, 1.0, 0.5, 0.3  # weights; PAIR: of two characters

_STEM, _LEAST = 6, 3  # letters that are compared; fewest letters of a content word
_STOP_WORDS = frozenset(
    "about all also and any are because been being but can could did does each for from had has"
    " have her him his how into its just many may might more most much must one only other our over"
    " shall she should some such than that the their them then there these they this those very was"
    " were what when where which while who whom whose why will with would yes you your".split()
)
_NEGATIONS = frozenset("not never cannot without nicht kein keine nie pas".split())
_UNITS = "two three four five six seven eight nine ten".split()
_NUMBERS = {word: str(number) for number, word in enumerate(_UNITS, start=2)}
_MARKS = (  # signs of vowels and tones, which `\w` does not match
    "\u0300-\u036f\u0591-\u05bd\u05bf-\u05c7\u0610-\u061a\u064b-\u065f\u0670\u06d6-\u06ed"
    "\u0900-\u0963\u0970-\u0dff\u200c\u200d"
)
_DENSE = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17df\u3040-\u30ff\u3400-\u9fff"
_DENSE += "\uac00-\ud7af\uf900-\ufaff\U00020000-\U0003ffff"
_RUN = re.compile(rf"[{_DENSE}]+")
_TOKEN = re.compile(rf"\d+(?:[.,:]\d+)+|[\w{_MARKS}{_DENSE}]+")
_THOUSANDS = re.compile(r"(?<=\d),(?=\d{3}(?!\d))")
_MARK = re.compile(r"\[\^?\d{1,3}\]|^[ \t]*(?:[-*•\u2013#>]+|\(?\d{1,2}[.)])\s+", re.MULTILINE)
_BREAK = re.compile(
    r"(?<=[.!?…])[\"'”\u2019»)\]*]*\s+(?![\sa-zà-þ])|;\s+|[\n\r]+"
    r"|(?<=[\u0964\u0965\u061f\u06d4\u3002\uff01\uff1f])"
)

_MAX_CLAIMS, _MAX_READ = 100, 500  # most claims, and most sentences, of an answer
_OPENING = 3  # first words of a sentence, which show whether it is a greeting
_CLAIM = 2.0  # least weight of a sentence that is a claim by itself
_FEW = 4.0  # weight of content words from which a sentence is more than a greeting
_CURVE = 1.6  # power that turns a share of .65 (as likely backed as not) into a half
_LACKS = 0.7  # factor if a number or a negation is found nowhere

# A refusal is recognised by the roles of its words, each a letter.
_WORD = re.compile(rf"[{_DENSE}]|(?:[^\W{_DENSE}]|[{_MARKS}])+")
_LONGEST = 4  # most words, or characters, of an entry of refusals.txt
_REFUSAL = re.compile(r"U|N[^D]{0,7}[TG]|T[^DX]{0,3}N")
_REFUSAL_OF = re.compile(r"N[^D]{0,12}[TW]|[TWG][^DX]{0,15}N|B")
_REPORTED = re.compile(r"D|[^NSIQFUB]{0,20}(?:,D|T[DX])")  # somebody says that ...
_NAMED = frozenset("SIQF")  # the roles without which `_REFUSAL_OF` is no refusal
_LONGEST_STEM = 20  # characters of a word that are compared with stems
_TELLING = 3.0  # weight of words from which a clause after a refusal tells something
_QUOTED = re.compile(r'"[^"]*(?:"|$)|[“„][^“”„]*(?:[“”]|$)|«[^»«]*(?:»|$)|「[^」「]*(?:」|$)')
_CLAUSE = re.compile(
    r"(?i)[,:\u060c\u2013\u2014] +|[\u3001\uff0c\uff1a]|(?<=지만) "
    r"| (?=(?:but|although|though|aber|pero|aunque|però|но|хотя|maar|ale|ama|لكن|लेकिन) )"
)
_BUT = re.compile(r"(?i)^(?:but|although|though|aber|mais|pero|aunque|ma|però|mas|но|хотя) ")
_PORTUGUESE = re.compile(r"(?i)\b(?:ao|dos|em|é|não|os|são|uma?)\b")
_IN = re.compile(r"(?i)\bno\b")  # in Portuguese: "in the"
_OPENERS = frozenset(
    "hi hello hey thanks thank welcome certainly sure please contact feel hope bonjour merci"
    " veuillez hallo danke bitte hola gracias".split()
)
_FRAME = re.compile(
    r"(?i)^(?:(?:the )?answer(?: is)?:?|(?:based on|according to) (?:the )?(?:\w+ )?"
    r"(?:document|context|passage|text|article|handbook|information)s?),? +"
)


class Term(NamedTuple):
    """A word; words with equal ``key`` match. A claim scores less if an exact word is missing."""

    key: str
    text: str
    weight: float
    is_exact: bool = False


def sentences(text: str) -> list[str]:
    pieces = _BREAK.split(_MARK.sub(" ", text[:MAX_CHARACTERS]))
    return [piece.strip() for piece in pieces if _TOKEN.search(piece)]


def within_limit(texts: Iterable[str]) -> Iterator[str]:
    left = MAX_CHARACTERS
    for text in texts:
        yield text[:left]
        left = max(0, left - len(text))


def terms(text: str) -> list[Term]:
    text = normal_form(text[:MAX_CHARACTERS])[:MAX_CHARACTERS]
    text = _THOUSANDS.sub("", text.replace("\u2019", "'").replace("n't", " not"))
    if _RUN.search(text):
        text = _RUN.sub(r" \g<0> ", text)
    return [term for token in _TOKEN.findall(text) for term in _terms(token)]


def _terms(token: str) -> list[Term]:
    if _RUN.match(token):
        pairs = (token[i : i + 2] for i in range(max(1, len(token) - 1)))
        return [Term(pair, pair, PAIR) for pair in pairs]
    word = token.casefold()
    if word[0].isdecimal() or word in _NUMBERS:
        written = _NUMBERS.get(word, word).replace(",", ".")
        digits = "".join(str(unicodedata.decimal(one, one)) for one in written)
        return [Term(digits.lstrip("0") or "0", token, NUMBER, is_exact=True)]
    if word in _NEGATIONS:
        return [Term("not", token, WORD, is_exact=True)]
    is_stop = len(word) < _LEAST or word in _STOP_WORDS
    return [Term(word[:_STEM], token, STOP if is_stop else WORD)]


def has_content(found: Iterable[Term]) -> bool:
    return any(term.weight > STOP and term.key != "not" for term in found)


def keys_of(text: str) -> set[str]:
    return {term.key for term in terms(text)}


def claims_of(answer: str, *, question: str = "") -> list[str]:
    """Return the statements of ``answer``; a refusal or a greeting makes none.

    The claim of an answer that is only a yes or a no is ``question``, followed by this word.
    """
    told, said, refuses = _read(answer)
    if not said and told and not refuses:
        shown = told if has_content(terms(" ".join(told))) else [question, *told]
        said = [" ".join(" ".join(shown).split())] if has_content(terms(" ".join(shown))) else []
    claims: list[str] = []
    for sentence in said[:_MAX_CLAIMS]:
        if claims and any(sum(t.weight for t in terms(s)) < _CLAIM for s in (claims[-1], sentence)):
            claims[-1] += f" {sentence}"
        else:
            claims.append(sentence)
    return claims


def evades(answer: str) -> bool:
    """Return True if ``answer`` only refuses to answer, greets, or asks the user a question."""
    told, said, refuses = _read(answer)
    return not said and (not told or refuses or any(map(_is_remark, told)))


def _read(answer: str) -> tuple[list[str], list[str], bool]:
    """Return the sentences of ``answer``, their parts that may be claims, and if it refuses."""
    told = sentences(answer)[:_MAX_READ]
    read = [_clauses(sentence) for sentence in told]
    refuses = any(clause.refuses for clauses in read for clause in clauses)
    said: list[str] = []
    for sentence, clauses in zip(told, read, strict=True):
        if any(clause.refuses for clause in clauses):
            said += _beside_refusal(clauses)
        elif not (
            _is_remark(sentence)
            or (refuses and any(one.is_courtesy for one in clauses) and not _has_number(sentence))
        ):
            said.append(_FRAME.sub("", sentence))
    found = [term for term in terms(" ".join(said)) if term.weight > STOP]
    is_little = refuses and sum(term.weight for term in found) < _CLAIM
    return told, [] if is_little or not has_content(found) else said, refuses


class _Clause(NamedTuple):
    text: str
    roles: str  # of its words
    refuses: bool

    @property
    def is_courtesy(self) -> bool:
        """Whether the clause only goes with a refusal: an apology, advice, what the speaker did."""
        return "F" in self.roles or "I" in self.roles


def _has_number(text: str) -> bool:
    return any(map(str.isdecimal, text))


def _clauses(sentence: str) -> list[_Clause]:
    """Return the clauses of ``sentence``. Quotations and what others said are no refusals."""
    shown = _QUOTED.sub(lambda quoted: "_" * len(quoted[0]), sentence)
    shown = _IN.sub("em", shown) if _PORTUGUESE.search(shown) else shown
    cuts = [(0, 0), *(cut.span() for cut in _CLAUSE.finditer(shown)), (len(shown), 0)]
    spans = [slice(start, end) for (_, start), (end, _) in pairwise(cuts)]
    roles = [_roles_of(shown[span]) for span in spans]
    is_named = not _NAMED.isdisjoint(chain.from_iterable(roles))
    is_report = bool(_REPORTED.match(",".join(roles)))
    clauses = []
    for span, one in zip(spans, roles, strict=True):
        is_report = is_report or "P" in one
        is_others = is_report or ("R" in one and not is_named)
        refuses = _REFUSAL.search(one) or (is_named and _REFUSAL_OF.search(one))
        clauses.append(_Clause(sentence[span], one, bool(refuses) and not is_others))
    return clauses


@cache
def _table() -> Mapping[str, str]:
    """Return the role, a letter, of each word or phrase in refusals.txt."""
    text = (files("rag_eval_otel.judge") / "refusals.txt").read_text(encoding="utf-8")
    lines = (line.split() for line in normal_form(text).splitlines() if line[0] != "#")
    return {
        " ".join(_WORD.findall(entry.replace("_", " "))) + "*" * entry.endswith("*"): role
        for role, *entries in lines
        for entry in entries
    }


def _roles_of(text: str) -> str:
    text = normal_form(text).replace("\u2019", "'").casefold()
    words = _WORD.findall(text.replace("cannot", "can not").replace("n't", " not"))
    known, roles, start = _table(), "", 0
    while start < len(words):
        entries = ((" ".join(words[start : start + n]), n) for n in range(_LONGEST, 0, -1))
        role, count = next(((known[one], n) for one, n in entries if one in known), ("", 1))
        roles += role or _role_of(words[start][:_LONGEST_STEM])
        start += count
    return roles


@lru_cache(maxsize=10_000)
def _role_of(word: str) -> str:
    stems = (f"{word[:end]}*" for end in range(len(word), 0, -1))
    return next((_table()[stem] for stem in stems if stem in _table()), ".")


def _beside_refusal(clauses: Sequence[_Clause]) -> list[str]:
    """Return the clauses of a sentence with a refusal that say something beside it."""
    said: list[str] = []
    follows = contrasts = False
    for clause, after in zip(clauses, [*clauses[1:], clauses[0]], strict=True):
        follows = follows or clause.refuses
        contrasts = "C" in clause.roles or (contrasts and not clause.refuses)
        weight = sum(term.weight for term in terms(clause.text))
        tells = (weight >= _TELLING or _has_number(clause.text)) and clause.roles[:1] not in "XD"
        is_own = contrasts or "C" in after.roles or (follows and tells)
        if is_own and not clause.refuses and (_has_number(clause.text) or not clause.is_courtesy):
            said.append(_BUT.sub("", clause.text))
    return said


def _is_remark(sentence: str) -> bool:
    found = terms(sentence)
    opens = any(term.text.casefold() in _OPENERS for term in found[:_OPENING])
    is_short = sum(term.weight for term in found[1:] if term.weight > STOP) < _FEW
    is_question = sentence.rstrip("\"')* ").endswith("?")
    return is_short and (opens or is_question)


class Passages:
    """Passages, indexed by word, to compute how probable it is that they support a claim."""

    def __init__(self, texts: Iterable[str]) -> None:
        self._places: dict[str, list[int]] = defaultdict(list)
        told = (sentence for text in within_limit(texts) for sentence in sentences(text))
        found = [[term.key for term in terms(sentence)] for sentence in told]
        self._pairs = set(pairwise(chain.from_iterable(found)))
        for place, keys in enumerate(found):
            for key in set(keys):
                if len(self._places[key]) < _PLACES:
                    self._places[key].append(place)

    def probability(self, claim: str, *, beyond: Collection[str] = ()) -> float:
        said = terms(claim)
        wanted = _weights(said, beyond)
        exact = {term.key for term in said if term.is_exact}.difference(beyond)
        lacks = _LACKS if exact - self._places.keys() else 1.0
        anywhere = self._anywhere(wanted)
        by_sentence: dict[int, float] = defaultdict(float)
        for key, weight in wanted.items():
            for place in self._places.get(key, ()):
                by_sentence[place] += weight
        near = [(a, b) for a, b in pairwise(said) if a.key in wanted or b.key in wanted]
        pairs = {(one.key, next_.key): one.weight + next_.weight for one, next_ in near}
        held = sum(weight for pair, weight in pairs.items() if pair in self._pairs)
        in_pairs = held / sum(pairs.values()) if pairs else anywhere
        best = max(by_sentence.values(), default=0.0)
        share = (3 * anywhere + 3 * best + in_pairs) / 7  # a pair of words weighs less
        return lacks * math.pow(min(1.0, share), _CURVE)

    def share(self, claim: str, *, beyond: Collection[str] = ()) -> float:
        return self._anywhere(_weights(terms(claim), beyond))

    def _anywhere(self, wanted: Mapping[str, float]) -> float:
        return min(1.0, sum(weight for key, weight in wanted.items() if key in self._places))


def _weights(said: Sequence[Term], beyond: Collection[str]) -> dict[str, float]:
    own = [term for term in said if term.key not in beyond]
    weights = {term.key: term.weight for term in (own if has_content(own) else said)}
    total = sum(weights.values())
    return {key: weight / total for key, weight in weights.items()}


Kind: TypeAlias = Literal["name", "place", "time", "amount", "said", "thing", "polar", "any"]
Forms: TypeAlias = Mapping[Kind, re.Pattern[str]]

_ASKING: Mapping[Kind, str] = {  # if two match at the same place, the first one counts
    "amount": r"how much|how (?:many|few|long|old|often|soon|far|tall|high|deep|wide|large|big"
    r"|heavy|fast|hot|cold)|was koste[nt]|wie ?(?:viele?|lange|alt|oft|hoch|weit|groß|schwer|tief)"
    r"|combien|quel âge|cuánt[oa]s?",
    "name": r"who|whom|whose|by what name|wer|wem|wen|wessen|wie heißt|qui|quién(?:es)?",
    "place": r"where|wo|wohin|woher|où|a?dónde",
    "time": r"when|wann|quand|cuándo",
    "any": r"what about",
    "said": r"why|how|warum|wieso|wie|wozu|pourquoi|comment|por qué|cómo",
    "thing": r"what|which|was|welche[rsnm]?|qu'est-ce qu[ie]|que|quoi|quel(?:le)?s?|qué|cuál\w*",
}
_ASKED: Forms = {kind: re.compile(rf"\b(?:{form})\b") for kind, form in _ASKING.items()}
_LEADS = {kind: form.partition("|")[0].capitalize() for kind, form in _ASKING.items()}
_POLAR = re.compile(
    r"^\W*(?:is|are|was(?! (?:ist|muss|kann|kostet|macht|braucht))|were|do|does|did|can|could|may"
    r"|must|shall|should|will|would|has|have|had|ist|sind|war|hat|kann|darf|muss|wird|gibt|est-ce"
    r"|peut-on|hay|puede)\b"
)
_PARTS = re.compile(
    rf"(?i)(?<=\?) |,? (?:and|und|et|y) (?=(?:by |in |at |for |since |until )?"
    rf"(?:{'|'.join(_ASKING.values())})\b)"
)
_NOUNS: Mapping[Kind, str] = {
    "name": "actor actress agency album artist association author band book brand character club"
    " company composer director episode film game group king leader magazine man movie name novel"
    " person player president producer school series show singer song team title university writer",
    "place": "address birthplace capital city country county district island location place region"
    " state street town venue village",
    "time": "birthday century date day decade era hour month season time week year",
    "amount": "age amount budget capacity charge cost count deposit depth distance dose duration"
    " fee frequency height income length limit maximum minimum number pay percentage period"
    " population price rate rating ratio rent salary score size speed temperature value weight",
}
_HEADS: Mapping[str, Kind] = {one: kind for kind, nouns in _NOUNS.items() for one in nouns.split()}
_MONTH = (
    r"(?:jan|feb|f[eé]v|m[aä]r|a[pbv]r|ma[iy]|jun|jui|jul|aug|ao[uû]|ago|sep|o[ck]t|nov|d[eé][cz]"
    r"|ene)[a-zé]{0,7}"
)
_FIGURES: Forms = {
    "time": re.compile(
        rf"(?i)\b(?:{_MONTH} \d|\d\d?(?:st|nd|rd|th|\.)? (?:of |de )?{_MONTH}\b|(?:1\d|20)\d\ds?\b"
        rf"|(?:on|by|until|each|every|am|bis|le|el) (?:{_MONTH}\b|morning|\w+(?:day|tag|di)s?\b)"
        r"|\d\d?[:.]\d\d\b|\d\d? ?(?:am|pm|uhr|h)\b|\w+ (?:century|jahrhundert)\b|^when\b)"
    ),
    "amount": re.compile(
        r"(?i)(?<![\w-])(?:\d[\d.,]*|two|three|four|five|six|seven|eight|nine|ten|hundred|zwei|drei"
        r"|vier|fünf|sechs|deux|trois|quatre|cinq|dos|tres|cuatro|cinco|half an?|none|once|twice"
        r"|\w+mal)(?!\w|-[a-z])"
    ),
}
_CALLED: Forms = {
    "place": re.compile(r"\b(?:[Ii]n|[Aa]t|near|from|im|am|bei|à|en) (?:the |la )?[A-ZÀ-Þ]\w"),
    "name": re.compile(r"(?<=[\w,] )[A-ZÀ-Þ][\w.-]+ (?:(?:of|the|de|von) )*[A-ZÀ-Þ]|[\"“„«]\w"),
}
_MARKED: Forms = {
    "polar": re.compile(r"(?i)^(?:yes|no|yeah|nope|ja|nein|doch|oui|non|sí)\b"),
    "said": re.compile(r"(?i)^(?:because|due to|to|by|weil|um|durch|parce|pour|porque|para) "),
}
_AT = re.compile(r"(?i)(?:in|at|near|from|on|im|am|beim?|à|au|dans|en) ")
_IN_COMMON: Mapping[Kind, Mapping[str, float]] = {  # how similar a kind is to other kinds
    "place": {"name": 0.5},
    "time": {"amount": 0.3},
    "thing": {"name": 0.6, "said": 0.4, "amount": 0.2},
    "any": dict.fromkeys([*_ASKING, "polar"], 1.0),
}

_READ = 1000  # the question word is in so many characters
_WINDOW = 5  # words after "what" among which its noun is searched
_TELLS, _LONG = 5, 40  # words: a longer answer may give several kinds, a very long one any
_MAX_ASKED = 8  # most words of an answer in a question generated from it
_TOPIC, _BY_USER = 4, 3.0  # words of a topic; weight of a user's message beside the assistant's
_STANDS = 3  # words with which a question stands alone; it gets missing ones from the topic
_GIVES, _UNKNOWN = 0.15, 0.5  # weight of the kind of thing in a context; value if not recognisable
_COVERING = 0.62  # power that turns a share of .33 (few contexts below it serve) into a half
_ABOUT, _ASKS = 0.75, 0.25  # weights of the words of a question, and of the kind of thing
_COMMON = 0.6  # weight of a feature that all texts have


def read(question: str) -> tuple[Kind | None, str]:
    """Return the kind of thing asked for, or None, and ``question`` without its question word."""
    text = question[:_READ].lower().replace("\u2019", "'")
    is_marked = "?" in text and len(question) <= _READ
    polar = _POLAR.search(text)
    if is_marked and polar:
        return "polar", question[polar.end() : MAX]
    found = [(match, kind) for kind, form in _ASKED.items() if (match := form.search(text))]
    match, asked = min(found, key=lambda one: one[0].start(), default=(None, None))
    if match is None or (match.start() and not is_marked):
        return "thing" if is_marked else None, question[:MAX]
    if asked == "thing":  # the last noun that is known says which kind of thing
        nouns = re.findall(r"[^\W\d_]+", text[match.end() :])[:_WINDOW]
        kinds = [_HEADS.get(noun) or _HEADS.get(noun.removesuffix("s")) for noun in nouns]
        asked = next((kind for kind in reversed(kinds) if kind), asked)
    return asked, f"{question[: match.start()]} {question[match.end() : MAX]}"


def _kinds_of(claims: Sequence[str]) -> list[Kind]:
    """Return three kinds of thing (name, time, ...) that ``claims`` may state, likeliest first."""
    text = " ".join(claims)
    words = text.split()
    found = _matching(_MARKED, text)
    if len(claims) != 1 or len(words) >= _LONG:
        found = ["any"]
    elif not found and len(words) >= _TELLS:
        found = [*_matching(_FIGURES, text)[:1], *_matching(_CALLED, text)[:1], "said", "thing"]
        found = [found[0], found[1], found[0]]
    found = found or _matching(_FIGURES, text)[:1]
    if not found:
        capitals = sum(word.lstrip("\"'“„«(")[:1].isupper() for word in words)
        named: list[Kind] = ["name"] if len(words) > 1 else ["name", "thing", "place"]
        found = ["thing"] if 2 * capitals <= len(words) else named
        found = ["place"] if _AT.match(text) or "," in text else found
    return (found * 3)[:3]


def _matching(forms: Forms, text: str) -> list[Kind]:
    return [kind for kind, form in forms.items() if form.search(text)]


def topic_of(history: Iterable[str]) -> dict[str, tuple[str, float]]:
    """Return the four words that most messages in ``history`` have: text and weight by key."""
    weights: dict[str, float] = defaultdict(float)
    texts: dict[str, str] = {}
    for role, _, text in (message.partition(": ") for message in history):
        said = {term.key: term.text for term in reversed(terms(text)) if _is_word(term)}
        texts = {**said, **texts}
        for key in said:
            weights[key] += _BY_USER if role == "user" else 1.0
    most = sorted(weights, key=lambda key: -weights[key])[:_TOPIC]
    return {key: (texts[key], weights[key]) for key in most}


def _is_word(term: Term) -> bool:
    return term.weight in (PAIR, WORD) and not term.is_exact


def reverse_questions(answer: str) -> list[str]:
    claims = claims_of(answer) or sentences(answer)
    said = filter(_is_word, terms("\n".join(claims)))
    counts = Counter(term.text.casefold() for term in said)
    about = " ".join(word for word, _ in counts.most_common(_MAX_ASKED))
    leads = [_LEADS.get(kind, "Is it so") for kind in _kinds_of(claims)]
    return [f"{lead}: {about}?" if about else f"{lead}?" for lead in leads if claims]


def features(text: str) -> dict[str, float]:
    """Return a unit vector: words of ``text``, what it asks for, and what all texts share.

    A text without words has no features.
    """
    kind, rest = read(text)
    words: dict[str, float] = defaultdict(float)
    for term in terms(rest):
        words[f"word {term.key}"] += term.weight if term.weight > STOP or not kind else 0.0
    parts = _scaled(_scaled(words, _ABOUT) | _scaled(_features_of(kind), _ASKS), 1.0)
    return _scaled(parts | {"text": math.sqrt(_COMMON)}, 1.0) if parts else {}


def _features_of(kind: Kind | None) -> dict[str, float]:
    common = {kind: 1.0, **_IN_COMMON.get(kind, {})} if kind else {}
    return {f"asks for {name}": weight for name, weight in common.items()}


def _scaled(weights: Mapping[str, float], square: float) -> dict[str, float]:
    length = math.hypot(*weights.values())
    scale = math.sqrt(square) / length if length else 0.0
    return {name: scale * weight for name, weight in weights.items() if weight}


def similarity(one: str, other: str) -> float:
    return _cosine(features(one), features(other))


def _cosine(one: Mapping[str, float], other: Mapping[str, float]) -> float:
    return min(1.0, sum(weight * other.get(name, 0.0) for name, weight in one.items()))


def relevancy(question: str, answer: str) -> float:
    if evades(answer):
        return 0.0
    kind, about = read(question)
    asked, given = _scaled(_features_of(kind), 1.0), _kinds_of(claims_of(answer))
    fit = fmean(_cosine(asked, _scaled(_features_of(one), 1.0)) for one in given)
    return min(1.0, math.sqrt(_ABOUT * _share(about, answer, least=PAIR) + _ASKS * fit))


def coverage(question: str, context: str) -> float:
    kind, rest = read(question)
    share = _share(rest if has_content(terms(rest)) else question, context, least=STOP)
    form = {**_FIGURES, **_CALLED}.get(kind or "any")
    gives = bool(form.search(context)) if form else _UNKNOWN
    return math.pow((1 - _GIVES) * share + _GIVES * gives, _COVERING) if share else 0.0


def _share(about: str, text: str, *, least: float) -> float:
    wanted = {term.key: term.weight for term in terms(about[:MAX]) if term.weight >= least}
    held = keys_of(text)
    total = sum(wanted.values())
    found = sum(weight for key, weight in wanted.items() if key in held)
    return min(1.0, found / total) if total else 0.0


def sub_questions(question: str) -> list[str]:
    parts = (part.strip(" ,") for part in _PARTS.split(" ".join(question[:MAX].split())))
    asked = [part for part in parts if part.strip("?")][:8]
    return [part if part.endswith("?") else f"{part}?" for part in asked]


FULL, EVEN, PART = 0.75, 0.5, 0.25  # least shares: rating 2, a yes, rating 1
_BY_THE_LEAST = 2  # the groundedness prompt for which the worst claim counts, not the mean
_INTENT = "To know: "
_SHOWN = frozenset({"context", "contexts", "question"})  # which are read up to their own limits
BY_EVIDENCE = frozenset(
    "verdicts supported judged_statements reference_statements groundedness response_supported"
    " context_relevance relevant_contexts useful_for_answer useful_for_reference".split()
)
"""The families of tasks whose replies depend on the evidence of `Answers` alone."""

Index: TypeAlias = Callable[[tuple[str, ...]], Passages]


class LexicalJudge:
    """A judge that compares words: offline, free, and with equal replies to equal questions.

    It is good for a first set-up, demos and a free first look at scores. Verdicts and most ratings
    are computed from a probability; at one half, yes and no are equally likely. The judge cannot
    follow instructions (a rubric, a guideline, instructions of your own); its reply to such a task
    is an `UnsuitableJudgeError`. At most 100,000 characters of the contexts are read. If answer,
    reference or history has more than 10,000, the reply is a `JudgeTooLongError`. Instructions
    hidden in an answer or a context have no effect.
    """

    model = "lexical"
    is_offline = True
    label_metrics = frozenset(
        {"context_relevance", "faithfulness", "response_groundedness", "statement_faithfulness"}
    )  # the metrics whose scores separate good answers from bad ones at one half
    revision = 6  # part of the version of a score: raise it whenever the replies change

    async def reply(self, tasks: Sequence[Task[Any]]) -> Replies:
        index = cache(Passages)  # several tasks show the same contexts
        return Replies(parts=tuple(_reply(task, index) for task in tasks), model=self.model)


def _reply(task: Task[Any], index: Index) -> object:
    others = (task.texts(name) for name, _ in task.inputs if name not in _SHOWN)
    if any(sum(map(len, one)) > MAX for one in others):
        return JudgeTooLongError(f"the lexical judge reads at most {MAX:,} characters of it")
    family = "" if task.kind.instructions else task.kind.family
    answer = getattr(Answers(task, index), f"to_{family}", None)
    if answer is not None:
        return answer()
    cause = "it compares words, and cannot follow instructions; take a judge that is a model"
    return UnsuitableJudgeError(f"the lexical judge cannot answer {task.prompt!r}: {cause}")


class Answers:
    """Replies to one task by comparing words: ``to_<family>()`` for each family of prompts."""

    def __init__(self, task: Task[Any], index: Index = Passages) -> None:
        shown = dict(task.inputs)
        self.task = task
        self.asked = task.text("question") if "question" in shown else ""
        self.question = task.text("query") if "query" in shown else self.asked
        self.topic = topic_of(shown.get("history", ())) if self.question == self.asked else {}
        self.answer = next((task.text(n) for n in ("answer", "reference") if n in shown), "")
        self.contexts = next((task.texts(n) for n in ("contexts", "context") if n in shown), ())
        self._index = index

    @cached_property
    def claims(self) -> list[str]:
        return claims_of(self.answer, question=self.asked)

    def support(self, claim: str) -> float:
        return self._index(self.contexts).probability(claim)

    def new_support(self, claim: str) -> float:
        return self._index(self.contexts).probability(claim, beyond=keys_of(self.question))

    def sentence_support(self, sentence: str, claims: Sequence[str]) -> float:  # noqa: ARG002
        return fmean(map(self.support, claims))

    def helps(self, text: str) -> float:
        """Return how far ``text`` covers the question, or with history, question and topic."""
        share = coverage(self.question, text)
        if not self.topic:
            return share
        held = keys_of(text)
        weights = {key: weight for key, (_, weight) in self.topic.items()}
        is_in = sum(weight for key, weight in weights.items() if key in held)
        return fmean((share, is_in / sum(weights.values())))

    def relevances(self) -> list[float]:
        contexts = map(sentences, within_limit(self.contexts))
        return [max(map(self.helps, parts), default=0.0) for parts in contexts]

    def relevance(self) -> float:
        return max(map(self.helps, within_limit(self.contexts)), default=0.0)

    def reason(self, share: float) -> str:
        return f"{share:.0%} agree"

    def to_verdicts(self) -> say.Reply:
        return _verdicts(map(self.support, self.task.texts("statements")))

    def to_supported(self) -> say.Reply:
        texts = self.task.texts("sentences")
        if not claims_of("\n".join(texts), question=self.asked):
            texts = ("",) * len(texts)  # a refusal; its other sentences are no claims
        verdicts = []
        for i, text in enumerate(texts, start=1):
            verdict = say.Sentence(index=i, verdict=2)
            if claims := claims_of(text, question=self.asked):
                verdict = say.Sentence.graded(self.sentence_support(text, claims), index=i)
            verdicts.append(verdict)
        return say.SupportedSentences(verdicts=verdicts)

    def to_citations(self) -> say.Reply:
        return _verdicts(map(self._cited_support, self.task.texts("claims")))

    def _cited_support(self, claim: str) -> float:
        numbers, _, sentence = claim.partition(": ")
        cited = tuple(self.contexts[int(number) - 1] for number in numbers.split(", "))
        return self._index(cited).probability(sentence)

    def to_judged_statements(self) -> say.JudgedStatements:
        return _judged(self.claims, self.support)

    to_reference_statements = to_judged_statements

    def to_groundedness(self) -> say.Reply:
        support = list(map(self.support, self.claims))
        if not support:  # a mere yes or no: it is unknown whether the contexts support it
            return self._rating(0.0 if evades(self.answer) else EVEN)
        least_counts = self.task.kind.voice == _BY_THE_LEAST
        return self._rating(min(support) if least_counts else fmean(support))

    def to_response_supported(self) -> say.Decision:
        flags = [one.verdict for one in self.to_judged_statements().statements]
        reason = f"{sum(flags)} of {len(flags)} claims are backed"
        return say.Decision(passing=bool(flags) and all(flags), reason=reason)

    def to_context_relevance(self) -> say.Reply:
        return self._rating(self.relevance())

    def to_relevant_contexts(self) -> say.Reply:
        relevances = enumerate(self.relevances(), start=1)
        return say.RelevantContexts(numbers=[i for i, one in relevances if one >= EVEN])

    def to_useful_for_answer(self) -> say.Reply:
        support = max(map(self.new_support, self.claims), default=0.0)
        return say.Useful.graded(min(support, self.relevance()))

    to_useful_for_reference = to_useful_for_answer

    def _rating(self, share: float) -> say.Reply:
        rating: Literal[0, 1, 2] = 2 if share >= FULL else 1 if share >= PART else 0
        return say.Rating(rating=rating, reason=self.reason(share)).expecting(2 * share)

    def to_reverse_question(self) -> say.Reply:
        written = reverse_questions(self.answer) or [""]
        question = written[self.task.draw % len(written)]
        return say.ReverseQuestion(question=question, noncommittal=1 if evades(self.answer) else 0)

    def to_standalone_question(self) -> say.Reply:
        own = {term.key for term in terms(read(self.question)[1]) if _is_word(term)}
        named = [text for key, (text, _) in self.topic.items() if key not in own]
        missing = named[: max(0, _STANDS - len(own))]
        return say.StandaloneQuestion(question=" ".join([self.question, *missing]))

    def to_similarities(self) -> say.Reply:
        near = (similarity(self.question, question) for question in self.task.texts("questions"))
        numbered = [say.Similarity(index=i, similarity=one) for i, one in enumerate(near, start=1)]
        return say.Similarities(similarities=numbered)

    def to_direct_relevancy(self) -> say.Reply:
        return say.UnitRating(rating=relevancy(self.question, self.answer))

    def to_sub_questions(self) -> say.Reply:
        return say.SubQuestions(sub_questions=sub_questions(self.question))

    def to_addressed(self) -> say.Reply:
        asked = self.task.texts("sub_questions")
        return _verdicts(relevancy(question, self.answer) for question in asked)

    def to_intent(self) -> say.Reply:
        return say.Intent(intent=_INTENT + " ".join(self.question[:MAX].split()))

    def to_intent_fulfilment(self) -> say.Reply:
        question = self.task.text("intent").removeprefix(_INTENT)
        return say.UnitRating(rating=relevancy(question, self.answer))

    def to_answer_relevancy_rubric(self) -> say.Reply:
        rating = relevancy(self.question, self.answer)
        return say.TwoFlags(subject=1 if rating >= EVEN else 0, focus=1 if rating >= FULL else 0)

    def to_context_relevancy_rubric(self) -> say.Reply:
        mark = 2 * self.relevance()
        return say.TwoMarks(subject=mark, sufficiency=mark)

    def to_context_statements(self) -> say.JudgedStatements:
        parts = [one for text in within_limit(self.contexts) for one in sentences(text)]
        return _judged(parts, self.helps)

    def to_relevant_statements(self) -> say.Reply:
        judged = self.to_context_statements().statements
        copied = [one.statement for one in judged if one.verdict]
        return say.RelevantStatements(relevant_statements=copied)

    def to_statements(self) -> say.Reply:
        return say.Statements(statements=self.claims)

    def to_context_agreement(self) -> say.Reply:
        supported = self.to_response_supported()
        return supported if self.relevance() >= EVEN else say.Decision(passing=False)

    def to_compared_statements(self) -> say.ComparedStatements:
        beyond, sides = keys_of(self.question), map(self.task.text, ("answer", "reference"))
        said, wanted = (claims_of(text, question=self.asked) for text in sides)
        in_said, in_wanted = (partial(Passages(one).share, beyond=beyond) for one in (said, wanted))
        mine, theirs = _judged(said, in_wanted).statements, _judged(wanted, in_said).statements
        return say.ComparedStatements(answer_statements=mine, reference_statements=theirs)

    def _agreement(self) -> float:
        compared = self.to_compared_statements()
        sides = (compared.answer_statements, compared.reference_statements)
        return harmonic_mean([fmean([c.probability for c in one] or [0.0]) for one in sides])

    def to_accuracy(self) -> say.Reply:
        share = self._agreement()
        rating: Literal[0, 2, 4] = 4 if share >= FULL else 2 if share >= PART else 0
        return say.Accuracy(rating=rating).expecting(4 * share)

    def to_correctness(self) -> say.Reply | UnparsableReplyError:
        if not dict(self.task.inputs).get("reference"):
            return UnsuitableJudgeError("without a reference, the lexical judge cannot tell")
        return say.FivePoint(rating=1 + 4 * self._agreement())


def _verdicts(probabilities: Iterable[float]) -> say.Verdicts:
    numbered = enumerate(probabilities, start=1)
    return say.Verdicts(verdicts=[say.Verdict.graded(one, index=i) for i, one in numbered])


def _judged(claims: Iterable[str], probability: Callable[[str], float]) -> say.JudgedStatements:
    graded = [say.JudgedStatement.graded(probability(one), statement=one) for one in claims]
    return say.JudgedStatements(statements=graded)
