"""Words that the offline judge knows: those without content, negations, numbers."""

from __future__ import annotations

from collections.abc import Mapping

STOP_WORDS = frozenset(
    """
    about above according after again against all also although always among and another any anyone
    anything are around aren because been before behind being below between both but can cannot
    could did does doing done don during each either else ever every few for from further get gets
    given gives had has have having her here hers him his how however into isn its itself just kind
    less like made make makes many may might more most much must near neither never nor not now
    off once one only onto other others our out over own per please rather same several shall she
    should since some somebody someone something such than that the their them then there therefore
    these they this those though through thus too toward towards under until upon very was wasn way
    were weren what whatever when where whether which while who whom whose why will with within
    without would yes yet you your yours answer

    aber alle als also auch auf aus bei beim bis das dass dein dem der des diese dieser
    dieses doch dort durch ein eine einem einen einer eines für gegen haben ich ihr ihre ihrer
    ist jede jeden jeder jedes kann können kein keine mein mit muss müssen nach nein nicht noch
    nur oder ohne sein seine seiner sich sie sind soll sollte über und uns unter vom von vor
    waren wann warum was welche welchem welchen welcher welches wenn wer werden wie wird wurde
    wurden wozu zum zur zwischen

    aux avec avez ces cet cette ceux chez comme dans des donc dont elle elles entre est
    été être ils les leur leurs lui mais mes mon non nos notre nous ont oui par pas peut plus
    pourquoi quand que quel quelle quelles quels qui quoi sans ses sont sous sur tous tout toute
    très une vos votre vous

    ante aunque como con cual cuál cuales cuando cuándo del desde dónde donde ella ellas ellos entre
     eran esa ese eso esta está están este esto fue fueron muy nos otra otro para
    pero por porque puede qué que quien quién según ser sobre sus también tiene una unas uno
    unos
    """.split()  # noqa: SIM905 # words read best as text
)

NEGATIONS = frozenset(
    """
    not no never none nor neither without cannot
    nicht kein keine keinen keiner keinem keines nie niemals ohne
    pas jamais sans aucun aucune
    nunca sin jamás ningún ninguna ninguno
    """.split()  # noqa: SIM905  # same
)
COMPARING = frozenset(
    """
    more less later earlier fewer only just merely exceed mehr nur später weniger plus moins más
    menos solo
    """.split()  # noqa: SIM905  # same
)
"""After one of these, a negation sets a limit and denies nothing: no later than, not only."""

CLAUSES = frozenset(
    """
    although because but if since though unless when whereas while aber obwohl sondern weil wenn
    car mais parce quand si aunque cuando pero porque
    """.split()  # noqa: SIM905  # same
)
"""Words that begin another clause, which a negation before them does not reach."""

DENIALS: Mapping[str, str] = {
    **dict.fromkeys(("forbidden", "prohibited", "banned", "disallowed"), "allowed"),
    **dict.fromkeys(("impossible", "unable"), "possible"),
    **{f"in{word}": word for word in ("valid", "complete", "correct", "sufficient", "eligible")},
    **{f"un{word}": word for word in ("available", "safe", "necessary", "limited", "paid", "used")},
    **dict.fromkeys(("verboten", "untersagt", "unzulässig"), "erlaubt"),
    **dict.fromkeys(("interdit", "interdite"), "permis"),
    **dict.fromkeys(("prohibido", "prohibida"), "permitido"),
}
"""Words that deny another without a negation."""

TENS = ("twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety")
ONES = ("one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
_ROWS = (
    (*ONES[1:], "ten", "eleven", "twelve", "thirteen", "fourteen", "fifteen", "sixteen",
     "seventeen", "eighteen", "nineteen"),
    ("zwei", "drei", "vier", "fünf", "sechs", "sieben", "acht", "neun", "zehn", "elf", "zwölf"),
    ("deux", "trois", "quatre", "cinq", "six", "sept", "huit", "neuf", "dix", "onze", "douze"),
    ("dos", "tres", "cuatro", "cinco", "seis", "siete", "ocho", "nueve", "diez", "once", "doce"),
)  # fmt: skip
_ORDINALS = (
    *("third", "fourth", "fifth", "sixth", "seventh", "eighth", "ninth", "tenth", "eleventh"),
    *("twelfth", "thirteenth", "fourteenth", "fifteenth", "sixteenth", "seventeenth"),
    *("eighteenth", "nineteenth", "twentieth"),
)
_ALIKE = frozenset({"neuf", "once", "six"})  # what is a number word in one language only

NUMBERS: Mapping[str, int] = {
    **{word: i for row in _ROWS[1:] for i, word in enumerate(row, start=2) if word not in _ALIKE},
    **{word: i for i, word in enumerate(_ORDINALS, start=3)},
    **{word: i for i, word in enumerate(_ROWS[0], start=2)},
    **{word: 10 * i for i, word in enumerate(TENS, start=2)},
}
