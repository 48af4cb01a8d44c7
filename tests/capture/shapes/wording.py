"""Passages, questions and answers that are short, odd, alike, or in other scripts."""

from operator import itemgetter

from chains import LEAVE, LEAVE_PAGES
from kit import GROUNDED, Chat, Pages, ask, joined, rag
from langchain_core.runnables import RunnableLambda, RunnablePassthrough
from registry import Truth, shape


@shape(
    Truth(
        "Is the pool open on Monday?",
        ["The pool is closed on Mondays.", "The gym is open daily."],
        "No.",
    )
)
def very_short_answer() -> None:
    """The answer is one word, and so is what the moderator before it says."""
    model = Chat(rules={"Is this allowed": "Yes.", "Question:": "No."})
    pages = Pages(found={"pool": ["The pool is closed on Mondays.", "The gym is open daily."]})
    checked = RunnablePassthrough.assign(allowed=ask(model, "Is this allowed? {question}"))
    chain = checked | itemgetter("question") | rag(pages, model)
    chain.invoke({"question": "Is the pool open on Monday?"})


RTL = ["המגדל נבנה בשנת 1884.", "ارتفاع البرج تسعون مترا 🗼.", "Le château est près ; voilà."]


@shape(Truth("מתי נבנה המגדל?", RTL, "המגדל נבנה בשנת 1884 🗼"))
def other_scripts() -> None:
    """Hebrew, Arabic and French, and a picture."""
    rag(Pages(found={"": RTL}), Chat(rules={"Question:": "המגדל נבנה בשנת 1884 🗼"})).invoke(
        "מתי נבנה המגדל?"
    )


ODD = [
    'Set {"retries": 3} in "config.json",\nthen restart.\n\nNothing else helps.',
    "Paths like C:\\temp\\new are fine; {braces} and [lists] too.",
    "   Indented, with a trailing blank. \n",
]


@shape(Truth('How do I set "retries"?', ODD, 'Set {"retries": 3} in config.json.'))
def odd_characters() -> None:
    """Braces, quotes, backslashes and blank lines, in passages, question and answer."""
    model = Chat(rules={"Question:": 'Set {"retries": 3} in config.json.'})
    rag(Pages(found={"": ODD}), model).invoke('How do I set "retries"?')


EXAMPLE = "Example context: Sick leave is 10 days a year.\nExample answer: Sick leave is 10 days."


@shape(Truth(LEAVE, LEAVE_PAGES[:1], "Parents get 120 days of leave."))
def examples_in_the_prompt() -> None:
    """The prompt shows a passage as an example, which the retriever has found and code dropped."""
    pages = Pages(found={"leave": [LEAVE_PAGES[0], "Cats are not allowed in the office."]})
    model = Chat(rules={"Question:": "Parents get 120 days of leave."})
    first = RunnableLambda(lambda found: joined(found[:1]))
    chain = {"context": pages | first, "question": RunnablePassthrough()}
    (chain | ask(model, f"{EXAMPLE}\n\n{GROUNDED}")).invoke(LEAVE)
