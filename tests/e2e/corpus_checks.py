"""Check the corpus of live applications with one source against bounds."""

import warnings
from collections import Counter

from corpus.kit import all_apps
from corpus.run import quietly, verdict
from corpus.sources import SOURCES


def check_corpus(via: str, *frameworks: str, exact: float) -> None:
    """Assert that no application is wrong, and that of those seen the share ``exact`` is exact."""
    with quietly():
        warnings.simplefilter("ignore")  # pytest turns warnings of the frameworks into errors
        apps = list(all_apps(*frameworks))  # some instrumentations miss later imports
        with SOURCES[frameworks[0]][via]() as source:
            found = [verdict(app, source, via) for app in apps]
    counts = Counter(one.kind for one in found)
    knowable = sum(n for kind, n in counts.items() if kind not in {"unknowable", "skipped"})
    missed = [f"{one.kind}: {one.app.name} ({one.reason})" for one in found if one.kind != "exact"]
    assert not counts.keys() & {"failed", "wrong", "false positive"}, missed
    assert knowable >= 0.4 * len(found), "too little was seen: is the instrumentation on?"
    assert counts["exact"] >= exact * knowable, missed
