"""Declare the commands: what each is for, its options, and the module whose ``run`` executes it.

All options are side by side here, so that the same word means the same in all commands.
"""

from __future__ import annotations

import argparse
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar, Final

from rag_eval_otel.environment import names_in, switch
from rag_eval_otel.tools.cli.options import Options, add_all, chosen, count_up_to, moment_of

_PATH: Final = {"type": Path}
_COUNT: Final = {"type": count_up_to()}
_NUMBER: Final = {"type": float}
_NAMES: Final = {"type": names_in}
_FLAG: Final = {"action": "store_true"}
_MANY: Final[dict[str, Any]] = {"action": "append", "default": []}


def _pairs(text: str) -> dict[str, str]:
    pairs = [pair.partition("=") for pair in text.split(",")]
    if not all(column for _, _, column in pairs):
        raise argparse.ArgumentTypeError(f"must be FIELD=COLUMN,..., not {text!r}")
    return {field: column for field, _, column in pairs}


_JSON: Options = {"--json": ("print the result as JSON", _FLAG)}
_JUDGE: Options = {
    "--judge lexical|PROVIDER/MODEL": ("the judge (default: RAG_EVAL_JUDGE, else lexical)", {})
}
_METRIC: Options = {"--metric NAME": ("only this metric", {})}
_PERIOD: Options = {
    "--since TIME": ("turns from this time on: 7d, 12h or 2026-11-22T09:00Z", {"type": moment_of}),
    "--until TIME": ("only turns before this time", {"type": moment_of}),
    "--sample-rate SHARE": ("a share of the traces (default: 1)", {**_NUMBER, "default": 1.0}),
}
_VERSIONS: Options = {
    "--versions": ("any: compare other judges, metrics and prompts, too", chosen("same", "any"))
}
_THRESHOLDS: Options = {
    "--threshold METRIC=SCORE": ("lowest passing score; repeatable", {**_MANY, "dest": "pairs"}),
    "--thresholds FILE.toml": ("as `rag-eval-otel calibrate --output` writes it", _PATH),
    "--label-metrics NAMES": ("metrics that decide the label (default: by judge)", _NAMES),
}
_SCORING: Options = {
    "--metrics NAMES": ("metrics or sets of them, by comma (default: default)", _NAMES),
    **_JUDGE,
    "--embedder hashing|PROVIDER/MODEL": ("(default: by environment or judge)", {}),
    "--prompts FOLDER": ("prompt files that replace the built-in ones", {}),
    "--explanations on|off": ("ask the judge for reasons (default: off)", {"type": switch}),
    "--prices FILE": ("prices of tokens, JSON (default: RAG_EVAL_PRICES, else list prices)", {}),
    "--max-text-chars N": ("cut each text after N characters, a row after 4 N", _COUNT),
    "--concurrency N": ("rows at once (default: 16)", _COUNT),
    "--timeout SECONDS": ("time limit of a row (default: 30)", _NUMBER),
    **_THRESHOLDS,
}


class Command:
    """A command; the first line of its docstring stands in the list of commands."""

    DESCRIPTION: ClassVar[str]
    OPTIONS: ClassVar[Options] = {}
    MODULE: ClassVar[str]

    @classmethod
    def add_options(cls, parser: argparse.ArgumentParser) -> None:
        add_all(parser, cls.OPTIONS)

    @classmethod
    def run(cls, options: argparse.Namespace) -> int:
        status: int = import_module(f"rag_eval_otel.tools.{cls.MODULE}").run(options)
        return status


class Backfill(Command):
    """Score the turns that a backend has stored."""

    DESCRIPTION = """\
Scores the turns in stored traces as live evaluation does, and writes the scores back as objects of
the backend: annotations of Phoenix, feedback of MLflow, scores of Langfuse. SOURCE is

  phoenix:PROJECT      PHOENIX_ENDPOINT, PHOENIX_API_KEY
  mlflow:EXPERIMENT    MLFLOW_TRACKING_URI, MLFLOW_TRACKING_TOKEN
  langfuse             LANGFUSE_BASE_URL, LANGFUSE_PUBLIC_KEY, LANGFUSE_SECRET_KEY

Before it begins, it prints about how many requests, tokens and how much money the turns take, and
asks on a terminal. Without a terminal, it begins only with --yes. After an interrupt or a kill, run
the same command again: turns with scores of the same metrics, prompts and judge are left alone.

Exit status: 0 each turn has its scores; 1 a turn has an error instead of a score, or a score could
not be written; 2 misuse, or not begun; 130 interrupted.
"""
    OPTIONS: ClassVar = {
        "source SOURCE": ("as above", {}),
        **_PERIOD,
        "--yes": ("begin without asking", _FLAG),
        **_SCORING,
        **_JSON,
    }
    MODULE = "cli.backfill"


class Calibrate(Command):
    """Compare the scores of a metric with human labels, and a judge with known verdicts."""

    DESCRIPTION = """\
Compares the scores of a metric with human labels: agreement, the errors of its pass and fail, the
threshold that fits the labels best. FILE is .jsonl, .csv or .parquet, each row one of

  {"score": 0.8, "label": "pass"}
  {"scores": {"faithfulness": 0.8}, "labels": {"faithfulness": 1}}
  {"faithfulness": 0.8, "faithfulness.human": 1}
  what `rag-eval-otel evaluate --output` wrote, with <metric>.human or human added

With --built-in, a judge is asked about 84 cases with known verdicts, in six languages, with the
real prompts. Its scores are compared with the labels that follow from the verdicts; "declines" is
whether it tells answers that decline from those that claim something.

Exit status: 0 done, 1 with --built-in a judge is right in less than --bound of the cases, 2 misuse.
"""
    OPTIONS: ClassVar = {
        "file FILE": (".jsonl, .csv or .parquet", {"nargs": "?"}),
        **_METRIC,
        "--threshold SCORE": ("lowest score that passes (default: the metric's own)", _NUMBER),
        "--label-threshold SCORE": ("lowest label that passes, if labels are on a scale", _NUMBER),
        "-o --output FILE.toml": ("write the thresholds that fit, for --thresholds", _PATH),
        **_JSON,
        "--built-in": ("compare a judge with known verdicts; without FILE", _FLAG),
        **_JUDGE,
        "--bound SHARE": ("with --built-in: lowest share of right scores (default: 0.8)", _NUMBER),
        "--concurrency N": ("with --built-in: cases at once (default: 16)", _COUNT),
    }
    MODULE = "calibrate"


class Collect(Command):
    """Collect the samples in recorded traces, by the code that reads live traces."""

    DESCRIPTION = """\
Reads the traces in SOURCE... and writes question, contexts and answer of each RAG turn to FILE, as
`rag-eval-otel evaluate FILE` reads them. SOURCE is what a collector's file exporter wrote (OTLP
JSON, also compressed by gzip; a trace may be in several files), or phoenix:PROJECT,
mlflow:EXPERIMENT or langfuse, as for `backfill`. A turn that cannot be reconstructed with certainty
is skipped and counted with its reason.

Exit status: 0 written, 1 no sample was found, 2 misuse.
"""
    OPTIONS: ClassVar = {
        "sources SOURCE": ("files, or a backend", {"nargs": "+"}),
        "-o --output FILE": (".jsonl", {**_PATH, "required": True}),
        **_PERIOD,
        "--failed": ("only turns with the label fail", _FLAG),
        "--value-limit N": ("texts are cut to N (OTEL_ATTRIBUTE_VALUE_LENGTH_LIMIT)", _COUNT),
    }
    MODULE = "collect"


class Demo(Command):
    """Run a small offline RAG app, and show its traces with their scores."""

    DESCRIPTION = """\
Runs a LangChain RAG app over a small handbook with the callback installed, and prints the scores of
its answers, failures first. Exports its traces to OTEL_EXPORTER_OTLP_ENDPOINT as well if that is
set. Needs no key and no network.

Exit status: 0 each answer has scores, 1 one has none, 2 misuse.
"""
    OPTIONS: ClassVar = {**_JUDGE}
    MODULE = "demo"


class Doctor(Command):
    """Check the set-up by a small request to judge, embedder and endpoints, and say what to do."""

    DESCRIPTION = """\
Prints the installed versions, checks whether judge, embedder and OTLP endpoints answer, and says
what to do about each problem. What a program captures, scores and skips, and why, it says itself
when it ends:

  RAG_EVAL_DOCTOR=1 python app.py

Exit status: 0 no problem, 1 problems, 2 misuse.
"""
    OPTIONS: ClassVar = {
        "--timeout SECONDS": ("limit of each check (default: 10)", {**_NUMBER, "default": 10.0})
    }
    MODULE = "doctor"


class Drift(Command):
    """Find drift in the scores of a file."""

    DESCRIPTION = """\
Detects drift in the scores of FILE, in the order of the file. FILE is .csv, .jsonl or .parquet, and
each row is one of

  {"score": 0.8, "metric": "faithfulness", "time": "2026-11-21T09:00:00Z"}
  {"scores": {"faithfulness": 0.8}}
  {"faithfulness": 0.8}                          with --metric faithfulness
  a row that `rag-eval-otel evaluate --output` wrote

or FILE has spans and log records as OTLP JSON, .json or .jsonl, from a collector's file exporter.
Each service, metric and version is a stream of its own.

Exit status: 0 no drift, 1 drift, 2 misuse.
"""
    OPTIONS: ClassVar = {
        "file FILE": ("scores, in their order", _PATH),
        **_METRIC,
        "--target MEAN": ("the mean that the scores should have", _NUMBER),
        "--baseline FILE": ("learn the baseline from this file", _PATH),
        "--learn N": ("learn from the first N scores (default: half, at most 2000)", {"type": int}),
        "--every N": ("one false alarm in N scores (default: 1e5)", {**_NUMBER, "default": 1e5}),
        "--direction": ("(default: both)", chosen("both", "down", "up", default="both")),
        **_JSON,
    }
    MODULE = "cli.drift"


class Evaluate(Command):
    """Score every row of a dataset with the metrics that the caller chooses."""

    DESCRIPTION = """\
Scores every row of FILE (.jsonl, .csv or .parquet) and prints a summary. Columns of ragas,
LlamaIndex and Haystack are recognised. Scores are cached on disk as each row ends: after an
interrupt or a kill, run the same command again.

Exit status: 0 every row was scored, and the gate passed; 1 a row has an error instead of a score,
or no metric could use the judge's replies on a row; 2 misuse; 3 the gate failed: a condition is not
met; 130 interrupted.
"""
    OPTIONS: ClassVar = {
        "file FILE": (".jsonl, .csv or .parquet", {}),
        "-o --output FILE": ("write the scores of each row: .jsonl or .csv", _PATH),
        "--texts": ("write texts, too (default: on)", chosen("on", "off", default="on")),
        **_SCORING,
        "--repairs N": ("repeats after an unusable reply (default: 1)", {**_COUNT, "default": 1}),
        "--columns FIELD=COLUMN,...": ("as in question=prompt,answer=output", {"type": _pairs}),
        "--limit N": ("evaluate the first N rows only", _COUNT),
        "--cache FILE": ("cache of scores (default: OUTPUT.cache, deleted at the end)", _PATH),
        "--max-requests N": ("send at most N judge requests", _COUNT),
        "--max-tokens N": ("send no judge request after N tokens", _COUNT),
        "--fail-under METRIC=MEAN": ("exit with 3 if the mean is lower; repeatable", _MANY),
        "--fail-over METRIC=MEAN": ("the same for a mean that is higher, where high is bad", _MANY),
        "--fail-under-pass-rate SHARE": ("exit with 3 if fewer rows have the label pass", _NUMBER),
        "--baseline FILE": ("scores of an earlier run over the same questions", _PATH),
        "--no-worse METRIC[=DROP]": ("exit with 3 if it fell by more than DROP and chance", _MANY),
        "--level SHARE": ("share of false alarms of --no-worse (default: 0.01)", _NUMBER),
        **_VERSIONS,
        **_JSON,
    }
    MODULE = "dataset"


class Look(Command):
    """Run the demo's traffic with dashboards and alerts, and show them on a local page."""

    DESCRIPTION = """\
Runs the app of `rag-eval-otel demo` under changing traffic until ^C: healthy answers, a deployment
with wrong ones, an outage of the judge. A page at a local address shows the dashboards of the
folder collector/, the alerts, and the worst turns. The rules of the alerts are 60 times as fast.

It starts a collector (built with Go, once), Prometheus and Alertmanager, on free ports and with
data in a temporary folder. Without them, the page shows the scores and turns of this process. With
OTEL_EXPORTER_OTLP_ENDPOINT, the traffic goes there, and none of them is started.

^C, SIGTERM or SIGHUP end the command and all that it has started.

Exit status: 0 ended, 2 misuse.
"""
    OPTIONS: ClassVar = {
        "--port N": ("of the page (default: 8765, or a free one)", {"type": int, "default": 8765}),
        "--minutes M": ("length of a cycle of the traffic (default: 3)", {**_NUMBER, "default": 3}),
        "--rate N": ("questions a second (default: 5)", {**_NUMBER, "default": 5}),
        "--trace-url URL": ("link turns to traces: 'http://localhost:16686/trace/{trace_id}'", {}),
    }
    MODULE = "look"


class Metrics(Command):
    """List the metrics and their sets."""

    DESCRIPTION = """\
Lists the metrics, with what each needs and a sentence about it, and the sets that --metrics takes.

Exit status: 0 listed, 2 misuse.
"""
    OPTIONS: ClassVar = _JSON
    MODULE = "cli.metrics"


class Report(Command):
    """Report on the scores in a file, or on the change between two, as a page without network."""

    DESCRIPTION = """\
Prints the scores of FILE, and with --output writes one HTML page about them, which needs no network
and no server: what has changed, the share that passes, and for each metric distribution, worst
turns, time line and drift. FILE is what `evaluate --output` wrote, what `drift` reads, or spans and
log records as OTLP JSON (.json or .jsonl), as a collector's file exporter writes them.

With B, compares FILE (A, the earlier run) and B, two runs over the same questions: means, paired
differences with their intervals, and the turns that got worse or better. A difference is B minus A.
For a status that says whether B is worse, see --baseline and --no-worse of `evaluate`.

Exit status: 0 written, 2 misuse.
"""
    OPTIONS: ClassVar = {
        "file FILE": ("the scores", _PATH),
        "other B": ("compare FILE with B", {**_PATH, "nargs": "?"}),
        "-o --output PAGE": ("write a page: .html", _PATH),
        "--texts": ("show texts (default: as content capture; with B on)", chosen("on", "off")),
        **_METRIC,
        "--worst N": (
            "the N lowest scores, or with B the N largest changes each way (default: 10)",
            {"type": count_up_to(1000), "default": 10},
        ),
        "--trace-url URL": ("link turns to traces: 'http://localhost:16686/trace/{trace_id}'", {}),
        **_VERSIONS,
        **_JSON,
    }
    MODULE = "report"


class Rules(Command):
    """Print Prometheus rules that alert if too many answers have a bad score."""

    DESCRIPTION = """\
Prints Prometheus rules for the score histograms of `rag_eval_otel`: recorded ratios and means,
alerts on bad answers (evidence with a stated rate of false alarms, and burn rates), on needless
refusals and failed retrieval, and on the scoring itself: coverage, silence, errors, lag, budget,
drift. An answer is bad if its score is below its metric's threshold.

  rag-eval-otel rules --slo 0.95 --tau 0.4 > rules.yaml && promtool check rules rules.yaml

Exit status: 0 printed, 2 misuse.
"""
    OPTIONS: ClassVar = {
        "--slo SHARE": ("share of answers that should be good (default: 0.9)", _NUMBER),
        "--tau SCORE": ("an answer is bad if its score is below this (default: 0.5)", _NUMBER),
        "--every N": ("allow one false alarm in N scores (default: 1e5)", _NUMBER),
        "--interval TIME": ("how often the rules run (default: 1m)", {}),
        "--traces URL": ("link to bad turns, with {service} and {metric} (default: a Jaeger)", {}),
        "--time-scale N": ("divide times by N: 60 makes an hour a minute (default: 1)", _NUMBER),
        **_THRESHOLDS,
    }
    MODULE = "rules"
