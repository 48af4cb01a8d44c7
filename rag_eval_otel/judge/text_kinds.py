"""What kind of thing a question asks for.

Read from the words that questions are made of (`who`, `how many`, `the name of`): nothing that
belongs to a subject. English, and the common question words of German, French and Spanish.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Literal, TypeAlias

AnswerKind: TypeAlias = Literal[
    "person", "group", "place", "title", "time", "span", "count", "money", "share",
    "thing", "clause", "reason", "aim", "manner", "polar",
]  # fmt: skip

FEATURES: Mapping[AnswerKind, Mapping[str, float]] = {
    "person": {"person": 1.0, "name": 0.7},
    "group": {"group": 1.0, "name": 0.7, "person": 0.3},
    "place": {"place": 1.0, "name": 0.5},
    "title": {"title": 1.0, "name": 0.8, "thing": 0.2},
    "time": {"time": 1.0, "figure": 0.3, "span": 0.3},
    "span": {"span": 1.0, "figure": 0.5, "time": 0.4},
    "count": {"count": 1.0, "figure": 0.9},
    "money": {"money": 1.0, "figure": 0.8},
    "share": {"share": 1.0, "figure": 0.7},
    "thing": {"thing": 1.0, "name": 0.6, "said": 0.4, "figure": 0.2},
    "clause": {"clause": 1.0, "said": 0.7},
    "reason": {"reason": 1.0, "said": 0.7},
    "aim": {"aim": 1.0, "said": 0.7},
    "manner": {"manner": 1.0, "said": 0.7},
    "polar": {"polar": 1.0},
}
"""What is asked for, and what it has in common with other kinds."""

_NOUNS: Mapping[AnswerKind, str] = {
    "person": """
        actor actress agent artist author boss captain character child chief coach composer creator
        daughter designer director doctor editor father founder host husband inventor judge king
        leader man manager minister mother officer owner painter parent partner people person player
        poet president producer queen scientist senator singer son teacher wife winner woman writer
        autorin erfinder gründer leiter leiterin auteur inventeur autor fundador
        """,
    "group": """
        agency association authority band bank brand club college company department division firm
        group institution league manufacturer network organisation organization party publisher
        school studio team university firma partei unternehmen verein entreprise société empresa
        equipo partido
        """,
    "place": """
        address birthplace capital city continent country county destination district headquarters
        hometown island location place region river site street town venue village
        adresse hauptstadt land ort stadt lieu pays ville ciudad lugar país
        """,
    "title": """
        abbreviation acronym album anthem award book code episode film game magazine model movie
        name nickname novel play product program programme series show single song soundtrack term
        title track word buch lied titel chanson livre nom titre canción libro nombre título
        """,
    "time": """
        airdate birthday century date day deadline decade era hour month season time weekday week
        year datum frist jahr jahrhundert monat tag uhrzeit année heure jour mois siècle año día
        fecha hora mes plazo siglo
        """,
    "span": """
        age duration frequency interval length lifespan lifetime period
        alter dauer laufzeit zeitraum durée période âge duración edad período
        """,
    "count": """
        amount capacity count depth distance dosage dose height limit maximum minimum number
        population quantity range rating ratio score size speed temperature total volume weight
        width anzahl breite länge tiefe largeur longueur profondeur longitud profundidad
        gewicht größe höhe menge zahl hauteur nombre poids taille altura cantidad
        número peso tamaño
        """,
    "money": """
        allowance budget charge cost deposit earnings fee fine income money pay premium price rent
        revenue salary value wage worth betrag gebühr gehalt kaution kosten miete preis coût frais
        loyer montant prix alquiler costo coste importe precio tarifa
        """,
    "share": """
        discount fraction interest percent percentage proportion rate share anteil
        prozent prozentsatz pourcentage taux porcentaje tasa
        """,
    "thing": "art ejemplo example exemple kind sort sorte tipo type",
    "clause": """
        benefit condition consequence controversy difference effect exception impact importance
        issue meaning nature outcome problem process relation relationship requirement
        responsibility result role rule significance bedeutung folge unterschied voraussetzung
        wirkung différence effet signification diferencia efecto requisito significado
        """,
    "reason": "basis cause motivation motive reason grund ursache motif raison causa motivo razón",
    "aim": """
        aim function goal intention objective purpose use funktion ziel zweck but fonction objectif
        función objetivo propósito
        """,
    "manner": "method procedure technique way methode verfahren méthode manera método",
}
_HEADS: Mapping[str, AnswerKind] = {
    noun: kind for kind, nouns in _NOUNS.items() for noun in nouns.split()
}
_NAMES = frozenset("name title nom nombre titel titre título".split())  # noqa: SIM905  # as text
_NAMED: frozenset[AnswerKind] = frozenset({"person", "group", "place", "title"})
MEASURED: frozenset[AnswerKind] = frozenset({"time", "span", "count", "money", "share"})

_DO = frozenset(
    """
    can could did do does had has have may must shall should will would
    darf hat haben kann muss wird
    """.split()  # noqa: SIM905  # same
)
_BE = _DO | frozenset(
    "is are was were be ist sind war waren est sont était es son era fue".split()  # noqa: SIM905
)
_SMALL = frozenset(
    """
    the a an its their his her my our your this that these those der die das ein eine le la les l un
    une el los las una unos
    """.split()  # noqa: SIM905  # same
)
_ENDS = frozenset(
    """
    of for in that which who whose whom where when by to on with from at as if than and or
    von des für im aus zu du de del d pour en que
    """.split()  # noqa: SIM905  # same
)
_SPAN = (
    r"seconds|minutes|hours|days|weeks|months|years|time|stunden|tage|wochen|monate|jahre|zeit"
    r"|heures|jours|semaines|mois|ans|années|horas|días|semanas|meses|años"
)
_FORMS: Mapping[AnswerKind, str] = {
    "clause": r"what about",
    "title": (
        r"by (?:what|which) name|what(?= is [\w' -]{1,40} called)|wie heißt|comment s'appelle"
    ),
    "group": r"(?:what|which) organi[sz]ation",
    "share": r"(?:what|which) (?:percent|percentage|proportion|share)|wie viel prozent",
    "span": (
        rf"(?:how (?:many|much)|wie ?viele?|combien d[e']|cuánt[oa]s) ?(?:\w+ )?(?:{_SPAN})"
        r"|how (?:long|old|often|soon|quickly)|(?:for|within|after) how long"
        r"|wie (?:lange|alt|oft)|quel âge|(?:pendant )?combien de temps|cuánto tiempo|cada cuánto"
        r"|qué edad"
    ),
    "money": (
        r"how much|was kosten|was kostet|wie ?viel|combien coûten?t?|cuánto (?:cuestan?|valen?)"
    ),
    "count": (
        r"how (?:many|few|far|tall|high|deep|wide|large|big|heavy|fast|hot|cold|strong|late|early)"
        r"|wie ?(?:viele|hoch|weit|groß|schwer|schnell|tief|breit)|combien|cuánt[oa]s?"
    ),
    "person": r"who|whom|whose|wer|wem|wen|wessen|qui|quién|quiénes",
    "place": r"where|wo|wohin|woher|où|dónde|adónde",
    "time": r"when|wann|quand|cuándo",
    "aim": r"what(?= (?:[\w'-]+ ){1,8}for *[?:])|wozu|wofür|para qué",
    "reason": r"why|how come|warum|wieso|weshalb|weswegen|pourquoi|por qué",
    "manner": r"how|wie|comment|cómo",
    "thing": (
        r"qu'est-ce qu[ie]|what|which|was|welche[rsnm]?|que|quoi|quel(?:le)?s?|qué|cuál(?:es)?"
    ),
}
_ASKED: Mapping[AnswerKind, re.Pattern[str]] = {
    kind: re.compile(rf"\b(?:{form})\b") for kind, form in _FORMS.items()
}
"""What a question is put with; of two at the same place, the first."""

_POLAR = re.compile(
    r"^\W*(?:is|are|was|were|am|do|does|did|can|could|may|might|must|shall|should|will|would|has"
    r"|have|had|ist|sind|war|hat|haben|kann|können|darf|dürfen|muss|müssen|wird|werden|gibt"
    r"|est-ce|peut-on|hay|puede|puedo|tiene)\b"
)
_QUOTED = re.compile(r"[\"\u201c\u201e\u00ab][^\"\u201c\u201d\u00bb]*[\"\u201c\u201d\u00bb]")
_WORD = re.compile(r"[^\W_]+")
_GERMAN_WAS = re.compile(
    r"^\W*was\b.*\b(?:ich|ist|man|der|das|den|dem|ein|eine|und|für|wenn|wird)\b"
)
_PAID = re.compile(
    r"\b(?:\w*gebühr|kosten|miete|cost|dollars?|euros?|money|paid|pay|pounds?|price|sales"
    r"|spen[dt])\b"
)
_MAX = 10_000  # characters of a question that are read
_READ = 1000  # characters of a question in which its question word is looked for
_WINDOW = 8  # words after "what" in which its noun is looked for


def asked(question: str) -> AnswerKind | None:
    """Return what kind of thing ``question`` asks for first; None if it is no question."""
    return read(question)[0]


def read(question: str) -> tuple[AnswerKind | None, str]:
    """Return what kind of thing ``question`` asks for first, and ``question`` without the asking.

    A text is a question if it begins with a question word or, unless it is long, has a question
    mark; of another, the kind is None.
    """
    shown = question[:_READ].replace("\u2019", "'")
    text = _QUOTED.sub(lambda quoted: " " * len(quoted[0]), shown.lower())
    is_marked = "?" in text and len(question) <= _READ
    polar = _POLAR.search(text)
    if is_marked and polar and not _GERMAN_WAS.search(text):
        return "polar", question[polar.end() : _MAX]
    start, kind, end = _first(text)
    if (not is_marked and start) or not _WORD.search(text):
        return None, question
    if kind == "thing" and not shown[start:end].endswith("as"):  # "was" stands with no noun
        kind = _by_noun(text[end:]) or kind
    if kind == "count" and _PAID.search(text):
        kind = "money"
    return kind, f"{question[:start]} {question[end:_MAX]}"


def _first(text: str) -> tuple[int, AnswerKind, int]:
    """Return the first form of asking in ``text``, and where it begins and ends."""
    found: list[tuple[re.Match[str], AnswerKind]] = [
        (match, kind) for kind, form in _ASKED.items() if (match := form.search(text))
    ]
    if not found:
        return len(text), "thing", len(text)
    match, kind = min(found, key=lambda one: one[0].start())
    return match.start(), kind, match.end()


def _by_noun(rest: str) -> AnswerKind | None:
    """Return the kind of the noun that "what" stands with."""
    words = _WORD.findall(rest)
    if words and words[0] in _DO:
        return None
    phrase, left = _phrase(words)
    kinds: list[AnswerKind] = [kind for word in phrase if (kind := kind_of(word))]
    if not kinds or phrase[-1].endswith("ing"):
        return None
    if phrase[-1].removesuffix("s") in _NAMES and left[:1] in (["of"], ["von"], ["de"], ["des"]):
        of, _ = _phrase(left[1:])
        named: list[AnswerKind] = [kind for word in of if (kind := kind_of(word)) in _NAMED]
        return named[-1] if named else "title"
    measured: list[AnswerKind] = [kind for kind in kinds if kind in MEASURED]
    return measured[-1] if measured else kinds[-1]


def _phrase(words: Sequence[str]) -> tuple[list[str], Sequence[str]]:
    """Return the first words that may belong to one noun, and those after them."""
    start = 0
    while start < len(words) and (words[start] in _BE or words[start] in _SMALL):
        start += 1
    end = start
    while end < min(len(words), start + _WINDOW) and words[end] not in _ENDS | _BE:
        end += 1
    return list(words[start:end]) or [""], words[end:]


def kind_of(noun: str) -> AnswerKind | None:
    """Return the kind that ``noun``, in small letters, is the general word for."""
    singular = f"{noun[:-3]}y" if noun.endswith("ies") else noun.removesuffix("s")
    return _HEADS.get(noun) or _HEADS.get(singular)
