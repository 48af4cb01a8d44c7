"""A calibration as plain text."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from rag_eval_otel.calibration.figure import Figure

if TYPE_CHECKING:
    from rag_eval_otel.calibration.calibrate import Calibration
    from rag_eval_otel.calibration.confusion import Confusion
    from rag_eval_otel.calibration.threshold import ThresholdFit

_WIDTH = 20  # of the names
_AGREEMENT = (
    *("kappa", "linear_kappa", "quadratic_kappa", "spearman", "auroc"),
    *("accuracy", "balanced_accuracy", "sensitivity", "specificity"),
)


def written(calibration: Calibration) -> str:
    """Return ``calibration`` as lines, figures to three places, intervals in brackets."""
    return "\n".join(f"  {line}" if at else line for at, line in enumerate(_lines(calibration)))


def _lines(c: Calibration) -> Iterator[str]:
    yield f"{c.metric}  ({c.confidence:.0%} intervals in brackets)"
    yield _line("rows", _rows(c))
    yield _line("passes", _passes(c))
    yield from _figures(c, _AGREEMENT)
    if c.confusion:
        yield from _confusion(c.confusion)
    yield _line("threshold that fits", _fit(c.fit))
    yield from _figures(c, ("human_rate", "metric_rate", "corrected_rate"))
    if c.full_form:
        yield _line("full form", f"{c.full_form.rows} rows that have both")
        for name in ("same", "kappa", "spearman", "difference"):
            yield _line(f"  {name}", str(getattr(c.full_form, name)))


def _figures(calibration: Calibration, names: Iterable[str]) -> Iterator[str]:
    """Yield a line for each figure; the reason why there is none is said once for all it is of."""
    told: set[str] = set()
    for name in names:
        figure: Figure = getattr(calibration, name)
        yield _line(name.replace("_", " "), "-" if figure.reason in told else str(figure))
        told |= {figure.reason} - {""}


def _line(name: str, text: str) -> str:
    return f"{name:<{_WIDTH}}  {text}"


def _rows(c: Calibration) -> str:
    text = f"{c.labelled} labelled, {c.unlabelled} without a label"
    if not c.without_score:
        return text
    told = ", ".join(f"{n} {status}" for status, n in c.without_score.items())
    return f"{text}, {sum(c.without_score.values())} without a score ({told})"


def _passes(c: Calibration) -> str:
    score = "-" if c.threshold is None else f"from {c.threshold:g}"
    label = "-" if c.label_threshold is None else f"from {c.label_threshold:g}"
    return f"score {score}, label {label}"


def _confusion(confusion: Confusion) -> Iterator[str]:
    yield _line("", f"{'human pass':>12}{'human fail':>12}")
    yield _line("metric pass", f"{confusion.true_pass:>12}{confusion.false_pass:>12}")
    yield _line("metric fail", f"{confusion.false_fail:>12}{confusion.true_fail:>12}")


def _fit(fit: ThresholdFit) -> str:
    if fit.threshold.value is None:
        return str(fit.threshold)
    return (
        f"{fit.threshold}; Youden's J {fit.youden} on the rows it was chosen on,"
        f" {fit.cross_validated} cross-validated: expect that"
    )
