"""Read what tokens of models cost, from the built-in price table or from a file of the user."""

from __future__ import annotations

import json
import logging
import math
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from functools import lru_cache
from importlib.resources import files
from pathlib import Path
from typing import Any, Final

from rag_eval_otel.environment import variable
from rag_eval_otel.errors import ConfigError
from rag_eval_otel.types import Usage

_log = logging.getLogger("rag_eval_otel")

_MILLION = 1_000_000
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
    """A table of prices: ``models`` maps names of models to prices in ``currency``."""

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
            known = (one for one in self.models if name == one or _is_release(name, of=one))
            found = max(known, key=len, default=None)
            if found is not None:
                return self.models[found]
        return None

    def cost_of(self, usage: Usage, *, judge: tuple[str, ...], embedder: str) -> float | None:
        """Return what ``usage`` costs, or None if it has no tokens, or if a price is not known.

        ``judge`` are names of the judge's model: the first name with a price counts. The price of
        the ``embedder`` counts for embedded texts. The first tokens without a price are logged.
        """
        if not usage.tokens:
            return None
        embedded = Usage(embedding_tokens=usage.embedding_tokens)
        judged = replace(usage, embedding_requests=0, embedding_tokens=0)
        found = [
            self._cost(names, part)
            for names, part in ((judge, judged), ((embedder,), embedded))
            if part.tokens
        ]
        known = [each for each in found if each is not None]
        return sum(known) if found and len(known) == len(found) else None

    def _cost(self, names: tuple[str, ...], usage: Usage) -> float | None:
        found = (self.price_of(name) for name in names)
        price = next((one for one in found if one is not None and one.covers(usage)), None)
        if price is None:
            _warn_of_unknown(names[-1])
        return None if price is None else price.of(usage)

    def cost(self, model: str | None, usage: Usage) -> float | None:
        """Return what the tokens in ``usage`` cost with ``model``, or None if it has no price."""
        price = self.price_of(model) if model else None
        return None if price is None or not price.covers(usage) else price.of(usage)


def _is_release(name: str, *, of: str) -> bool:
    return name.startswith(of) and _RELEASE.fullmatch(name[len(of) :]) is not None


@lru_cache(maxsize=64)
def _warn_of_unknown(model: str) -> None:
    """Log once for each model that its tokens have no price."""
    _log.warning(
        "no price is known for %s: its tokens are counted, but cost no money in metrics and"
        " reports; name its price in the option prices (docs/cost.md)",
        model,
    )


_KEYS: Final = tuple(each.name for each in fields(Price))


def load_prices(file: str | os.PathLike[str] | Mapping[str, Any] | None = None) -> Prices:
    """Return the prices in ``file``, or the built-in prices if ``file`` is None.

    The file is JSON, ``{"currency": "EUR", "models": {NAME: {"input": 0.2, "output": 0.8}}}``.
    Prices are for one million tokens of the prompt (``input``) and of the reply (``output``). A
    third number, ``cached_input``, may give the price of prompt tokens that the provider had in its
    cache. An embedder has no ``output``. The currency is three capitals, ``USD`` if not given.
    ``file`` may also be a mapping of this form. Raises `ConfigError` for a file that cannot be
    read, and for another form.
    """
    try:
        given = file if isinstance(file, Mapping) else json.loads(_text(file))
        models = {name: _price(name, cells) for name, cells in _models(given).items()}
        return Prices(models=models, currency=_currency(given.get("currency", "USD")))
    except (OSError, ValueError, TypeError) as error:
        shown = "" if isinstance(file, Mapping) else f"{file} "
        told = f'must be JSON, {{"models": {{NAME: {{"input": X, "output": Y}}}}}}: {error}'
        msg = f"prices ({variable('prices')}): the price table {shown}{told}"
        raise ConfigError(msg) from error


def _text(file: str | os.PathLike[str] | None) -> str:
    if file is None:
        return (files("rag_eval_otel") / "prices.json").read_text(encoding="utf-8")
    return Path(file).read_text(encoding="utf-8")


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
