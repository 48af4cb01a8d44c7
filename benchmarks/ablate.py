"""Find rules of capture that nothing needs: replace one function at a time, and replay all cases.

    python benchmarks/ablate.py [--modules NAME...] [--part 1/2] [--live FOLDER]

Each function of `rag_eval_otel.capture` is replaced by a neutral element (False, None, an empty
collection, or its own argument). The cases are the shared recordings, the recordings of
`tests/capture`, the applications of the corpus under the callback, the traces of agent
frameworks, recordings of the corpus under instrumentations (``--live``, written by
`corpus.keep_spans`), and traces with lost spans. A case is replayed only if it calls the function,
and a function is left alone as soon as enough cases need it.

A line has the module, the function, its lines, the number of cases that call it, those whose sample
is lost without it, those that get a wrong sample without it, and names of both. A function lives if
two cases need it, or if one case would be wrong without it.
"""

from __future__ import annotations

import argparse
import gc
import importlib
import inspect
import logging
import pkgutil
import random
import sys
import threading
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import _lru_cache_wrapper, cached_property
from itertools import cycle
from pathlib import Path
from types import CodeType, FrameType, FunctionType, ModuleType
from typing import Any, TypeAlias

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests"))

import framework_traces  # noqa: E402
import rag_eval_otel.capture as package  # noqa: E402
from corpus.kit import all_apps  # noqa: E402
from corpus.retold import runs_of  # noqa: E402
from rag_eval_otel.types import Sample  # noqa: E402
from replay import Recording, load, replay  # noqa: E402

Texts: TypeAlias = "tuple[str, tuple[str, ...], str]"
SHARED = ROOT.parent / "shared" / "recordings"
KEPT = ROOT / "tests" / "capture" / "recordings"
LOST_SPANS_PER_TRACE = 2
NEEDED_BY = 2
PROMPT = " +prompt"
LOST = " -"
_SEED = 7


@dataclass(frozen=True, kw_only=True)
class Case:
    """Spans or runs with the samples that are read from them, and those that are true."""

    name: str
    read: Callable[[], list[Texts]]
    truths: Sequence[tuple[str | None, tuple[str, ...] | None, str | None]] | None
    samples: Counter[Texts] = field(default_factory=Counter)

    def differs(self) -> str:
        """Return ``"wrong"``, ``"lost"`` or an empty text for the samples that are read now."""
        try:
            samples = Counter(self.read())
        except Exception:  # noqa: BLE001 - a neutral element may break its caller
            return "crash"
        for sample in samples - self.samples:
            if not any(_equal(sample, truth) for truth in self.truths or ()):
                return "wrong"
        return "lost" if self.samples - samples else ""


def _equal(sample: Texts, truth: Sequence[Any]) -> bool:
    return all(b is None or a == b for a, b in zip(sample, truth, strict=True))


def _samples(recording: Recording, lost: frozenset[int], **options: Any) -> list[Texts]:
    calls = (call for call in recording.calls if call.span.span_id not in lost)
    results = [outcome.result for outcome in replay(calls, timed=not lost, **options)]
    return [
        (result.question, tuple(p.text for p in result.contexts), result.answer)
        for result in results
        if isinstance(result, Sample)
    ]


def recorded_cases(live: Path | None) -> Iterator[Case]:
    """Yield the cases of recorded spans, whole and with lost spans."""
    folders = [SHARED, KEPT, *([live] if live is not None else [])]
    recordings = [load(path) for folder in folders for path in sorted(folder.rglob("*.json"))]
    recordings += map(framework_traces.load, framework_traces.PATHS)
    rng = random.Random(_SEED)
    for recording in recordings:
        known = (*(recording.truths or ()), *recording.also)
        truths = known and [(t.question, t.contexts, t.answer) for t in known]
        spans = sorted(span.span_id for span in recording.spans)

        def case(
            kind: str,
            lost: frozenset[int] = frozenset(),
            recording: Recording = recording,
            truths: Any = truths,
            **options: Any,
        ) -> Case:
            return Case(
                name=f"{recording.path.stem}{kind}",
                read=lambda: _samples(recording, lost, **options),
                truths=truths,
            )

        yield case("")
        if live is not None and live in recording.path.parents:
            continue
        yield case(PROMPT, contexts_from_prompt=True)
        if len(spans) > 1:
            for number in range(LOST_SPANS_PER_TRACE):
                sizes = rng.randint(1, max(1, len(spans) // 3))
                yield case(f"{LOST}{number}", frozenset(rng.sample(spans, sizes)))


def callback_cases() -> Iterator[Case]:
    """Yield the applications of the corpus under the callback of LangChain."""
    for app in all_apps("langchain", "langgraph"):
        if not app.missing():
            retold = runs_of(app)
            truths = [
                (statement.question, statement.contexts, statement.answer)
                for truth in (*app.truths, *app.optional)
                for statement in truth.statements()
            ]
            yield Case(
                name=f"callback {app.name}",
                read=lambda retold=retold: retold.tell(retold.notes),  # type: ignore[misc]
                truths=truths,
            )


# --- replacing functions --------------------------------------------------------------------------


def functions(names: Sequence[str]) -> Iterator[tuple[str, str, FunctionType]]:
    """Yield module, name and function of all functions and methods of the modules ``names``."""
    for name in names:
        module = importlib.import_module(name)
        yield from _functions_of(module, name.removeprefix(f"{package.__name__}."))


def _functions_of(module: ModuleType, name: str) -> Iterator[tuple[str, str, FunctionType]]:
    for key, value in vars(module).items():
        if getattr(value, "__module__", None) != module.__name__:
            continue
        if inspect.isclass(value):
            for method, raw in vars(value).items():
                function = _plain_function(raw)
                is_own = function is not None and function.__code__.co_filename == module.__file__
                if function is not None and is_own and not method.startswith("__"):
                    yield name, f"{key}.{method}", function
        elif (function := _plain_function(value)) is not None:
            yield name, key, function


def _plain_function(value: Any) -> FunctionType | None:
    if isinstance(value, property):
        value = value.fget
    elif isinstance(value, cached_property):
        value = value.func
    elif isinstance(value, staticmethod | classmethod | _lru_cache_wrapper):
        value = value.__wrapped__
    return value if isinstance(value, FunctionType) else None


def neutral(function: FunctionType) -> FunctionType | None:
    """Return a function that does nothing, with a result of the type of ``function``."""
    signature = inspect.signature(function)
    result = str(signature.return_annotation)
    is_plain = result in {"bool", "int", "float", "inspect._empty"}
    for position, (name, parameter) in enumerate(signature.parameters.items()):
        if name != "self" and str(parameter.annotation) == result and not is_plain:
            return _same_argument(position, name)
    ends_with_none = result.endswith("| None")
    found = next(
        (
            value
            for start, value in _NEUTRAL.items()
            if (ends_with_none and start == "None")
            or (not ends_with_none and result.startswith(start))
        ),
        None,
    )
    return None if found is None else _function(found)


_NEUTRAL: dict[str, Callable[..., Any]] = {
    "None": lambda *_a, **_k: None,
    "bool": lambda *_a, **_k: False,
    "str": lambda *_a, **_k: "",
    "int": lambda *_a, **_k: 0,
    "SkipReason": lambda *_a, **_k: "ambiguous",
    "Iterator": lambda *_a, **_k: iter(()),
    "Iterable": lambda *_a, **_k: (),
    "Sequence": lambda *_a, **_k: (),
    "tuple": lambda *_a, **_k: (),
    "list": lambda *_a, **_k: [],
    "dict": lambda *_a, **_k: {},
    "Mapping": lambda *_a, **_k: {},
    "frozenset": lambda *_a, **_k: frozenset(),
    "set": lambda *_a, **_k: set(),
}
"""A neutral result by the beginning of the return type."""


def _function(made: Callable[..., Any]) -> FunctionType:
    assert isinstance(made, FunctionType)
    return made


def _same_argument(position: int, name: str) -> FunctionType:
    def same(*args: Any, _position: int = position, _name: str = name, **options: Any) -> Any:
        return options[_name] if _name in options else args[_position]

    return same


_PARTS = ("__code__", "__defaults__", "__kwdefaults__")


def replace_in_place(function: FunctionType, parts: Sequence[Any]) -> None:
    """Give ``function`` another code, wherever it is referenced, and empty all caches."""
    for name, part in zip(_PARTS, parts, strict=True):
        setattr(function, name, part)
    for cache in _CACHES:
        cache.cache_clear()


def parts_of(function: FunctionType) -> list[Any]:
    """Return what `replace_in_place` sets."""
    return [getattr(function, name) for name in _PARTS]


_CACHES: list[Any] = []


def users_of(codes: dict[CodeType, int], cases: Sequence[Case]) -> dict[int, list[Case]]:
    """Read all cases once. Return for each function, by number, the cases that call it."""
    users: dict[int, list[Case]] = defaultdict(list)
    whole: dict[str, Counter[Texts]] = {}
    for case in cases:
        called: set[int] = set()

        def note(frame: FrameType, event: str, _: Any, called: set[int] = called) -> None:
            if event == "call" and frame.f_code in codes:
                called.add(codes[frame.f_code])

        for cache in _CACHES:
            cache.cache_clear()
        threading.setprofile(note)
        sys.setprofile(note)
        try:
            case.samples.update(case.read())
        finally:
            sys.setprofile(None)
            threading.setprofile(None)
        if case.samples == whole.get(case.name.removesuffix(PROMPT)) and PROMPT in case.name:
            continue  # the option makes no difference here
        whole[case.name] = case.samples
        for number in called:
            users[number].append(case)
    return users


def main() -> None:
    """Print a line for each function."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--modules", nargs="*", default=[])
    parser.add_argument("--part", default="1/1", help="which of how many parts of the functions")
    parser.add_argument("--live", type=Path, help="recordings of the corpus under instrumentations")
    options = parser.parse_args()
    part, parts = map(int, options.part.split("/"))
    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")
    prefix = f"{package.__name__}."
    names = [module.name for module in pkgutil.walk_packages(package.__path__, prefix)]
    if options.modules:
        names = [name for name in names if name.removeprefix(prefix) in options.modules]
    targets = [one for one in functions(names) if neutral(one[2]) is not None]
    _CACHES.extend(one for one in gc.get_objects() if isinstance(one, _lru_cache_wrapper))
    _CACHES[:] = [c for c in _CACHES if str(c.__module__).startswith("rag_eval_otel")]
    cases = [*recorded_cases(options.live), *callback_cases()]
    codes = {function.__code__: number for number, (_, _, function) in enumerate(targets)}
    users = users_of(codes, cases)
    for several in users.values():
        random.Random(_SEED).shuffle(several)
    sys.stderr.write(f"{len(cases)} cases, {sum(bool(c.samples) for c in cases)} with samples\n")
    for (module, name, function), number in zip(targets, cycle(range(parts))):
        if number == part - 1:
            place = codes[function.__code__]
            lines = len(inspect.getsource(function).splitlines())
            row = (module, name, lines, len(users[place]), *_needs(function, users[place]))
            print(*row, sep="\t", flush=True)


def _needs(function: FunctionType, cases: Sequence[Case]) -> tuple[int, int, str]:
    before, instead = parts_of(function), neutral(function)
    assert instead is not None
    lost, wrong = [], []
    replace_in_place(function, parts_of(instead))
    try:
        for case in cases:
            change = case.differs()
            if change == "wrong":
                wrong.append(case.name)
            elif change:
                lost.append(case.name)
            whole = {name.removesuffix(PROMPT) for name in lost if LOST not in name}
            if len(wrong) >= NEEDED_BY or (wrong and whole) or len(whole) > NEEDED_BY:
                break
    finally:
        replace_in_place(function, before)
    return len(lost), len(wrong), "; ".join((*lost[:6], "|", *wrong[:6]))


if __name__ == "__main__":
    main()
