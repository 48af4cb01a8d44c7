"""``rag-eval-otel check-judge``: how often a judge is right on cases whose verdicts are known."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rag_eval_otel.calibration.checkup import Check
    from rag_eval_otel.config import Config
    from rag_eval_otel.judge.prices import Prices
    from rag_eval_otel.types import Form


DESCRIPTION = """\
Puts 84 built-in cases of known verdicts, in six languages, to a judge through the real prompts:
numbers, negations, half-supported and over-long answers, refusals, contexts without content,
injected instructions. Says how often it is right in each task, in the short form (set default) and
as the sources define the metrics (set dual), what it cannot do, and what 1,000 turns cost.

Exit status: 0 right in at least --bound of every task, 1 not, 2 misuse.
"""
_FORMS: dict[str, tuple[Form, ...]] = {
    "both": ("short", "full"),
    "short": ("short",),
    "full": ("full",),
}


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--judge", help="who judges (default: RAG_EVAL_JUDGE, else lexical)")
    parser.add_argument("--judge-base-url", metavar="URL", help="where it answers")
    parser.add_argument(
        "--form", choices=tuple(_FORMS), default="both", help="which replies to ask for"
    )
    parser.add_argument(
        "--bound",
        type=_share,
        default=0.8,
        metavar="SHARE",
        help="the share of right replies to reach in every task (default: 0.8)",
    )
    parser.add_argument("--concurrency", type=int, help="cases at once (default: 16)")
    parser.add_argument("--prices", metavar="FILE", help="prices of judge tokens, JSON")
    parser.add_argument(
        "--json",
        dest="output",
        action="store_const",
        const="json",
        default="text",
        help="print the figures as JSON",
    )


def _share(text: str) -> float:
    value = float(text)
    if not 0 <= value <= 1:
        msg = f"must be from 0 to 1, not {text}"
        raise argparse.ArgumentTypeError(msg)
    return value


def run(options: argparse.Namespace) -> int:
    """Ask, print, and say whether the judge reaches the bound."""
    from rag_eval_otel.config import Config  # noqa: PLC0415  # --help is to be quick
    from rag_eval_otel.judge.prices import load_prices  # noqa: PLC0415

    names = ("judge", "judge_base_url", "concurrency", "prices")
    given = {name: getattr(options, name) for name in names}
    config = Config.from_env(**{name: value for name, value in given.items() if value is not None})
    prices = load_prices(config.prices)
    checks = asyncio.run(_checks(config, _FORMS[options.form], prices))
    sys.stdout.write(f"{_text(checks, options, currency=prices.currency)}\n")
    return 1 if any(check.below(options.bound) for check in checks) else 0


async def _checks(config: Config, forms: tuple[Form, ...], prices: Prices) -> list[Check]:
    from rag_eval_otel.calibration.checkup import check_judge  # noqa: PLC0415
    from rag_eval_otel.judge.models import build_plain_judge  # noqa: PLC0415

    judge = build_plain_judge(config)
    return [
        await check_judge(judge, form=form, prices=prices, concurrency=config.concurrency)
        for form in forms
    ]


def _text(checks: list[Check], options: argparse.Namespace, *, currency: str) -> str:
    from rag_eval_otel.calibration.checkup import written  # noqa: PLC0415

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
