"""What tokens of models cost: by the option ``prices``, or by the library ``genai-prices``."""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from typing import Any

from rag_eval_otel.environment import variable
from rag_eval_otel.errors import ConfigError
from rag_eval_otel.log import log
from rag_eval_otel.types import Usage

_MILLION = 1_000_000
_RELEASE = re.compile(r"[-@](?:\d{4}-?\d{2}-?\d{2}|\d{4}|latest|preview)(?:-v\d(?::\d)?)?$")


@dataclass(frozen=True, slots=True, kw_only=True)
class Price:
    """The prices of one million tokens. The price of an embedder has no ``output``.

    ``cached_input`` is for tokens of a prompt that the provider had in its cache; the default is
    the price ``input``.
    """

    input: float
    output: float | None = None
    cached_input: float | None = None

    def of(self, usage: Usage) -> float:
        """Return what the tokens in ``usage`` cost; if ``output`` is None, replies are free."""
        cached = min(usage.cached_tokens, usage.prompt_tokens)
        kept = self.input if self.cached_input is None else self.cached_input
        read = usage.prompt_tokens - cached + usage.embedding_tokens
        written = usage.completion_tokens * (self.output or 0.0)
        return (read * self.input + cached * kept + written) / _MILLION


@dataclass(frozen=True, slots=True, kw_only=True)
class Prices:
    """The prices of models, in one currency; ``models`` maps names of models to their `Price`.

    If ``currency`` is USD, a model that is not in ``models`` has the list price that the library
    ``genai-prices`` (extra ``prices``) knows. That library has no prices of embedders.
    """

    models: Mapping[str, Price] = field(default_factory=dict)
    currency: str = "USD"

    def price_of(self, model: str) -> Price | None:
        """Return the price of ``model`` by the longest name that has one, or None.

        A price also counts if its name lacks the provider (``openai/``) or date (``-2024-07-18``).
        """
        parts = model.split("/")
        for i in range(len(parts)):
            name = "/".join(parts[i:])
            price = self.models.get(name) or self.models.get(_RELEASE.sub("", name))
            if price is not None:
                return price
        return _list_price(parts[-1]) if self.currency == "USD" else None

    def cost_of(self, usage: Usage, *, judge: tuple[str, ...], embedder: str) -> float | None:
        """Return the cost by the first priced name in ``judge``; None and a warning without one."""
        judged = replace(usage, embedding_tokens=0)
        embedded = Usage(embedding_tokens=usage.embedding_tokens)
        total = 0.0
        for names, part in ((judge, judged), ((embedder,), embedded)):
            costs = [self.cost(name, part) for name in names] if part.tokens else [0.0]
            cost = next((cost for cost in costs if cost is not None), None)
            if cost is None:
                _warn_of_unknown(names[-1])
                return None
            total += cost
        return total

    def cost(self, model: str | None, usage: Usage) -> float | None:
        """Return what the tokens in ``usage`` cost with ``model``; None if its price is unknown."""
        price = self.price_of(model) if model else None
        if price is None or (price.output is None and usage.completion_tokens):
            return None
        return price.of(usage)


@lru_cache(maxsize=100)  # a gateway may give each reply another name
def _list_price(model: str) -> Price | None:
    """Return the price of ``model`` in ``genai-prices``, for prompts of ordinary length."""
    try:
        library = import_module("genai_prices")
        usages = [{"input_tokens": 1000}, {"output_tokens": 1000}]
        usages.append({**usages[0], "cache_read_tokens": 1000})
        prices = [library.calc_price(library.Usage(**usage), model) for usage in usages]
    except (ImportError, LookupError, ValueError):
        return None
    numbers = (float(price.total_price) * _MILLION / 1000 for price in prices)
    return Price(**dict(zip(("input", "output", "cached_input"), numbers, strict=True)))


@lru_cache(maxsize=64)
def _warn_of_unknown(model: str) -> None:
    log.warning(
        "no price is known for %s: its tokens are counted, but cost no money in metrics and"
        " reports; name its price in the option prices, or install the extra prices (docs/cost.md)",
        model,
    )


def load_prices(file: str | os.PathLike[str] | Mapping[str, Any] | None = None) -> Prices:
    """Return the prices in ``file``, a JSON file or a mapping; None: no prices but list prices.

    The form is ``{"currency": "EUR", "models": {NAME: {"input": 0.2, "output": 0.8}}}``, in prices
    of a million tokens; the default currency is USD. Another form raises `ConfigError`.
    """
    _list_price("")  # imports all now: a fork of the host may interrupt an import on our threads
    if file is None:
        return Prices()
    try:
        table = file if isinstance(file, Mapping) else json.loads(Path(file).read_text("utf-8"))
        currency = table.get("currency", "USD")
        if not re.fullmatch("[A-Z]{3}", currency):
            msg = f"currency must be three capitals, such as USD, not {currency!r}"
            raise ValueError(msg)  # noqa: TRY301
        models = {name: _price(name, cells) for name, cells in table["models"].items()}
    except (AttributeError, KeyError, OSError, TypeError, ValueError) as error:
        shown = "" if isinstance(file, Mapping) else f"{file} "
        form = 'must be JSON, {"models": {NAME: {"input": X, "output": Y}}}'
        msg = f"prices ({variable('prices')}): the price table {shown}{form}: {error}"
        raise ConfigError(msg) from error
    return Prices(models=models, currency=currency)


def _price(name: object, cells: Any) -> Price:
    with suppress(AttributeError, TypeError):  # no mapping, or one with other keys
        price, numbers = Price(**cells), cells.values()
        are_numbers = all(type(n) in {int, float} and 0 <= n < math.inf for n in numbers)
        if isinstance(name, str) and are_numbers:
            return price
    form = "must have input, and may have output and cached_input, numbers from 0"
    raise ValueError(f"{name!r} {form}, not {cells!r}")
