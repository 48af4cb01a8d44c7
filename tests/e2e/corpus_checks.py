"""Check the corpus of live applications with one source against bounds."""

import warnings
from collections import Counter

from corpus.kit import all_apps
from corpus.run import quietly, verdict
from corpus.sources import SOURCES

GRADED = ("agentic", "corrective", "adaptive", "self_rag", "crag")
"""Parts of the names of LangGraph's graphs in which a model grades what was found."""


def check_corpus(via: str, *frameworks: str, exact: float = 0.9, wrong: float = 0.02) -> None:
    """Assert that of the applications seen, the shares ``exact`` and ``wrong`` are kept."""
    with quietly():
        warnings.simplefilter("ignore")  # pytest turns warnings of the frameworks into errors
        apps = list(all_apps(*frameworks))  # some instrumentations miss later imports
        with SOURCES[frameworks[0]][via]() as source:
            found = [verdict(app, source, via) for app in apps]
    counts = Counter(one.kind for one in found)
    knowable = sum(n for kind, n in counts.items() if kind not in {"unknowable", "skipped"})
    missed = [f"{one.kind}: {one.app.name} ({one.reason})" for one in found if one.kind != "exact"]
    bad = [one for one in found if one.kind in {"wrong", "false positive"}]
    assert not counts["failed"], missed
    assert len(bad) <= wrong * len(found), missed
    assert not [one for one in bad if any(part in one.app.name for part in GRADED)], missed
    assert knowable >= 0.4 * len(found), "too little was seen: is the instrumentation on?"
    assert counts["exact"] >= exact * knowable, missed
