"""Make texts from users, documents and models safe to show to a judge, a terminal or a spreadsheet.

`harmless` makes visible, or breaks, the parts of a text that could be read as more than a text:
marks of our prompts, control tokens of models, hidden and bidirectional characters. `suspicions`
names signs of an attempt to steer the judge. `says_nothing` recognises answers without content.
"""

from __future__ import annotations

import re
import unicodedata
from base64 import b64decode
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import cache
from importlib.resources import files
from itertools import islice, pairwise
from typing import Final, Literal, TypeAlias

Suspicion: TypeAlias = Literal[
    "control_token", "hidden_text", "instruction", "mark", "score_demand"
]
"""A sign that a text tries to steer the judge; ``Score.detail["injection"]`` lists the signs."""

_FOLDER = files("rag_eval_otel.untrusted")

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
_EMOJI_PUNCTUATION = "\u203c\u2049\u3030"
_KEYCAP, _KEYS = "\u20e3", frozenset("0123456789#*")
_NEAR = 8  # characters between a direction mark and a letter of a right-to-left script
_FEW = 3  # hidden characters in a row that are shown one by one
_JOIN, _NON_JOIN, _EMOJI, _SPACE = "\u200d", "\u200c", "\ufe0f", "\u200b"
_OVERRIDES = frozenset("\u202d\u202e")
_DIRECTIONS = frozenset("\u200e\u200f\u061c")


def _is_ordinary(run: str, text: str, at: int) -> bool:
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
        return emoji or bool(_JOINING.match(before))
    if run in _DIRECTIONS:
        return bool(_RTL.search(text, max(0, at - _NEAR), at + _NEAR))
    if run == _SPACE:
        return bool(_UNSPACED.match(before))
    return _is_variant(run, before, after)


def _is_variant(run: str, before: str, after: str) -> bool:
    if "\ufe0e" <= run <= _EMOJI:
        return _is_symbol(before) or (before in _KEYS and after == _KEYCAP)
    if "\ufe00" <= run <= "\ufe02" or "\U000e0100" <= run <= "\U000e01ef":
        return bool(_IDEOGRAPH.match(before))
    return "\u180b" <= run <= "\u180e" and bool(_MONGOLIAN.match(before))


def _is_symbol(char: str) -> bool:
    if not char or char.isascii():
        return False
    return unicodedata.category(char) in _SYMBOLS or char in _EMOJI_PUNCTUATION


def _hidden(text: str) -> Iterator[re.Match[str]]:
    """Yield the runs of hidden characters in ``text`` that do not belong to the writing."""
    flags = [match.end() for match in _FLAGS.finditer(text)] if "\U000e007f" in text else []
    for run in _HIDDEN.finditer(text):
        if run.end() not in flags and not _is_ordinary(run[0], text, run.start()):
            yield run


def _named(run: str) -> str:
    codes = [f"U+{ord(char):04X}" for char in run]
    if len(codes) <= _FEW:
        return "".join(f"<{code}>" for code in codes)
    return f"<{len(codes)} hidden characters, {min(codes)} to {max(codes)}>"


def visible(text: str) -> str:
    r"""Return ``text`` with ``<U+200B>`` and the like for hidden characters that are not ordinary.

    Characters that a script needs stay: joiners in Persian, Arabic, Indic words and emoji, marks of
    direction beside right-to-left letters, variation selectors of emoji and ideographs. Four or
    more hidden characters in a row become one note. Line ends become ``\n``.
    """
    text = _LINE_ENDS.sub("\n", text)
    if text.isascii() and text.isprintable():
        return text
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
    r"examples?|documents?|passages?|data|untrusted|repl(?:y|ies)|scores?|schema|task"
    r"|system|user|assistant|human|developer|model|tools?|instructions?|prompt|think(?:ing)?"
    r"|s|bos|eos|pad|unk|mask|sop|eop|cls|sep|(?:start|end|begin)_?of_?\w{1,20}|end_?turn"
    r"|tool_calls?|function_calls?|invoke|im_(?:start|end|sep)"
)
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
_BREAKS = [
    re.compile(form, re.IGNORECASE | re.MULTILINE)
    for form in (
        rf"({_OPEN}\s*)(?:[\w-]{{2,24}}[\s:]+)?(?:{_PARTS})\b[^\n]{{0,40}}?{_CLOSE}",
        rf"({_OPEN}\s*/?)(?:{_BRACKETED})\s*{_CLOSE}",
        rf"({_LESS}[\s/]*)(?:{_PARTS})(?=[\s/>]|$|&gt;)",
        rf"({_LESS}[\s/]*)(?:{_TAGS})(?=\s*/?(?:>|&gt;))",
        rf"({_LESS}/?)(?:{_TAGS})(?=\s[^<>]{{0,80}}(?:>|&gt;))",
        r"(<)(?=[|\u2581])",
        r"(<)<\s*/?\s*SYS",
        rf"({_LINE}(?:{_ROLES})[ \t]*[*_]*):",
        rf"(^[ \t]*)#{{1,6}}\s*(?:{_HEADINGS})[ \t]*$",
        r"(^[ \t]*)#{2,6}\s*(?:instructions?|response|system|input|task)\b",
        r"((?-i:\bCODE))\s+is\s+\w",
        r"(^[ \t]*(?:Reply|Consider only))\s*:",
    )
]
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
    places = {match.end(1) for form in _BREAKS for match in form.finditer(folded)}
    ends = [0, *sorted(places), len(text)]
    return "\\".join(text[start:end] for start, end in pairwise(ends))


# --- signs of an attempt --------------------------------------------------------------------------

_MANY = 4  # hidden characters in a row that are no accident
_TOKEN = re.compile(
    r"<\|[\w/ \u2581-]{2,40}\|>|\[/?INST\]|<</?SYS>>|<(?:start|end)_of_turn>"
    r"|<(?:/s|bos|eos|sop|eop)>"
    r"|\[/?(?:SYSTEM_PROMPT|AVAILABLE_TOOLS|TOOL_CALLS|TOOL_RESULTS|gMASK)\]|</?(?:system|assistant)>"
)
_MARK = re.compile(
    rf"(?i){_OPEN}\s*(?:code|[0-9a-f]{{4,8}})\s+(?:{_PARTS})\b[^\n]{{0,40}}?{_CLOSE}"
    rf"|<\s*/\s*(?:{_PARTS}|data|untrusted|prompt|instructions?)\s*>"
    r"|\bCODE\s+is\s+[0-9a-f]{4,8}\b"
)


@cache
def _phrases(name: str) -> re.Pattern[str]:
    """Return the regular expressions of a file of phrases (one a line) as one expression."""
    lines = (_FOLDER / f"{name}.txt").read_text(encoding="utf-8").splitlines()
    forms = "|".join(f"(?:{line})" for line in lines if line and not line.startswith("# "))
    return re.compile(forms, re.IGNORECASE)


_BEST = r"(?:\d|max|highest|full|perfect|top|best|pass\b|true\b)"
_DEMAND = re.compile(
    r"(?i)\b(?:give|assign|output|return|set|award|respond with|reply with|answer with|grant)\b"
    rf"[^.\n]{{0,40}}\b(?:score|rating|grade|verdicts?|marks?|points?|noncommittal)\b[^.\n]{{0,20}}{_BEST}"
    r"|\b(?:score|rate|grade|mark)\b[^.\n]{0,30}\b(?:this|it|answer|response|everything|all)\b"
    rf"[^.\n]{{0,25}}\b(?:as|with|at|a|an|the)\b[^.\n]{{0,12}}{_BEST}"
    r"|[\"'](?:verdicts?|rating|noncommittal|passing|supported|groundedness_\d|context_relevance_\d"
    r"|reverse_question|faithfulness|answer_relevancy)[\"']\s*:\s*[\[{]?\s*(?:\d|true|[\"'])"
)
_CODED = re.compile(
    r"(?<![A-Za-z0-9+/=])(?:[A-Za-z0-9+/]{32,}={0,2}|(?:[0-9a-fA-F]{2}){20,})(?![\w+/=])"
)


def suspicions(texts: Iterable[str]) -> tuple[Suspicion, ...]:
    """Return the signs in ``texts`` of an attempt to steer the judge, sorted; usually none.

    - ``control_token``: a token of a chat format, such as ``<|im_end|>`` or ``[INST]``.
    - ``hidden_text``: tag characters, overrides of direction, or four hidden characters in a row.
    - ``instruction``: a phrase such as "ignore the previous instructions", in many languages, also
      in Base64 or hexadecimal digits.
    - ``mark``: an imitation of the marks between the texts of our prompts.
    - ``score_demand``: a demand for a score, or a piece of a reply.
    """
    found: set[Suspicion] = set()
    for text in texts:
        found.update(_signs(text))
    return tuple(sorted(found))


def _signs(text: str) -> Iterator[Suspicion]:
    if not text.isascii() and any(map(_is_hiding, _hidden(text))):
        yield "hidden_text"
    folded = _folded(_HIDDEN.sub("", text) if not text.isascii() else text)
    if _TOKEN.search(folded):
        yield "control_token"
    if _MARK.search(folded):
        yield "mark"
    if _DEMAND.search(folded):
        yield "score_demand"
    instructs = _phrases("instructions").search
    if instructs(folded) or any(map(instructs, _decoded(folded))):
        yield "instruction"


def _is_hiding(run: re.Match[str]) -> bool:
    return (
        len(run[0]) >= _MANY
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

_EDGES = re.compile(r"^[\W_]+|[\W_]+$")
_FILLERS = re.compile(r"^(?:(?:ok|okay|sure|alright|well|so|first|hmm+)\b[\W_]*)+")
_LONGEST_OPENER = 120  # characters


def says_nothing(answer: str) -> bool:
    """Return True if ``answer`` has no content: only punctuation, or the opening of a reasoning.

    Such texts (":", "Thought process:", "Let's solve this step by step.") make judges give high
    scores. Short answers ("Paris", "42", "Yes") and emoji are content.
    """
    bare = _HIDDEN.sub("", answer[: 4 * _LONGEST_OPENER])
    if len(answer) <= _LONGEST_OPENER:
        told = unicodedata.normalize("NFC", _EDGES.sub("", bare)).casefold().replace("\u2019", "'")
        return not any(map(_is_content, bare)) or _opens(told)
    return not any(map(_is_content, _HIDDEN.sub("", answer)))


def _opens(told: str) -> bool:
    return _phrases("openers").fullmatch(_FILLERS.sub("", told)) is not None


def _is_content(char: str) -> bool:
    return char.isalnum() or (not char.isascii() and unicodedata.category(char)[0] in "LNS")
