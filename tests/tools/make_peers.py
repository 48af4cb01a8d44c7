"""Writes peers.json: what scipy and scikit-learn say of small samples.

Run it where both are installed: python tests/tools/make_peers.py
"""

import json
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import binomtest, spearmanr
from sklearn.metrics import (
    accuracy_score,
    cohen_kappa_score,
    confusion_matrix,
    roc_auc_score,
    roc_curve,
)

OUT = Path(__file__).with_name("peers.json")
LEVELS = {"binary": [0, 1], "three": [0, 0.5, 1], "five": [1, 2, 3, 4, 5]}


def ratings(draw: np.random.Generator, kind: str, n: int) -> dict[str, Any]:
    """Two ratings on one scale."""
    levels = np.array(LEVELS[kind])
    codes = draw.integers(len(levels), size=n)
    other = np.clip(codes + draw.integers(-1, 2, size=n), 0, len(levels) - 1)
    return {
        "a": levels[codes].tolist(),
        "b": levels[other].tolist(),
        "spearman": float(spearmanr(codes, other).statistic),
    }


def labelled(draw: np.random.Generator, digits: int, n: int) -> dict[str, Any]:
    """Scores, with ties where they have few digits, and labels that go with them."""
    truths = np.arange(n) < draw.integers(1, n)
    scores = np.clip(draw.normal(0.4 + 0.2 * truths, 0.25), 0, 1).round(digits)
    decisions = scores >= 0.5  # the threshold of the cases
    false_rate, true_rate, _ = roc_curve(truths, scores, drop_intermediate=False)
    counts = confusion_matrix(truths, decisions, labels=[False, True])
    return {
        "scores": scores.tolist(),
        "labels": truths.astype(int).tolist(),
        "spearman": None if np.ptp(scores) == 0 else float(spearmanr(scores, truths).statistic),
        "auroc": float(roc_auc_score(truths, scores)),
        "accuracy": float(accuracy_score(truths, decisions)),
        "kappa": float(cohen_kappa_score(truths, decisions)),
        "confusion": counts.tolist(),
        "youden": float(np.max(true_rate - false_rate)),
    }


def wilson(k: int, n: int) -> dict[str, Any]:
    """Wilson's interval."""
    found = binomtest(k, n).proportion_ci(method="wilson")
    return {"k": k, "n": n, "low": found.low, "high": found.high}


def main() -> None:
    """Write the file."""
    draw = np.random.default_rng(20)
    sizes = (4, 7, 20, 100)
    found = {
        "made_with": {name: version(name) for name in ("numpy", "scipy", "scikit-learn")},
        "ratings": [ratings(draw, kind, n) for kind in LEVELS for n in sizes],
        "labelled": [labelled(draw, digits, n) for digits in (1, 6) for n in sizes],
        "wilson": [wilson(k, n) for k, n in ((0, 5), (5, 5), (3, 9), (81, 100))],
    }
    OUT.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
