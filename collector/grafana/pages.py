"""The dashboards: their panels and queries."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from panels import WIDTH, Dashboard, Panel, Query, ask, either, of_run, zero

from rag_eval_otel.tools.rules import WINDOWS

SERVICE = 'service_name=~"$service"'
METRIC = f'gen_ai_evaluation_name=~"$metric", {SERVICE}'
ONE = f'gen_ai_evaluation_name="$metric", {SERVICE}'
RATE = "[$__rate_interval]"
BY_NAME = "{{gen_ai_evaluation_name}} {{service_name}}"
EVIDENCE = "max by (gen_ai_evaluation_name, service_name) (rag_evaluation:bad_log10_evalue{%s})"


def _share(where: str, by: str = "service_name") -> str:
    """Return the share of the turns ``where``, by ``by``; of a batch job, over the whole run."""
    hour, run = (
        f"sum by ({by}) (rag_evaluation:verdict_ratio:{window}{{{where}{SERVICE}}})"
        for window in ("1h", "run")
    )
    return f"{hour} or {run} unless on (service_name) rag_evaluation:verdict_ratio:1h"


def _or_none(where: str) -> str:
    """Return the share of the turns ``where`` by service, 0 if there are only others."""
    return f"{_share(where)} or 0 * ({_share('')})"


_GOOD = (ask(_or_none('label="pass", '), "{{service_name}}"),)
_BLAMED = tuple(
    ask(_or_none(f'cause=~"{causes}", '), f"{blamed} {{{{service_name}}}}")
    for blamed, causes in (
        ("retrieval", "retrieval"),
        ("generation", "unsupported|off_topic"),
        ("refusal", "needless_refusal"),
        ("another metric", "metric"),
    )
)
_BLAME = (
    "retrieval: the contexts do not have the answer, whether the application answered or declined."
    " generation: the answer is not supported, or beside the question. refusal: it declines,"
    " although the contexts have the answer."
)

OVERVIEW = Dashboard(
    uid="rag-overview",
    title="RAG answers: overview",
    panels=(
        Panel(
            title="Good answers, last hour",
            told="The share of the evaluated turns with the label pass.",
            kind="bargauge",
            unit="percentunit",
            top=1,
            queries=_GOOD,
        ),
        Panel(
            title="Good answers",
            told="Over the last hour at each point; of a batch job, over the whole run.",
            unit="percentunit",
            top=1,
            queries=_GOOD,
        ),
        Panel(
            title="What fails, and since when",
            told="The share of the turns with the label fail, by cause. docs/outcomes.md has them.",
            unit="percentunit",
            queries=(
                ask(
                    zero(_share('label="fail", ', "service_name, cause")),
                    "{{cause}} {{service_name}}",
                ),
            ),
        ),
        Panel(
            title="Answers that decline",
            told="label pass: rightly, because the contexts do not have the answer.",
            unit="percentunit",
            queries=(
                ask(
                    zero(_share('outcome="declined", ', "service_name, label")),
                    "{{label}} {{service_name}}",
                ),
            ),
        ),
        Panel(
            title="Who is to blame, last hour",
            told=_BLAME,
            kind="bargauge",
            unit="percentunit",
            top=1,
            queries=_BLAMED,
        ),
        Panel(title="Who is to blame", told=_BLAME, unit="percentunit", queries=_BLAMED),
        Panel(
            title="Mean score, last hour",
            kind="bargauge",
            unit="percentunit",
            top=1,
            queries=(ask(of_run("rag_evaluation:mean:1h", METRIC), BY_NAME),),
        ),
        Panel(
            title="Bad answers, last hour",
            kind="bargauge",
            unit="percentunit",
            top=1,
            queries=(ask(of_run("rag_evaluation:bad_ratio:1h", METRIC), BY_NAME),),
        ),
        Panel(
            title="Mean score",
            told="Over the last hour at each point; of a batch job, over the whole run.",
            unit="percentunit",
            top=1,
            queries=(ask(of_run("rag_evaluation:mean:1h", METRIC), BY_NAME),),
        ),
        Panel(
            title="Evidence that too many answers are bad",
            told="log10 of an e-value: the page goes out above the line.",
            line=5,
            queries=(ask(EVIDENCE % METRIC, BY_NAME),),
        ),
        Panel(
            title="Share of bad answers",
            unit="percentunit",
            top=1,
            queries=tuple(
                ask(of_run(f"rag_evaluation:bad_ratio:{window}", METRIC), f"{BY_NAME} {window}")
                for window in ("1h", "1d")
            ),
        ),
        Panel(
            title="Turns by what became of them",
            unit="reqps",
            queries=(
                ask(
                    f"sum by (status) (rate(rag_evaluation_turns_total{{{SERVICE}}}{RATE}))",
                    "{{status}}",
                ),
                ask(
                    "sum by (rag_evaluation_status)"
                    f" (rate(rag_evaluation_span_turns_total{{{SERVICE}}}{RATE}))",
                    "on spans: {{rag_evaluation_status}}",
                ),
            ),
        ),
        Panel(
            title="Drift found by the detectors in the applications",
            told="Alarms in the last hour.",
            queries=(
                ask(
                    zero(
                        "sum by (gen_ai_evaluation_name, service_name,"
                        " rag_evaluation_drift_direction)"
                        f" (increase(rag_evaluation_drift_alarms_total{{{METRIC}}}[1h]))"
                    ),
                    f"{BY_NAME} {{{{rag_evaluation_drift_direction}}}}",
                ),
            ),
        ),
        Panel(
            title="Evidence of drift in the applications",
            told="log10; their alarm is at 5, or at the log10 of the `every` that was set.",
            line=5,
            queries=(
                ask(
                    "max by (gen_ai_evaluation_name, service_name)"
                    f" (rag_evaluation_drift_log10_evidence_ratio{{{METRIC}}})",
                    BY_NAME,
                ),
            ),
        ),
        Panel(
            title="Feedback of people",
            unit="reqps",
            queries=(
                ask(
                    zero(
                        "sum by (feedback, feedback_label)"
                        f" (rate(rag_evaluation_feedback_received_total{{{SERVICE}}}{RATE}))"
                    ),
                    "{{feedback}} {{feedback_label}}",
                ),
            ),
        ),
        Panel(
            title="Alerts",
            kind="table",
            width=WIDTH,
            queries=(ask(zero('ALERTS{alertname=~"Rag.*"}'), ""),),
        ),
    ),
)

IN_DEPTH = Dashboard(
    uid="rag-metric",
    title="RAG answers: one metric",
    metrics="one",
    panels=(
        Panel(
            title="Distribution of the scores",
            kind="heatmap",
            width=WIDTH,
            queries=(
                ask(
                    either(f"sum by (le) (increase(%s{RATE}))", "_bucket", ONE),
                    "{{le}}",
                ),
            ),
        ),
        Panel(
            title="Quantiles",
            told="The dots are turns: each leads to its trace.",
            unit="percentunit",
            top=1,
            queries=tuple(
                Query(
                    expr=f"histogram_quantile({q}, "
                    + either(f"sum by (le) (rate(%s{RATE}))", "_bucket", ONE)
                    + ")",
                    legend=f"p{100 * q:.0f}",
                    exemplars="on",
                )
                for q in (0.1, 0.5, 0.9)
            ),
        ),
        Panel(
            title="Mean score, an hour against a day",
            told="A score passes from the threshold that the rules were written for.",
            unit="percentunit",
            top=1,
            queries=tuple(
                ask(expr, f"{{{{service_name}}}} {told}")
                for expr, told in (
                    (of_run("rag_evaluation:mean:1h", ONE), "1h"),
                    (of_run("rag_evaluation:mean:1d", ONE), "1d"),
                    (f"rag_evaluation:threshold{{{ONE}}}", "passes from"),
                )
            ),
        ),
        Panel(
            title="Share of bad answers by window",
            unit="percentunit",
            top=1,
            queries=tuple(
                ask(of_run(f"rag_evaluation:bad_ratio:{window}", ONE), window) for window in WINDOWS
            ),
        ),
        Panel(
            title="Evidence by window",
            line=5,
            queries=(
                ask(
                    f"max by (window) (rag_evaluation:bad_log10_evalue{{{ONE}}})",
                    "{{window}}",
                ),
            ),
        ),
        Panel(
            title="Pass and fail",
            unit="reqps",
            queries=(
                ask(
                    "sum by (gen_ai_evaluation_score_label)"
                    f" (rate(rag_evaluation_score_count{{{ONE}}}{RATE}))",
                    "{{gen_ai_evaluation_score_label}}",
                ),
            ),
        ),
        Panel(
            title="Mean score by judge",
            told=(
                "Of all turns: scores are weighted by the inverse of their turn's probability."
                " A step where the judge changes is the judge's. Offline: a cascade's first judge."
            ),
            unit="percentunit",
            top=1,
            queries=(
                ask(
                    "sum by (rag_evaluation_judge)"
                    f" (rate(rag_evaluation_weighted_score_total{{{ONE}}}{RATE}))"
                    " / sum by (rag_evaluation_judge)"
                    f" (rate(rag_evaluation_weighted_count_total{{{ONE}}}{RATE}))",
                    "{{rag_evaluation_judge}}",
                ),
                ask(
                    "sum by (rag_evaluation_judge)"
                    f" (rate(rag_evaluation_offline_score_sum{{{ONE}}}{RATE}))"
                    " / sum by (rag_evaluation_judge)"
                    f" (rate(rag_evaluation_offline_score_count{{{ONE}}}{RATE}))",
                    "{{rag_evaluation_judge}} (offline)",
                ),
            ),
        ),
    ),
)


def _seconds(name: str) -> tuple[Query, ...]:
    return tuple(
        ask(
            f"histogram_quantile({q}, sum by (le)"
            f" (rate(rag_evaluation_{name}_seconds_bucket{{{SERVICE}}}{RATE})))",
            f"p{100 * q:.0f}",
        )
        for q in (0.5, 0.95)
    )


def _rate(name: str, by: str) -> str:
    return zero(f"sum by ({by}) (rate(rag_evaluation_{name}_total{{{SERVICE}}}{RATE}))")


COST = Dashboard(
    uid="rag-cost",
    title="RAG answers: cost and coverage",
    metrics="none",
    panels=(
        Panel(
            title="Coverage",
            told="The share of turns that are scored, those left out on purpose aside.",
            unit="percentunit",
            top=1,
            queries=(ask(f"rag_evaluation:coverage:15m{{{SERVICE}}}", "{{service_name}}"),),
        ),
        Panel(
            title="Turns that are not scored, by reason",
            unit="reqps",
            queries=(
                ask(
                    zero(
                        "sum by (status, reason)"
                        f' (rate(rag_evaluation_turns_total{{status!="scored", {SERVICE}}}{RATE}))'
                    ),
                    "{{status}} {{reason}}",
                ),
            ),
        ),
        Panel(
            title="Judge requests",
            unit="reqps",
            queries=(
                ask(_rate("judge_calls", "rag_evaluation_judge"), "{{rag_evaluation_judge}}"),
            ),
        ),
        Panel(
            title="Judge tokens a second",
            queries=(
                ask(
                    _rate("judge_tokens", "rag_evaluation_judge, token_type"),
                    "{{rag_evaluation_judge}} {{token_type}}",
                ),
            ),
        ),
        Panel(
            title="Judge requests and tokens a turn",
            queries=(
                ask(
                    f"sum(rate(rag_evaluation_judge_calls_total{{{SERVICE}}}{RATE}))"
                    " / sum(rate(rag_evaluation_turns_total"
                    f'{{status="scored", {SERVICE}}}{RATE}))',
                    "requests",
                ),
                ask(
                    f"sum(rate(rag_evaluation_judge_tokens_total{{{SERVICE}}}{RATE}))"
                    " / sum(rate(rag_evaluation_turns_total"
                    f'{{status="scored", {SERVICE}}}{RATE}))',
                    "tokens",
                ),
            ),
        ),
        Panel(
            title="Money a day, by judge",
            told="For tokens of judge and embedder in the last 24 hours, where prices are known.",
            queries=(
                ask(
                    zero(
                        "sum by (rag_evaluation_judge, rag_evaluation_currency)"
                        f" (increase(rag_evaluation_judge_cost_total{{{SERVICE}}}[1d]))"
                    ),
                    "{{rag_evaluation_judge}} {{rag_evaluation_currency}}",
                ),
            ),
        ),
        Panel(
            title="Money a day, by metric",
            queries=(
                ask(
                    zero(
                        "sum by (gen_ai_evaluation_name, rag_evaluation_currency)"
                        f" (increase(rag_evaluation_judge_cost_total{{{SERVICE}}}[1d]))"
                    ),
                    "{{gen_ai_evaluation_name}} {{rag_evaluation_currency}}",
                ),
            ),
        ),
        Panel(
            title="What is left of the budget",
            unit="percentunit",
            top=1,
            queries=(
                ask(
                    f"min by (service_name, limit) (rag_evaluation_budget_left_ratio{{{SERVICE}}})",
                    "{{service_name}} {{limit}}",
                ),
            ),
        ),
        Panel(
            title="Turns that the budget cut",
            told="Skipped, or with scores of the offline judge only.",
            unit="reqps",
            queries=(
                ask(
                    zero(
                        "sum by (service_name, status)"
                        f' (rate(rag_evaluation_turns_total{{reason="budget", {SERVICE}}}{RATE}))'
                    ),
                    "{{service_name}} {{status}}",
                ),
            ),
        ),
        Panel(
            title="Embedding requests",
            unit="reqps",
            queries=(ask(_rate("embedding_calls", "service_name"), "{{service_name}}"),),
        ),
        Panel(title="Time of an evaluation", unit="s", queries=_seconds("duration")),
        Panel(title="From answer to score", unit="s", queries=_seconds("lag")),
        Panel(
            title="Spans that wait for scores",
            queries=(
                ask(
                    zero(f"sum by (service_name) (rag_evaluation_held{{{SERVICE}}})"),
                    "{{service_name}}",
                ),
            ),
        ),
        Panel(
            title="Failures of rag_eval_otel itself",
            unit="reqps",
            queries=(ask(_rate("internal_errors", "place"), "{{place}}"),),
        ),
    ),
)


def _per_second(name: str, by: str, legend: str, where: str = "") -> Query:
    matchers = ", ".join(filter(None, [where, SERVICE]))
    return ask(zero(f"sum by ({by}) (rate(rag_evaluation_{name}{{{matchers}}}{RATE}))"), legend)


def _now(name: str, by: str, legend: str, how: str = "sum") -> Query:
    expr = f"{how} by ({by}) (rag_evaluation_{name}{{{SERVICE}}})"
    return ask(zero(expr) if how == "sum" else expr, legend)


_ENDPOINT = "{{service_name}} {{endpoint}}"
_BY_ENDPOINT = "service_name, endpoint"

HEALTH = Dashboard(
    uid="rag-health",
    title="RAG answers: is the evaluator itself well?",
    metrics="none",
    panels=(
        Panel(
            title="Alerts on the evaluator",
            kind="table",
            width=WIDTH,
            queries=(
                ask(
                    zero(f'ALERTS{{alertname!~"RagAnswers.*|RagBad.*|RagScoreDrift", {SERVICE}}}'),
                    "",
                ),
            ),
        ),
        Panel(
            title="Turns found, and what became of them",
            told="Found = scored + unscored + error + skipped + dropped + what is pending.",
            unit="reqps",
            queries=(
                _per_second("captured_total", "service_name", "{{service_name}} found"),
                _per_second("turns_total", "status", "{{status}}"),
            ),
        ),
        Panel(
            title="Turns that wait for their evaluation",
            told="A number that grows: the judge is slower than the traffic.",
            queries=(_now("pending", "service_name", "{{service_name}}"),),
        ),
        Panel(
            title="Turns dropped, by reason",
            unit="reqps",
            queries=(
                _per_second(
                    "turns_total",
                    "service_name, reason",
                    "{{service_name}} {{reason}}",
                    'status="dropped"',
                ),
            ),
        ),
        Panel(
            title="Spans that waited for scores, by status",
            told="timeout, overload and flushed: exported before their scores came.",
            unit="reqps",
            queries=(_per_second("released_total", "status", "{{status}}"),),
        ),
        Panel(
            title="Spans that wait for scores",
            queries=(_now("held", "service_name", "{{service_name}}"),),
        ),
        Panel(
            title="Memory of spans that wait for scores",
            unit="bytes",
            queries=(_now("held_bytes", "service_name", "{{service_name}}"),),
        ),
        Panel(
            title="Requests to judge and embedder, by outcome",
            told="Each retry is a request of its own.",
            unit="reqps",
            queries=(
                _per_second(
                    "endpoint_attempts_total", "endpoint, outcome", "{{endpoint}} {{outcome}}"
                ),
            ),
        ),
        Panel(
            title="Requests that were not sent, by reason",
            unit="reqps",
            queries=(
                _per_second(
                    "endpoint_not_sent_total", "endpoint, reason", "{{endpoint}} {{reason}}"
                ),
            ),
        ),
        Panel(
            title="Latency of judge and embedder",
            unit="s",
            queries=tuple(
                ask(
                    f"histogram_quantile({q}, sum by (endpoint, le)"
                    f" (rate(rag_evaluation_endpoint_duration_seconds_bucket{{{SERVICE}}}{RATE})))",
                    f"{{{{endpoint}}}} p{100 * q:.0f}",
                )
                for q in (0.5, 0.95)
            ),
        ),
        Panel(
            title="Circuit breakers",
            told="0 closed, 1 open. The worst of all processes.",
            top=1,
            queries=(_now("endpoint_breaker", _BY_ENDPOINT, _ENDPOINT, how="max"),),
        ),
        Panel(
            title="Budget that is left",
            told="The share of each limit. The lowest of all processes.",
            unit="percentunit",
            top=1,
            queries=(
                _now(
                    "budget_left_ratio", "service_name, limit", "{{service_name}} {{limit}}", "min"
                ),
            ),
        ),
        Panel(title="From answer to score", unit="s", queries=_seconds("lag")),
        Panel(
            title="Scores for backends",
            told="Phoenix, MLflow and others: what was delivered and dropped.",
            unit="reqps",
            queries=(
                _per_second("backend_scores_total", "backend, outcome", "{{backend}} {{outcome}}"),
            ),
        ),
        Panel(
            title="Scores that did not reach a backend, by reason",
            told="Since the start of the processes. 0: none.",
            queries=(
                ask(
                    zero(
                        "sum by (service_name, backend, reason)"
                        f' (rag_evaluation_backend_scores_total{{outcome="dropped", {SERVICE}}})'
                    ),
                    "{{service_name}} {{backend}} {{reason}}",
                ),
            ),
        ),
        Panel(
            title="Scores that wait for a backend",
            queries=(
                _now("backend_queued", "service_name, backend", "{{service_name}} {{backend}}"),
            ),
        ),
        Panel(
            title="Feedback of people, by what became of it",
            told="unmatched: the turn is not known here. docs/feedback.md explains the outcomes.",
            unit="reqps",
            queries=(
                _per_second(
                    "feedback_received_total",
                    "service_name, outcome",
                    "{{service_name}} {{outcome}}",
                ),
            ),
        ),
        Panel(
            title="Failures of rag_eval_otel itself",
            unit="reqps",
            queries=(_per_second("internal_errors_total", "place", "{{place}}"),),
        ),
    ),
)

DASHBOARDS = (OVERVIEW, IN_DEPTH, COST, HEALTH)


def queries(dashboards: Sequence[Dashboard] = DASHBOARDS) -> Iterator[str]:
    """Yield every PromQL expression of ``dashboards``."""
    for dashboard in dashboards:
        for panel in dashboard.panels:
            yield from (query.expr for query in panel.queries)
