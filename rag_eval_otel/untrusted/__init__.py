"""Make texts from users, documents and models safe to show to a judge, a terminal or a spreadsheet.

`harmless` makes visible, or breaks, the parts of a text that could be read as more than a text:
marks of our prompts, control tokens of models, hidden and bidirectional characters. `suspicions`
names signs of an attempt to steer the judge. `says_nothing` recognises answers without content.
"""

from __future__ import annotations

import re
import unicodedata
from base64 import b64decode
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from itertools import islice, pairwise
from typing import Final, Literal, TypeAlias

Suspicion: TypeAlias = Literal[
    "control_token", "hidden_text", "instruction", "mark", "score_demand"
]
"""A sign that a text tries to steer the judge; ``Score.detail["injection"]`` lists the signs."""

DELIBERATE: Final[frozenset[Suspicion]] = frozenset({"control_token", "hidden_text", "mark"})
"""Signs that ordinary writing does not have. Drift detection leaves out scores with one of them."""

# --- characters -----------------------------------------------------------------------------------

_LINE_ENDS = re.compile("\r\n?|[\v\f\x1c-\x1e\x85\u2028\u2029]")
_HIDDEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f"
    "\u2028-\u202e\u2060-\u206f\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb\ufffe\uffff\ud800-\udfff"
    "\ufdd0-\ufdef\U0001d173-\U0001d17a\U000e0000-\U000e0fff]+"
)
_FLAGS: Final = re.compile(  # England, Scotland and Wales are spelled in tag characters
    "\U0001f3f4\U000e0067\U000e0062"
    "(?:\U000e0065\U000e006e\U000e0067|\U000e0073\U000e0063\U000e0074|\U000e0077\U000e006c\U000e0073)"
    "\U000e007f"
)
_RTL = re.compile(
    "[\u0590-\u08ff\ufb1d-\ufdfb\ufe70-\ufefc\U00010800-\U00010fff\U0001e800-\U0001efff]"
)
_JOINING = re.compile("[\u0600-\u08ff\u0900-\u0dff\u1000-\u109f\u1780-\u18af\ufb50-\ufefc]")
_UNSPACED = re.compile("[\u0e00-\u0fff\u1000-\u109f\u1780-\u17ff\u1950-\u1aaf\ua980-\ua9df]")
_MONGOLIAN = re.compile("[\u1820-\u18aa]")
_IDEOGRAPH = re.compile("[\u3400-\u9fff\uf900-\ufaff\U00020000-\U000323af]")
_SYMBOLS = frozenset({"So", "Sm", "Sk"})
_EMOJI_LETTERS = "\u203c\u2049\u2139\u3030\u303d"  # emoji that are no symbols by category
_KEYCAP, _KEYS = "\u20e3", frozenset("0123456789#*")
_NEAR = 8  # characters between a direction mark and a letter of a right-to-left script
_FEW = 3  # hidden characters in a row that are shown one by one
_JOIN, _NON_JOIN, _EMOJI, _SPACE = "\u200d", "\u200c", "\ufe0f", "\u200b"
_OVERRIDES = frozenset("\u202d\u202e")
_DIRECTIONS = frozenset("\u200e\u200f\u061c")
_ISOLATED = re.compile("[\u2066-\u2068][^\u2066-\u2069\n]{1,200}\u2069")
_HYPHEN, _ORDER_MARK = (
    "\xad",
    "\ufeff",
)  # of typesetting and of files; they mean nothing in a prompt


def _is_ordinary(run: str, text: str, *, at: int) -> bool:
    """Return True if the hidden characters ``run``, at ``at`` in ``text``, belong to the writing.

    They do in emoji, in Persian, Arabic and Indic words, beside right-to-left letters, and as
    variants of symbols and ideographs.
    """
    before, after = text[at - 1 : at], text[at + len(run) : at + len(run) + 1]
    if run == _EMOJI + _JOIN:
        return _is_symbol(before) and _is_symbol(after)
    if len(run) != 1 or not before:
        return False
    if run in (_JOIN, _NON_JOIN):
        emoji = run == _JOIN and _is_symbol(before) and _is_symbol(after)
        return emoji or bool(_JOINING.match(before) or _JOINING.match(after))
    if run in _DIRECTIONS:
        return bool(_RTL.search(text, max(0, at - _NEAR), at + _NEAR))
    if run == _SPACE:
        return bool(_UNSPACED.match(before) or _UNSPACED.match(after))
    return _is_variant(run, before=before, after=after)


def _is_variant(run: str, *, before: str, after: str) -> bool:
    if "\ufe0e" <= run <= _EMOJI:
        return _is_symbol(before) or (before in _KEYS and after == _KEYCAP)
    if "\ufe00" <= run <= "\ufe02" or "\U000e0100" <= run <= "\U000e01ef":
        return bool(_IDEOGRAPH.match(before))
    return "\u180b" <= run <= "\u180e" and bool(_MONGOLIAN.match(before))


def _is_symbol(char: str) -> bool:
    if not char or char.isascii():
        return False
    return unicodedata.category(char) in _SYMBOLS or char in _EMOJI_LETTERS


def _hidden(text: str) -> Iterator[re.Match[str]]:
    """Yield the runs of hidden characters in ``text`` that do not belong to the writing."""
    ends = {match.end() for match in _FLAGS.finditer(text)} if "\U000e007f" in text else set()
    ends.update(_isolated(text))
    for run in _HIDDEN.finditer(text):
        if run.end() not in ends and not _is_ordinary(run[0], text, at=run.start()):
            yield run


def _isolated(text: str) -> Iterator[int]:
    """Yield where the single marks end that isolate a name beside right-to-left letters."""
    if "\u2069" not in text:
        return
    for match in _ISOLATED.finditer(text):
        start, end = match.span()
        neighbours = text[start - 1 : start] + text[start + 1] + text[end - 2] + text[end : end + 1]
        around = _RTL.search(text, max(0, start - _NEAR), end + _NEAR)
        if around and not _HIDDEN.search(neighbours):
            yield start + 1
            yield end


def _named(run: str) -> str:
    codes = [f"U+{ord(char):04X}" for char in run]
    if len(codes) <= _FEW:
        return "".join(f"<{code}>" for code in codes)
    return f"<{len(codes)} hidden characters, {min(codes)} to {max(codes)}>"


def visible(text: str) -> str:
    r"""Return ``text`` with ``<U+200B>`` and the like for hidden characters that are not ordinary.

    Characters that a script needs stay: joiners in Persian, Arabic, Indic words and emoji, marks of
    direction beside right-to-left letters, variation selectors of emoji and ideographs. Four or
    more hidden characters in a row become one note. Line ends become ``\n``. Soft hyphens, and a
    byte order mark at the beginning, are dropped.
    """
    text = _LINE_ENDS.sub("\n", text)
    if text.isascii() and text.isprintable():
        return text
    text = text.removeprefix(_ORDER_MARK).replace(_HYPHEN, "")
    pieces, end = list[str](), 0
    for run in _hidden(text):
        pieces += [text[end : run.start()], _named(run[0])]
        end = run.end()
    return "".join([*pieces, text[end:]])


# --- marks and control tokens ---------------------------------------------------------------------

_OPEN, _CLOSE = r"[\[\u3010\u3014\u27e6\u27ee\u2772]", r"[\]\u3011\u3015\u27e7\u27ef\u2773]"
_PARTS = (
    r"contexts?|questions?|sub[_ ]questions?|answers?|references?|statements?|sentences?|intent|end"
    r"|guidelines?|rubric|what\s+was\s+wrong"
)
_TAGS = (
    r"examples?|documents?|data|untrusted|repl(?:y|ies)|schema"
    r"|system|user|assistant|human|developer|instructions?|prompt|think(?:ing)?"
    r"|s|bos|eos|pad|unk|mask|sop|eop|cls|sep|(?:start|end|begin)_?of_?\w{1,20}|end_?turn"
    r"|tool_calls?|function_calls?|invoke|im_(?:start|end|sep)"
)
_TYPES = r"model|passages?|scores?|task|tools?"  # also types in code, such as ``list<model>``
_ROLES = r"system|assistant|user|human|developer|judge|grader|ai|model|tool|observation"
_BRACKETED = (
    r"INST|SYS|SYSTEM_PROMPT|AVAILABLE_TOOLS|TOOL_CALLS|TOOL_RESULTS|gMASK|sMASK|CLS|SEP|MASK|PAD"
    r"|UNK|BOS|EOS|Round\s*\d+"
)
_HEADINGS = (
    r"[a-z]+(?:_[a-z0-9]+)+|statements|verdicts|supported|correctness|rubric|addressed"
    r"|similarities|guideline|intent"
)
_LESS = r"(?:<|&lt;|&#60;|&#x3c;)"
_LINE = r"^[ \t>*_#]*"
_BREAKS = {  # by what a text must contain if one of the forms is to be found in it
    re.compile(part): [re.compile(form, re.IGNORECASE | re.MULTILINE) for form in forms]
    for part, forms in {
        _OPEN: (
            rf"({_OPEN}\s*)(?:[\w-]{{2,24}}[\s:]+)?(?:{_PARTS})\b[^\n]{{0,40}}?{_CLOSE}",
            rf"({_OPEN}\s*/?)(?:{_BRACKETED})\s*{_CLOSE}",
        ),
        "[<&]": (
            rf"({_LESS}[\s/]*)(?:{_PARTS})(?=[\s/]{{0,40}}(?:>|&gt;))",
            rf"({_LESS}/?)(?:{_PARTS})(?=[\s/][^<>]{{0,200}}(?:>|&gt;))",
            rf"(?<!\w)({_LESS}\s*)(?:{_TYPES})(?=\s*/?(?:>|&gt;))",
            rf"({_LESS}\s*/[\s/]*)(?:{_TYPES})(?=\s*/?(?:>|&gt;))",
            rf"({_LESS}[\s/]*)(?:{_TAGS})(?=\s*/?(?:>|&gt;))",
            rf"({_LESS}/?)(?:{_TAGS}|{_TYPES})(?=\s[^<>]{{0,80}}(?:>|&gt;))",
            r"(<)(?=[|\u2581])",
            r"(<)<\s*/?\s*SYS",
        ),
        ":": (
            rf"({_LINE}(?:{_ROLES})[ \t]*[*_]*):",
            r"(^[ \t]*(?:Reply|Consider only))\s*:",
        ),
        "#": (
            rf"(^[ \t]*)#{{1,6}}\s*(?:{_HEADINGS})[ \t]*$",
            r"(^[ \t]*)#{2,6}\s*(?:instructions?|response|system|input|task)\b",
        ),
        "CODE": (r"((?-i:\bCODE))\s+is\s+\w",),
    }.items()
}
_WIDE = re.compile("[\uff01-\uff5e\u2100-\u214f\U0001d400-\U0001d7ff]")


def _folded(text: str) -> str:
    """Return ``text`` with full-width and mathematical letters as plain ones, equally long."""
    if _WIDE.search(text) is None:
        return text
    return _WIDE.sub(lambda char: (unicodedata.normalize("NFKC", char[0]) + " ")[0], text)


def harmless(text: str) -> str:
    r"""Return ``text`` as it may stand in a prompt: without hidden characters, marks and tokens.

    Hidden characters are made visible (see `visible`). A backslash breaks each part that a model or
    a lenient reader could take for a mark of our prompts (``[\c0de end]``), a tag (``<\answer>``),
    a control token (``<\|im_end|>``) or the speaker of a chat (``User\:``).
    """
    text = visible(text)
    folded = _folded(text)
    likely = (form for part, forms in _BREAKS.items() if part.search(folded) for form in forms)
    places = {match.end(1) for form in likely for match in form.finditer(folded)}
    if not places:
        return text
    ends = [0, *sorted(places), len(text)]
    return "\\".join(text[start:end] for start, end in pairwise(ends))


# --- signs of an attempt --------------------------------------------------------------------------

_MANY = 4  # hidden characters in a row that are no accident
_TOKEN = re.compile(
    r"<\|[\w/ \u2581-]{2,40}\|>|<</?SYS>>|<(?:start|end)_of_turn>|<(?:bos|eos|sop|eop)>"
    r"|</s>\s{0,3}(?:<s>|$)|</?(?:system|assistant|tool_call)>"
    r"|\[/?(?:INST|SYSTEM_PROMPT|AVAILABLE_TOOLS|TOOL_CALLS|TOOL_RESULTS|gMASK)\]"
)
_CODE = r"(?-i:CODE)|[0-9a-f]{6}|(?=[0-9]{0,7}[a-f])(?=[a-f]{0,7}[0-9])[0-9a-f]{4,8}"
_MARK = re.compile(rf"(?i){_OPEN}\s*(?:{_CODE})\s+(?:{_PARTS})\b[^\n]{{0,40}}?{_CLOSE}")
_ANNOUNCED = re.compile(r"(?m)^[ \t]*CODE is [0-9a-f]{6}\b")
_TAG = re.compile(
    r"(?i)(?:<|&lt;)\s{0,9}(/?)\s{0,9}((?:context|question|answer)s?)\s{0,9}(?:>|&gt;)"
)
_CODED = re.compile("[A-Za-z0-9+/]{32,}={0,2}")


def suspicions(texts: Iterable[str]) -> tuple[Suspicion, ...]:
    """Return the signs in ``texts`` of an attempt to steer the judge, sorted; usually none.

    - ``control_token``: a token of a chat format, such as ``<|im_end|>`` or ``[INST]``.
    - ``hidden_text``: tag characters, overrides of direction, or four hidden characters in a row.
    - ``instruction``: a phrase such as "ignore the previous instructions", in many languages, also
      in Base64 or hexadecimal digits.
    - ``mark``: an imitation of the marks between the texts of our prompts.
    - ``score_demand``: a demand for a score, or a piece of a reply.

    The time is linear in the length of the texts: literal words are searched first, in all texts
    together, and regular expressions are tried only at these words.
    """
    shown = {text: _folded(_without_hidden(text)) for text in texts}
    found = {sign for text, folded in shown.items() for sign in _signs(text, folded)}
    lower = [folded.casefold() for folded in shown.values()]
    if _have_phrase("demands", lower):
        found.add("score_demand")
    coded = [one.casefold() for folded in shown.values() for one in _decoded(folded)]
    if _have_phrase("instructions", lower + coded):
        found.add("instruction")
    return tuple(sorted(found))


def _without_hidden(text: str) -> str:
    return text if text.isascii() else _HIDDEN.sub("", text)


def _signs(text: str, folded: str) -> Iterator[Suspicion]:
    if not text.isascii() and any(map(_is_hiding, _hidden(text))):
        yield "hidden_text"
    if _TOKEN.search(folded):
        yield "control_token"
    if _has_mark(folded):
        yield "mark"


def _has_mark(text: str) -> bool:
    is_announced = "CODE is " in text and _ANNOUNCED.search(text) is not None
    return is_announced or _MARK.search(text) is not None or _has_stray_end(text)


def _has_stray_end(text: str) -> bool:
    """Return True if ``text`` has an end tag of a part of our prompts, without its start tag."""
    opened = Counter[str]()
    for tag in _TAG.finditer(text):
        name = tag[2].casefold()
        opened[name] += -1 if tag[1] else 1
        if opened[name] < 0 or name == "contexts":
            return True
    return False


def _is_hiding(run: re.Match[str]) -> bool:
    return (
        len(run[0].replace(_HYPHEN, "")) >= _MANY
        or not _OVERRIDES.isdisjoint(run[0])
        or any("\U000e0000" <= char <= "\U000e007f" for char in run[0])
    )


def _decoded(text: str) -> Iterator[str]:
    for match in islice(_CODED.finditer(text), _MANY):
        with suppress(ValueError):
            yield bytes.fromhex(match[0]).decode("ascii", "ignore")
        with suppress(ValueError):
            padded = match[0].rstrip("=") + "=" * (-len(match[0].rstrip("=")) % 4)
            yield b64decode(padded).decode("ascii", "ignore")


# --- answers without content ----------------------------------------------------------------------

_NO_CONTENT = "PZC"  # categories of characters: punctuation, separators, control characters
_COLONS = frozenset(":\uff1a")
_FILLERS = re.compile(r"^(?:(?:ok|okay|sure|alright|well|so|first|hmm+)\b[\W_]*)+")
_LONGEST_OPENER = 120  # characters


def says_nothing(answer: str) -> bool:
    """Return True if ``answer`` has no content: only punctuation, or the opening of a reasoning.

    Such texts (":", "Thought process:", "Let's solve this step by step.") make judges give high
    scores. A heading such as "Solution:" counts only with its colon, because the noun alone may be
    the answer. Short answers ("Paris", "42", "Yes"), signs ("+", "$") and emoji are content.
    """
    bare = _HIDDEN.sub("", answer[: 4 * _LONGEST_OPENER])
    if len(answer) > _LONGEST_OPENER:
        return not any(map(_is_content, _HIDDEN.sub("", answer)))
    places = [at for at, char in enumerate(bare) if _is_content(char)]
    if not places:
        return True
    told = unicodedata.normalize("NFC", bare[places[0] : places[-1] + 1]).casefold()
    told = _FILLERS.sub("", told.replace("\u2019", "'"))
    has_colon = not _COLONS.isdisjoint(bare[places[-1] + 1 :])
    return any(
        form.fullmatch(told) is not None
        for form in (
            [forms_of("openers"), forms_of("headings")] if has_colon else [forms_of("openers")]
        )
    )


def _is_content(char: str) -> bool:
    return unicodedata.category(char)[0] not in _NO_CONTENT and char not in "`^"


# --- phrases of many languages, found quickly by their first words, which are literal -------------

_FOLDER = files("rag_eval_otel.untrusted")
_MACROS: Final = {
    "<score>": r"(?:\b(?:grad(?:e|es|ed|ing)|scor(?:e|es|ed|ing)|ratings?|verdicts?|noncommittal)\b"
    r"|\b(?:rate|mark) (?:it|this|the|all|every)\b|\bevery answer\b|\ball answers\b|\bscale\b)",
    "<best>": r"(?:\d|max|highest|full|perfect|top|best|pass\b|true\b)",
}
_OPENINGS = frozenset(".!?:;,)\n")
_JOINED = ("please", "now", "then", "and", "also")
_DENIED = re.compile(r"(?:\b(?:not|never|cannot)|n['\u2019]t)\s+(?:\w+\s+)?$")
_SPACED = "\u0590"  # Latin, Greek and Cyrillic letters are below it


@dataclass(frozen=True, slots=True)
class Phrase:
    """A phrase that begins with one of ``heads``, followed by ``rest``."""

    heads: tuple[str, ...]
    rest: re.Pattern[str]
    opens: bool
    """True if the phrase must begin a sentence."""

    def is_in(self, text: str) -> bool:
        """Return True if the phrase is in ``text``, which is in lower case, and not denied."""
        return any(
            self.rest.match(text, at + len(head)) is not None
            for head in self.heads
            for at in _places(text, head)
            if self.may_begin(text, at)
        )

    def may_begin(self, text: str, at: int) -> bool:
        """Return True if the first word at ``at`` may begin the phrase: it is whole, not denied."""
        before = text[max(0, at - 24) : at]
        if self.opens:
            led = before.rstrip(" \t\"'*#>-(")
            return not led or led[-1] in _OPENINGS or led.endswith(_JOINED)
        is_inside = text[at] < _SPACED and text[at].isalpha() and before[-1:].isalnum()
        return not is_inside and _DENIED.search(before) is None


def _places(text: str, part: str) -> Iterator[int]:
    at = text.find(part)
    while at >= 0:
        yield at
        at = text.find(part, at + 1)


def _lines(name: str) -> list[str]:
    lines = (_FOLDER / f"{name}.txt").read_text(encoding="utf-8").splitlines()
    return [line for line in lines if line and not line.startswith("# ")]


@cache
def phrases(name: str) -> tuple[Phrase, ...]:
    """Return the phrases of a file; its first lines explain the form of the others."""
    return tuple(map(_phrase, _lines(name)))


def _phrase(line: str) -> Phrase:
    heads, _, rest = line.partition(" :: ")
    for macro, form in _MACROS.items():
        rest = rest.replace(macro, form)
    return Phrase(
        heads=tuple(heads.removeprefix("^").split("|")),
        rest=re.compile(rest),
        opens=heads.startswith("^"),
    )


def _have_phrase(name: str, texts: Sequence[str]) -> bool:
    """Return True if one of ``texts``, in lower case, has a phrase of the file ``name``."""
    joined = "\n".join(texts)
    likely = [one for one in phrases(name) if any(head in joined for head in one.heads)]
    return any(phrase.is_in(text) for phrase in likely for text in texts)


@cache
def forms_of(name: str) -> re.Pattern[str]:
    """Return the regular expressions of a file (one a line) as one expression."""
    return re.compile("|".join(f"(?:{line})" for line in _lines(name)), re.IGNORECASE)
