"""Phrases by which the offline judge knows what is no claim: refusals, greetings, frames."""

from __future__ import annotations

import re

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
