"""The section on cost: what the scores took, as far as the file tells."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from rag_eval_otel.report.counters import Counters
from rag_eval_otel.report.markup import Child, Html, quoted, tag
from rag_eval_otel.report.series import Scores
from rag_eval_otel.report.tables import interval, number, table
from rag_eval_otel.semconv import EMBEDDING_CALLS, GEN_AI_TOKEN_TYPE, JUDGE_CALLS, JUDGE_TOKENS

_NOTHING = (
    "The file tells nothing of requests, tokens or times. The summary that"
    " `rag-eval-otel evaluate --json` prints has the usage of its run; spans have durations, and"
    " the counters rag.evaluation.judge.calls and rag.evaluation.judge.tokens all the rest."
)

_COUNTED: tuple[tuple[str, str, Mapping[str, str]], ...] = (
    ("judge requests", JUDGE_CALLS, {}),
    ("input tokens of the judge", JUDGE_TOKENS, {GEN_AI_TOKEN_TYPE: "input"}),
    ("output tokens of the judge", JUDGE_TOKENS, {GEN_AI_TOKEN_TYPE: "output"}),
    ("embedding requests", EMBEDDING_CALLS, {}),
)


def cost_section(scores: Scores) -> Html:
    """Return the section."""
    rows = [*_counted(scores.counters), *_took(scores)]
    return tag(
        "section",
        tag("h2", "Cost and judges", id="cost-name"),
        table("What the scores took", ("what", "amount"), rows) if rows else tag("p", _NOTHING),
        _judges(scores) if scores.judges else None,
        id="cost",
        aria_labelledby="cost-name",
    )


def _counted(counters: Counters) -> Iterator[tuple[Child, ...]]:
    for told, name, attributes in _COUNTED:
        count = counters.total(name, attributes)
        if count is not None:
            yield told, f"{count:,.0f}"


def _took(scores: Scores) -> Iterator[tuple[Child, ...]]:
    took = scores.durations
    if took.count:
        yield "turns with a duration", f"{took.count:,}"
        yield (
            "seconds a turn, mean",
            f"{number(took.mean)}, 95 % interval {interval(took.interval)}",
        )
        yield "seconds a turn, longest", number(scores.longest)
        yield "seconds in all", f"{took.centre * took.count:,.1f}"


def _judges(scores: Scores) -> Html:
    most = scores.judges.most_common(_MOST_JUDGES)
    rows = [(quoted(judge), f"{count:,}") for judge, count in most]
    more = len(scores.judges) - len(most)
    caption = f"Judges that answered, and {more:,} more" if more else "Judges that answered"
    return table(caption, ("judge", "turns"), rows)


_MOST_JUDGES = 20
