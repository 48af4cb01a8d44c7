"""Run ``rag-eval-otel check-judge``: test a judge on cases with known verdicts."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys

from rag_eval_otel.calibration.checkup import Check, check_judge, written
from rag_eval_otel.cli.options import AS_JSON
from rag_eval_otel.config import Config
from rag_eval_otel.judge.models import build_plain_judge
from rag_eval_otel.prices import Prices, load_prices
from rag_eval_otel.types import Form

DESCRIPTION = """\
Asks a judge about 84 built-in cases with known verdicts, in six languages, with the real prompts:
numbers, negations, half-supported and over-long answers, refusals, contexts without content,
injected instructions. Prints how often it is right in each task, in the short form (set default)
and as the sources define the metrics (set dual), where it fails, and the price of 1,000 turns.

Exit status: 0 right in at least --bound of every task, 1 not, 2 misuse.
"""
_FORMS: dict[str, tuple[Form, ...]] = {
    "both": ("short", "full"),
    "short": ("short",),
    "full": ("full",),
}


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--judge", help="the judge (default: RAG_EVAL_JUDGE, else lexical)")
    parser.add_argument("--judge-base-url", metavar="URL", help="address of the judge's server")
    parser.add_argument("--form", choices=tuple(_FORMS), default="both", help="form of the replies")
    parser.add_argument(
        "--bound",
        type=_share,
        default=0.8,
        metavar="SHARE",
        help="share of right replies that every task must reach (default: 0.8)",
    )
    parser.add_argument("--concurrency", type=int, help="cases at once (default: 16)")
    parser.add_argument("--prices", metavar="FILE", help="prices of judge tokens, JSON")
    parser.add_argument("--json", **{**AS_JSON, "dest": "output"})


def _share(text: str) -> float:
    value = float(text)
    if not 0 <= value <= 1:
        msg = f"must be from 0 to 1, not {text}"
        raise argparse.ArgumentTypeError(msg)
    return value


def run(options: argparse.Namespace) -> int:
    names = ("judge", "judge_base_url", "concurrency", "prices")
    given = {name: getattr(options, name) for name in names}
    config = Config.from_env(**{name: value for name, value in given.items() if value is not None})
    prices = load_prices(config.prices)
    checks = asyncio.run(_checks(config, _FORMS[options.form], prices))
    sys.stdout.write(f"{_text(checks, options, currency=prices.currency)}\n")
    return 1 if any(check.below(options.bound) for check in checks) else 0


async def _checks(config: Config, forms: tuple[Form, ...], prices: Prices) -> list[Check]:
    judge = build_plain_judge(config)
    return [
        await check_judge(judge, form=form, prices=prices, concurrency=config.concurrency)
        for form in forms
    ]


def _text(checks: list[Check], options: argparse.Namespace, *, currency: str) -> str:
    if options.output == "text":
        return written(checks, bound=options.bound, currency=currency)
    found = {
        "bound": options.bound,
        "currency": currency,
        "checks": [
            {
                **one.to_dict(),
                "below": one.below(options.bound),
                "means": one.meaning(options.bound),
            }
            for one in checks
        ],
    }
    return json.dumps(found, indent=2, ensure_ascii=False)
