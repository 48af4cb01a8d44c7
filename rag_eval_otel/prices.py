"""What tokens of models cost: by the option ``prices``, or by the library ``genai-prices``."""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from typing import Any, Final

from rag_eval_otel.environment import variable
from rag_eval_otel.errors import ConfigError
from rag_eval_otel.log import log
from rag_eval_otel.types import Usage

_THOUSAND, _MILLION = 1_000, 1_000_000
_NAMES = 100  # names whose prices are kept; a gateway may give each reply another name
_CURRENCY = re.compile(r"[A-Z]{3}")
_RELEASE = re.compile(r"[-@](?:\d{4}-?\d{2}-?\d{2}|\d{4}|latest|preview)(?:-v\d(?::\d)?)?")
"""The date or release at the end of a model's name. It is ignored when a price is looked up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Price:
    """The prices of one million tokens of a model: prompt, cached part of the prompt, and reply.

    The price of an embedder has only ``input``: ``output`` is None, so no reply can be paid for.
    """

    input: float
    output: float | None = None
    cached_input: float | None = None

    def covers(self, usage: Usage) -> bool:
        """Return False if ``usage`` has tokens of replies, and their price is not known."""
        return self.output is not None or not usage.completion_tokens

    def of(self, usage: Usage) -> float:
        """Return what the tokens in ``usage`` cost at these prices, which must cover ``usage``."""
        cached = min(usage.cached_tokens, usage.prompt_tokens)
        kept = self.input if self.cached_input is None else self.cached_input
        read = usage.prompt_tokens - cached + usage.embedding_tokens
        asked = read * self.input + cached * kept
        return (asked + usage.completion_tokens * (self.output or 0.0)) / _MILLION


@dataclass(frozen=True, slots=True, kw_only=True)
class Prices:
    """A table of prices: ``models`` maps names of models to prices in ``currency``.

    In USD, a model that is not in the table has its list price, if the library ``genai-prices``
    (extra ``prices``) is installed and knows the model. It knows no embedders.
    """

    models: Mapping[str, Price] = field(default_factory=dict)
    currency: str = "USD"
    _found: dict[str, Price | None] = field(
        init=False, default_factory=dict, compare=False, repr=False
    )
    """The prices of the names that were looked up."""

    def price_of(self, model: str) -> Price | None:
        """Return the price of ``model``, or None if the table has no price for it.

        The name may have providers before it (``openai/``) and a release after it
        (``-2024-07-18``). The price of the longest part of the name counts: the price of
        ``meta-llama/Llama-3.1-8B-Instruct`` comes before that of ``Llama-3.1-8B-Instruct``.
        """
        if model not in self._found:
            if len(self._found) >= _NAMES:
                self._found.clear()
            self._found[model] = self._price_of(model)
        return self._found[model]

    def _price_of(self, model: str) -> Price | None:
        parts = str(model).split("/")
        for i in range(len(parts)):
            name = "/".join(parts[i:])
            names = (each for each in self.models if name == each or _is_release(name, of=each))
            nearest = max(names, key=len, default=None)
            if nearest is not None:
                return self.models[nearest]
        return _list_price(parts[-1]) if self.currency == "USD" else None

    def cost_of(self, usage: Usage, *, judge: tuple[str, ...], embedder: str) -> float | None:
        """Return what ``usage`` costs, or None if it has no tokens, or if a price is not known.

        ``judge`` are names of the judge's model: the first name with a price counts. The price of
        the ``embedder`` counts for embedded texts. The first tokens without a price are logged.
        """
        if not usage.tokens:
            return None
        embedded = Usage(embedding_tokens=usage.embedding_tokens)
        judged = replace(usage, embedding_requests=0, embedding_tokens=0)
        parts = ((judge, judged), ((embedder,), embedded))
        costs = [self._cost(names, part) for names, part in parts if part.tokens]
        known = [each for each in costs if each is not None]
        return sum(known) if len(known) == len(costs) else None

    def _cost(self, names: tuple[str, ...], usage: Usage) -> float | None:
        costs = (self.cost(name, usage) for name in names)
        cost = next((each for each in costs if each is not None), None)
        if cost is None:
            _warn_of_unknown(names[-1])
        return cost

    def cost(self, model: str | None, usage: Usage) -> float | None:
        """Return what the tokens in ``usage`` cost with ``model``, or None if it has no price."""
        price = self.price_of(model) if model else None
        return None if price is None or not price.covers(usage) else price.of(usage)


@lru_cache(maxsize=_NAMES)
def _list_price(model: str) -> Price | None:
    """Return the list price of ``model``, for prompts of ordinary length; None if not known."""
    try:
        library = import_module("genai_prices")
    except ImportError:
        return None

    def price(**tokens: int) -> float:
        dollars = library.calc_price(library.Usage(**tokens), model).total_price
        return float(dollars) * _MILLION / _THOUSAND

    try:
        return Price(
            input=price(input_tokens=_THOUSAND),
            output=price(output_tokens=_THOUSAND),
            cached_input=price(input_tokens=_THOUSAND, cache_read_tokens=_THOUSAND),
        )
    except (LookupError, ValueError):
        return None


def _is_release(name: str, *, of: str) -> bool:
    return name.startswith(of) and _RELEASE.fullmatch(name[len(of) :]) is not None


@lru_cache(maxsize=64)
def _warn_of_unknown(model: str) -> None:
    """Log once for each model that its tokens have no price."""
    log.warning(
        "no price is known for %s: its tokens are counted, but cost no money in metrics and"
        " reports; name its price in the option prices, or install the extra prices (docs/cost.md)",
        model,
    )


_KEYS: Final = tuple(each.name for each in fields(Price))


def load_prices(file: str | os.PathLike[str] | Mapping[str, Any] | None = None) -> Prices:
    """Return the prices in ``file``; None: no prices but list prices.

    The file is JSON, ``{"currency": "EUR", "models": {NAME: {"input": 0.2, "output": 0.8}}}``.
    Prices are for one million tokens of the prompt (``input``) and of the reply (``output``). A
    third number, ``cached_input``, may give the price of prompt tokens that the provider had in its
    cache. An embedder has no ``output``. The currency is three capitals, ``USD`` if not given.
    ``file`` may also be a mapping of this form. Raises `ConfigError` for a file that cannot be
    read, and for another form.
    """
    if file is None:
        return Prices()
    try:
        table = file if isinstance(file, Mapping) else json.loads(Path(file).read_text("utf-8"))
        models = {name: _price(name, cells) for name, cells in _models(table).items()}
        return Prices(models=models, currency=_currency(table.get("currency", "USD")))
    except (OSError, ValueError, TypeError) as error:
        shown = "" if isinstance(file, Mapping) else f"{file} "
        form = 'must be JSON, {"models": {NAME: {"input": X, "output": Y}}}'
        msg = f"prices ({variable('prices')}): the price table {shown}{form}: {error}"
        raise ConfigError(msg) from error


def _models(given: object) -> Mapping[Any, object]:
    models = given.get("models") if isinstance(given, Mapping) else None
    if not isinstance(models, Mapping):
        msg = "there is no table models"
        raise TypeError(msg)
    return models


def _currency(given: object) -> str:
    if isinstance(given, str) and _CURRENCY.fullmatch(given):
        return given
    msg = f"currency must be three capitals, such as USD, not {given!r}"
    raise ValueError(msg)


def _price(name: object, cells: object) -> Price:
    if not isinstance(name, str):
        msg = f"the name of a model must be a text, not {name!r}"
        raise TypeError(msg)
    if not isinstance(cells, Mapping) or "input" not in cells or not set(cells) <= set(_KEYS):
        msg = f"{name} must have input, and may have {' and '.join(_KEYS[1:])}, not {cells!r}"
        raise TypeError(msg)
    price = Price(**cells)
    given: tuple[object, ...] = (price.input, price.output or 0, price.cached_input or 0)
    for cell in given:
        is_number = isinstance(cell, int | float) and 0 <= cell < math.inf
        if isinstance(cell, bool) or not is_number:
            msg = f"a price of {name} must be a number from 0, not {cell!r}"
            raise ValueError(msg)
    return price
