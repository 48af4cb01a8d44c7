"""Borealis Kites, a company that does not exist: its handbook, and what may be asked about it.

Every question has an answer of its own, and every answer cites the pages its writer had before
it, in their order. So an answer paired with a wrong question or with wrong contexts shows.
"""

import re

from langchain_core.documents import Document

HISTORY = "History: Borealis Kites was founded in 1987 in a boathouse in Tromsø."
FOUNDER = "Founder: sailmaker Ada Lindqvist founded Borealis Kites with a kite cut from a torn jib."
PRODUCTS = "Products: the Aurora is a stunt kite and the Fulmar is a kite that tows small boats."
RETURNS = "Returns: an unused kite may be sent back within 45 days for a full refund."
WARRANTY = "Warranty: spars and sails are covered against breakage for three years."
WORKSHOP = "Workshop: broken spars are repaired in Bergen every Thursday afternoon."
PAGES = (HISTORY, FOUNDER, PRODUCTS, RETURNS, WARRANTY, WORKSHOP)

FOUNDED = "When was Borealis Kites founded?"
REFUND = "How many days do I have for a full refund?"
SPARS = "How many years of warranty do broken spars have?"
TOWING = "Which kite tows small boats?"
SAILMAKER = "Which sailmaker founded Borealis Kites?"
REPAIRS = "Where is the workshop in Bergen open on Thursday?"
GREETING = "Good morning!"
QUESTIONS = (FOUNDED, REFUND, SPARS, TOWING, SAILMAKER)

ANSWERS = {
    FOUNDED: "It was founded in 1987.",
    REFUND: "You have 45 days.",
    SPARS: "Three years, like the sails.",
    TOWING: "The Fulmar tows small boats.",
    SAILMAKER: "The sailmaker Ada Lindqvist did.",
    REPAIRS: "It repairs spars on Thursday afternoons.",
    GREETING: "Good morning to you.",
}

_TITLE = re.compile(rf"\b({'|'.join(page.partition(':')[0] for page in PAGES)})(?=: |[;\]])")


def documents() -> list[Document]:
    return [
        Document(id=f"page-{number}", page_content=page, metadata={"source": "handbook.md"})
        for number, page in enumerate(PAGES, start=1)
    ]


def words(text: str) -> set[str]:
    """Give the words of a text that are long enough to tell something."""
    return set(re.findall(r"\w{4,}", text.lower()))


def cited(text: str) -> tuple[str, ...]:
    """Give the titles of pages (or citations of them) in a text, in order and each once."""
    return tuple(dict.fromkeys(_TITLE.findall(text)))


def answer(question: str, sight: str) -> str:
    """Answer a question, and cite the pages in sight."""
    titles = cited(sight)
    return f"{ANSWERS[question]} [{'; '.join(titles)}]" if titles else ANSWERS[question]
