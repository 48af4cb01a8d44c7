"""What notebooks show: tables of samples, evaluations and results, with escaped texts."""

from __future__ import annotations

from html.parser import HTMLParser
from typing import Any

from rag_eval_otel.dataset.gate import Gate
from rag_eval_otel.dataset.run import evaluate_dataset
from rag_eval_otel.types import Evaluation, Passage, Sample, Score

HOSTILE = "</td></table><script>document.title='owned'</script><img src=x onerror=alert(1)>'\"&"


class Tags(HTMLParser):
    """The elements and texts of a piece of HTML."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.text = ""
        self.names: set[str] = set()
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note the element."""
        self.tags.add(tag)
        self.names |= {name for name, _ in attrs}

    def handle_data(self, data: str) -> None:
        """Note the text."""
        self.text += data + " "


def shown(thing: Any) -> Tags:
    """Return what a notebook shows of ``thing``."""
    return Tags(thing._repr_html_())


def test_a_sample_shows_its_texts() -> None:
    """Contexts one by one; more than fifty are counted."""
    found = shown(Sample(question="why?", contexts=["first", "second"], answer="so", reference="r"))
    for text in ("question", "why?", "first", "second", "so", "r"):
        assert text in found.text
    assert "and 10 more" in shown(Sample(contexts=["c"] * 60)).text
    assert "…" in shown(Sample(question="q" * 5000)).text


def test_an_evaluation_shows_its_scores() -> None:
    """With labels, reasons and explanations; what is not known is a dash."""
    ok = Score(name="faithfulness", value=0.25, label="fail", threshold=0.5, explanation="because")
    failed = Score(name="answer_relevancy", status="error", reason="timeout")
    found = shown(Evaluation(scores=(ok, failed), judge="a-judge"))
    for text in ("partial", "a-judge", "faithfulness", "0.250", "fail", "because", "timeout"):
        assert text in found.text


def test_results_are_tables() -> None:
    """Of a dataset, of two compared datasets, and of a row with its texts."""
    rows = [
        {"question": "Where?", "contexts": ["In Rome."], "answer": f"In Rome {i}."} for i in "ab"
    ]
    result = evaluate_dataset(rows, ["faithfulness"], judge="lexical", progress="off")
    assert "2 rows" in shown(result).text
    assert "faithfulness" in shown(result).text
    assert "faithfulness" in shown(result.compare(result)).text
    row = shown(result.rows[0]).text
    assert all(text in row for text in ("Where?", "In Rome.", "In Rome a.", "faithfulness"))


def test_a_gate_is_a_table() -> None:
    """With a row for each condition, and remarks below."""
    rows = [{"question": "Where?", "contexts": ["In Rome."], "answer": "In Oslo."}]
    result = evaluate_dataset(rows, ["faithfulness"], judge="lexical", progress="off")
    found = shown(result.check(Gate(means={"faithfulness": 1.0}, pass_rate=1.0)))
    for text in ("gate: failed, 2 of 2 conditions not met", "faithfulness", "pass rate", "FAIL"):
        assert text in found.text


def hostile() -> list[Any]:
    """Return objects with markup in all of their texts."""
    sample = Sample(
        question=HOSTILE,
        contexts=[Passage(text=HOSTILE)],
        answer=HOSTILE,
        reference=HOSTILE,
        extra={HOSTILE: HOSTILE},
    )
    score = Score(name=HOSTILE, value=1.0, explanation=HOSTILE)
    rows = [{"question": HOSTILE, "contexts": [HOSTILE], "answer": HOSTILE}]
    result = evaluate_dataset(rows, ["faithfulness"], judge="lexical", progress="off")
    evaluation = Evaluation(scores=(score,), judge=HOSTILE)
    return [sample, evaluation, result, result.rows[0], result.compare(result)]


def test_markup_is_text() -> None:
    """Texts of users and judges add no element."""
    for thing in hostile():
        found = shown(thing)
        assert not found.tags & {"script", "img"}
        assert "onerror" not in found.names
