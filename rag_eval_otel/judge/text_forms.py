"""What kinds of thing an answer may give, told by its form alone: a date, an amount, a name."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from rag_eval_otel.judge.text_kinds import AnswerKind

_MONTH = (
    r"(?:jan(?:uary)?|feb(?:ruary)?|mar(?:ch)?|apr(?:il)?|may|june?|july?|aug(?:ust)?"
    r"|sep(?:tember)?|oct(?:ober)?|nov(?:ember)?|dec(?:ember)?"
    r"|januar|februar|märz|mai|juni|juli|oktober|dezember"
    r"|janvier|février|mars|avril|juin|juillet|août|septembre|octobre|novembre|décembre"
    r"|enero|febrero|marzo|abril|mayo|junio|julio|agosto|septiembre|octubre|noviembre|diciembre)"
)
_DAY = (
    r"(?:(?:mon|tues|wednes|thurs|fri|satur|sun)days?|mittwochs?"
    r"|(?:mon|diens|donners|frei|sams|sonn)tags?|lundi|mardi|mercredi|jeudi|vendredi|samedi"
    r"|dimanche|lunes|martes|miércoles|jueves|viernes|sábados?|domingos?|morning|afternoon|evening"
    r"|night|midnight|noon)"
)
_UNIT = (
    r"(?:seconds?|minutes?|hours?|days?|weeks?|months?|years?|decades?|sekunden?|minuten?|stunden?"
    r"|tagen?|wochen?|monaten?|jahren?|secondes?|heures?|jours?|semaines?|mois|ans?|années?"
    r"|segundos?|minutos?|horas?|días?|semanas?|mes(?:es)?|años?)"
)
_N = (
    r"(?:\d[\d.,]*|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|thirteen|fourteen"
    r"|fifteen|twenty|thirty|forty|fifty|sixty|hundred|zwei|drei|vier|fünf|sechs|sieben|acht|neun"
    r"|zehn|zwölf|deux|trois|quatre|cinq|sept|huit|neuf|dix|dos|tres|cuatro|cinco|seis|siete|ocho"
    r"|nueve|diez)"
)
_COIN = r"(?:dollars?|euros?|pounds?|cents?|yen|francs?|franken|pesos?|rupees?|libras?|usd|eur|gbp)"
_YEAR = r"(?:1\d|20)\d\d"
_MEASURED: Mapping[AnswerKind, str] = {
    "money": (rf"[$€£¥] ?\d|{_N}(?: \w+illions?)? ?(?:[€£¥$]|{_COIN}\b)|an? {_COIN}\b"),
    "share": (rf"{_N} ?(?:%|per ?cent\b|prozent\b|pour ?cent\b|por ciento\b)"),
    "time": (rf"\d\d?(?:st|nd|rd|th|\.)? (?:of |de )?{_MONTH}\b|{_MONTH} \d+"
             rf"|{_YEAR}(?:s\b|\b(?! ?(?:%|\w)))|{_YEAR} (?:and|to|und|et|y) {_YEAR}"
             rf"|(?:in|on|by|until|since|each|every|early|late|am|im|bis|seit|jeden|en|le|el|chaque)"
             rf" (?:the )?(?:{_MONTH}|{_DAY}|{_YEAR})\b|(?:{_DAY}|{_MONTH})(?=$|,)"
             rf"|\d\d?[:.]\d\d(?= |$)(?! \w+s\b)|\d\d? ?(?:am|pm|a\.m|p\.m|uhr|h)\b"
             rf"|\w+ (?:century|jahrhundert)\b|{_N} (?:\w+ )?{_UNIT} ago\b"
             rf"|on the (?:\w+ ){{1,3}}(?:day|night|morning)\b"),
    "span": (rf"(?:{_N}|an?|one|eine?n?|une?|una?|each|every|jede[ns]?)"
             rf"(?: ?(?:-|\u2013|to|bis|à|a) ?{_N})?[ -](?:\w+ )?{_UNIT}\b"
             rf"|once|twice|\w+(?: times|mal)\b|daily|weekly|monthly|yearly"),
    "count": (rf"{_N}(?!\w|-[a-z])|half an?\b|none\b"),
}  # fmt: skip
_LEADING = (
    r"(?:(?:about|around|approximately|over|under|below|above|up to|at least|at most|between|from"
    r"|more than|less than|nearly|almost|within|after|before|until|since|in|on|at|by|the|ca|circa"
    r"|etwa|rund|ungefähr|mindestens|höchstens|bis zu|über|unter|innerhalb von|am|im|um|nach|vor"
    r"|environ|plus de|moins de|vers|dans|unos|más de|menos de|hasta|later) ){0,2}"
)
_AT_START: Mapping[AnswerKind, re.Pattern[str]] = {
    kind: re.compile(rf"^{_LEADING}(?:{form})") for kind, form in _MEASURED.items()
}
_ANYWHERE: Mapping[AnswerKind, re.Pattern[str]] = {
    kind: re.compile(rf"(?<![\w-])(?:{form})") for kind, form in _MEASURED.items()
}

_MARKED: Mapping[AnswerKind, re.Pattern[str]] = {
    "polar": re.compile(r"^(?:yes|no|yeah|nope|ja|nein|doch|oui|non|sí)(?=$|[,.;:!])"),
    "reason": re.compile(
        r"^(?:because|due to|owing to|since|as a result|so that|thanks to|weil|wegen|aufgrund|damit"
        r"|parce qu\w*|en raison|car|porque|debido|ya que)\b"
        r"|[ ,](?:because|weil|parce qu\w*|porque)\b"
    ),
    "aim": re.compile(
        r"^(?:in order )?to (?!the\b|an?\b)[a-z]+|^um .* zu \w+$|^(?:afin de|pour|para) \w+"
    ),
    "time": re.compile(
        r"^(?:when|whenever|if|as soon as|during|while|wenn|sobald|nachdem|bevor|während|lorsque"
        r"|quand|dès que|pendant|cuando|durante)\b|\w (?:when|sobald|lorsque|cuando) \w"
    ),
    "manner": re.compile(r"^(?:by|durch|mit|en) (?:\w+ing\b|[a-zà-þ]|\w+(?:ant|ndo)\b)"),
}
_AT = re.compile(
    r"^(?:in|at|near|between|from|outside|inside|behind|beside|under|on|im|am|bei|beim|à|au|dans"
    r"|chez) "
)
_PRONOUN = re.compile(
    r"^(?:it|they|he|she|we|you|there|this|that|er|sie|es|man|il|elle|ils|ello) \w+"
)
_ARTICLE = re.compile(r"^(?:the|der|die|das|le|la|les|el|los|las) ")
_ONE = re.compile(r"^(?:an?|eine?[nmrs]?|une?|una?) ")
_QUOTED = re.compile(r"^[\"\u201c\u201e\u00ab'].*[\"\u201c\u201d\u00bb']$", re.DOTALL)
_PERSONAL = re.compile(
    r"^(?:dr|mr|mrs|ms|sir|lady|king|queen|prince|princess|saint|st|pope|lord|herr|frau|mme)\b"
)
_BY_NAME = re.compile(r"\b(?:by|von|par|por) (?:[a-zà-þ]+ ){0,3}[A-ZÀ-Þ]")
_PLACES = re.compile(
    r"\b(?:street|river|city|county|island|avenue|road|park|hotel|church|stadium|station|airport"
    r"|theat(?:re|er)|valley|mountains?|lake|sea|ocean|bay|coast|hemisphere|north|south|east|west"
    r"|northern|southern|eastern|western|square|hall|castle|bridge)\b"
)
_GROUPS = re.compile(
    r"\b(?:university|college|school|inc|ltd|company|corporation|corp|group|club|party|team|records"
    r"|productions|studios?|association|agency|department|ministry|board|council|committee|court"
    r"|league|bank|gmbh|pharma|service|office)\b"
)
_GERMAN = re.compile(
    r"\b(?:der|die|das|dem|den|des|eine?[nmrs]?|im|vom|zum|zur|und|nicht|wird|werden|für|mit)\b"
)
_NAMES: Sequence[tuple[AnswerKind, re.Pattern[str]]] = (
    ("person", _BY_NAME),
    ("place", re.compile(r"\b(?:in|at|near|from|im|am|bei|à|en) (?:the |der |la )?[A-ZÀ-Þ]\w")),
    ("person", re.compile(r"(?<=[\w,] )[A-ZÀ-Þ][\w-]+ [A-ZÀ-Þ][\w-]+(?! [A-ZÀ-Þ])")),
    (
        "place",
        re.compile(
            r" (?:in|at|on|from|behind|under|im|am|beim|auf de[rm]|à|au|dans|sur|en) "
            r"(?:(?:the|an?|la|le|les|el|una?|une) )?[\w.-]+(?: [\w-]+){0,2}\W*$"
        ),
    ),
)
_NEGATED = re.compile(r"\b(?:not|never|cannot|nicht|kein\w*|ne|no)\b|n't\b")
_VERB = re.compile(
    r"\s(?:is|are|was|were|be|has|have|had|can|could|may|might|must|shall|should|will|would|does|do|did"
    r"|ist|sind|war|waren|wird|werden|wurden?|hat|haben|kann|können|muss|müssen|darf|dürfen|soll"
    r"|est|sont|était|a|ont|peut|doit|se|es|son|era|fue|tiene|puede|debe)\s"
)
_VERBAL = re.compile(r"^[a-zà-þ]{2,}(?:ed|[^su]s)$")
_VERBAL_GERMAN = re.compile(r"^[a-zà-þ]{2,}(?:t|te|ten)$")
_LEAST = 4
_CAPITAL = re.compile(r"^[^\w]*[A-ZÀ-ÖØ-Þ]")
_SHORT = 6  # words up to which a text rather names something than tells it
_LONG = 12  # words from which it tells
_LETTERS = 3  # of a word that is too small to have a capital in a name
_PERSON = 4  # words that a person's name has at most
_PROPER: Sequence[tuple[re.Pattern[str], Sequence[AnswerKind]]] = (
    (_PERSONAL, ("person",)),
    (_GROUPS, ("group", "place")),
    (_PLACES, ("place", "title")),
    (_ARTICLE, ("title", "group", "thing")),
)


def given(answer: str) -> list[AnswerKind]:
    """Return the kinds of thing that ``answer``, a few words, may be; the likeliest first."""
    plain = answer.strip().rstrip(".!* ").strip()
    text = plain.casefold().replace("\u2019", "'")
    return _in([_MARKED, _AT_START], text)[:1] or _by_name(plain, plain.split())


def told(sentence: str) -> list[AnswerKind]:
    """Return the kinds of thing that ``sentence`` may have been said to tell."""
    text = sentence.casefold().replace("\u2019", "'")
    marked = _in([_MARKED], text)[:1]
    if marked:
        return marked
    figures = _in([_ANYWHERE], text)
    names: list[AnswerKind] = [kind for kind, form in _NAMES if form.search(sentence)]
    denied: list[AnswerKind] = ["polar"] if _NEGATED.search(text) else []
    found: list[AnswerKind] = [*figures[:1], *names[:1], *denied, "clause", "thing"]
    return found[:3]


def _in(forms: Sequence[Mapping[AnswerKind, re.Pattern[str]]], text: str) -> list[AnswerKind]:
    return [kind for some in forms for kind, form in some.items() if form.search(text)]


def is_sentence(text: str) -> bool:
    """Tell whether ``text`` seems to have a verb, and so to be more than what was asked for."""
    words = text.split()
    low = text.casefold()
    if len(words) < _LEAST or _in([_MARKED], low)[:1] == ["reason"]:
        return False
    if len(words) >= _LONG or _VERB.search(text) or _PRONOUN.search(low):
        return True
    if _AT.search(low):
        return False
    verbal = _VERBAL_GERMAN if _GERMAN.search(low) else _VERBAL
    has_figure = bool(_in([_ANYWHERE], low)) and not _in([_AT_START], low)
    return has_figure or any(verbal.search(word) for word in words[1:_LEAST])


def _by_name(plain: str, words: Sequence[str]) -> list[AnswerKind]:
    """Return the kinds that a text without figures may be, by its capitals and small words."""
    text = plain.casefold()
    if _QUOTED.search(plain):
        return ["title"]
    if _BY_NAME.search(plain):
        return ["person", "group"]
    if len(words) == 1:
        return ["title", "thing", "place"] if _CAPITAL.search(plain) else ["thing"]
    if _PRONOUN.search(text) or len(words) >= _LONG:
        return ["clause"]
    return ["place"] if _AT.search(text) else _by_capitals(plain, words)


def _by_capitals(plain: str, words: Sequence[str]) -> list[AnswerKind]:
    text = plain.casefold()
    inner = sum(bool(_CAPITAL.search(word)) for word in words[1:])
    small = sum(len(word) > _LETTERS and word.islower() for word in words[1:])
    if _ONE.search(text) or small >= inner or _GERMAN.search(text):
        return ["thing"] if len(words) <= _SHORT else ["clause", "thing"]
    for form, kinds in _PROPER:
        if form.search(text):
            return list(kinds)
    if "," in plain and len(words) <= _SHORT:
        return ["place"]
    if len(words) <= _PERSON or " and " in text:
        return ["person", "title"]
    return ["title", "person", "place"]
