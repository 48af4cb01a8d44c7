"""`RagEvalInstrumentor`: let ``opentelemetry-instrument`` start scoring, without a code change."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from rag_eval_otel.config import Config
from rag_eval_otel.errors import MissingDependencyError
from rag_eval_otel.live.instrument import Handle, instrument

try:
    from opentelemetry.instrumentation.instrumentor import (  # type: ignore[attr-defined]
        BaseInstrumentor,
    )
except ImportError as error:  # pragma: no cover  # the extra is installed where tests run
    raise MissingDependencyError("opentelemetry-instrumentation", "auto") from error  # noqa: EM101


class RagEvalInstrumentor(BaseInstrumentor):  # type: ignore[misc]
    """Attach live scoring to the tracer provider and to every LangChain run of the process.

    ``instrument(...)`` takes the arguments of `rag_eval_otel.instrument`. ``uninstrument()``
    exports all spans that wait for scores, and detaches from the provider.
    """

    _handle: Handle | None = None

    def instrumentation_dependencies(self) -> Collection[str]:
        """Return the packages that must be installed for this instrumentor to be used."""
        return ("langchain-core >= 0.3",)

    def _instrument(self, **options: Any) -> None:
        config = options.pop("config", None) or Config.from_env(**_config_options(options))
        providers = {name: options[name] for name in _PROVIDERS if options.get(name)}
        self._handle = instrument(config, **providers)
        self._handle.install_langchain_hook()

    def _uninstrument(self, **_: Any) -> None:
        if self._handle is not None:
            self._handle.shutdown()


_PROVIDERS = ("tracer_provider", "meter_provider", "logger_provider")
_NOT_OURS = (*_PROVIDERS, "skip_dep_check", "raise_exception_on_conflict")


def _config_options(options: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if name not in _NOT_OURS}
