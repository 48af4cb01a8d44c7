"""Graphs: grading loops, web search instead of retrieval, several hops, fan-out, planning."""

import operator
from typing import Annotated, Any, TypedDict

from kit import GROUNDED, Chat, Pages, ask, joined
from langchain_core.documents import Document
from langchain_core.tools import tool
from langgraph.graph import END, START, StateGraph
from langgraph.types import Send
from registry import Truth, shape


class State(TypedDict, total=False):
    """What the graphs pass around."""

    question: str
    query: str
    documents: list[Document]
    notes: Annotated[list[str], operator.add]
    steps: list[str]
    answer: str
    title: str
    tries: int


def line(*nodes: Any, **more: Any) -> Any:
    """Return a compiled graph of ``nodes`` in a row; ``more`` maps a node to where it branches."""
    graph = StateGraph(State)
    for node in nodes:
        graph.add_node(node.__name__, node)
    names = [node.__name__ for node in nodes]
    graph.add_edge(START, names[0])
    for one, following in zip(names, [*names[1:], END], strict=True):
        if one in more:
            graph.add_conditional_edges(one, more[one])
        else:
            graph.add_edge(one, following)
    return graph.compile()


RIVER = "Which river runs through Velden?"
WEB = "Velden travel guide: the Aarn runs right through the old town of Velden."
RIVER_ANSWER = "The river Aarn runs through the old town of Velden."


@tool
def web_search(query: str) -> str:
    """Search the web."""
    return WEB


@shape(Truth(RIVER, [WEB], RIVER_ANSWER))
def corrective_with_web() -> None:
    """No passage is relevant, so the question is rewritten and the web searched by a tool."""
    pages = Pages(found={"": ["Velden has 4,000 inhabitants.", "Rivers flow downhill."]})
    model = Chat(rules={"Relevant?": "no", "Rewrite": "Velden river", "Question:": RIVER_ANSWER})

    def retrieve(state: State) -> State:
        return {"documents": pages.invoke(state["question"])}

    def grade(state: State) -> State:
        check = ask(model, "Relevant? {d}\nAsked: {q}")
        asked = [{"d": d.page_content, "q": state["question"]} for d in state["documents"]]
        verdicts = [check.invoke(one) for one in asked]
        return {
            "documents": [
                d for d, v in zip(state["documents"], verdicts, strict=True) if v == "yes"
            ]
        }

    def search(state: State) -> State:
        query = ask(model, "Rewrite: {q}").invoke({"q": state["question"]})
        return {"documents": [Document(page_content=web_search.invoke({"query": query}))]}

    def generate(state: State) -> State:
        context = joined(state["documents"])
        return {
            "answer": ask(model, GROUNDED).invoke(
                {"context": context, "question": state["question"]}
            )
        }

    line(retrieve, grade, search, generate).invoke({"question": RIVER})


ORE = "What is mined in Kolm?"
ORE_PAGES = ["Kolm has mined silver since 1540.", "Copper was mined in Kolm until 1901."]
ORE_ANSWER = "Silver is still mined in Kolm; copper was until 1901."


@shape(Truth(ORE, ORE_PAGES, ORE_ANSWER))
def rejected_then_regenerated() -> None:
    """The first answer is graded as made up and thrown away; the second is returned."""
    pages = Pages(found={"kolm": ORE_PAGES})
    model = Chat(
        rules={
            "Supported? Gold": "no",
            "Supported?": "yes",
            "Try 1": "Gold is mined in Kolm, and lots of it.",
            "Try 2": ORE_ANSWER,
        }
    )

    def retrieve(state: State) -> State:
        return {"documents": pages.invoke(state["question"]), "tries": 0}

    def generate(state: State) -> State:
        number = state["tries"] + 1
        made = {"n": number, "context": joined(state["documents"]), "question": state["question"]}
        return {"answer": ask(model, f"Try {{n}}. {GROUNDED}").invoke(made), "tries": number}

    def check(state: State) -> str:
        shown = {"a": state["answer"], "d": joined(state["documents"])}
        good = ask(model, "Supported? {a}\n{d}").invoke(shown) == "yes"
        return END if good else "generate"

    line(retrieve, generate, generate=check).invoke({"question": ORE})


HOPS = "Where was the founder of Brixo born?"
HOP_PAGES = ["Brixo was founded by Mara Lund.", "Mara Lund was born in Tarvik."]


@shape(Truth(HOPS, HOP_PAGES, "Mara Lund, who founded Brixo, was born in Tarvik."))
def two_hops() -> None:
    """What the first search says is part of the second query."""
    pages = Pages(found={"mara lund": HOP_PAGES[1:], "brixo": HOP_PAGES[:1]})
    model = Chat(
        rules={
            "Next query after: Brixo was founded by Mara Lund": "Where was Mara Lund born?",
            "Next query": "Who founded Brixo?",
            "Sub-question: Who founded Brixo?": "Brixo was founded by Mara Lund.",
            "Sub-question: Where was": "Mara Lund was born in the town of Tarvik.",
            "Question:": "Mara Lund, who founded Brixo, was born in Tarvik.",
        }
    )
    sub = "{context}\n\nSub-question: {query}"

    def plan(state: State) -> State:
        known = "\n".join(state.get("notes", []))
        return {
            "query": ask(model, "Next query after: {k}\nfor {q}").invoke({"k": known, "q": HOPS})
        }

    def hop(state: State) -> State:
        found = joined(pages.invoke(state["query"]))
        return {"notes": [ask(model, sub).invoke({"context": found, "query": state["query"]})]}

    def generate(state: State) -> State:
        made = {"context": "\n".join(state["notes"]), "question": state["question"]}
        return {"answer": ask(model, GROUNDED).invoke(made)}

    line(plan, hop, generate, hop=lambda s: "plan" if len(s["notes"]) < 2 else "generate").invoke(
        {"question": HOPS}
    )


PAIR = "Compare the climates of Oslo and Cairo."
PAIR_PAGES = ["Oslo has cold winters with snow.", "Cairo is hot and has hardly any rain."]
PAIR_ANSWER = "Oslo is cold and snowy in winter, while Cairo is hot and dry."


@shape(Truth(PAIR, PAIR_PAGES, PAIR_ANSWER))
def fanned_out() -> None:
    """Two sub-questions are searched and answered side by side, then put together."""
    pages = Pages(found={"oslo": PAIR_PAGES[:1], "cairo": PAIR_PAGES[1:]})
    model = Chat(
        rules={
            "Split": "How is Oslo's climate?|How is Cairo's climate?",
            "Sub-question: How is Oslo": "Winters in Oslo are cold and bring snow.",
            "Sub-question: How is Cairo": "It is hot in Cairo and hardly ever rains.",
            "Question:": PAIR_ANSWER,
        }
    )

    def split(state: State) -> State:
        return {"steps": ask(model, "Split: {q}").invoke({"q": state["question"]}).split("|")}

    def sub(state: State) -> State:
        found = joined(pages.invoke(state["query"]))
        filled = {"context": found, "query": state["query"]}
        return {"notes": [ask(model, "{context}\n\nSub-question: {query}").invoke(filled)]}

    def merge(state: State) -> State:
        made = {"context": "\n".join(state["notes"]), "question": state["question"]}
        return {"answer": ask(model, GROUNDED).invoke(made)}

    graph = line(split, sub, merge, split=lambda s: [Send("sub", {"query": q}) for q in s["steps"]])
    graph.invoke({"question": PAIR})
