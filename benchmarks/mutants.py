"""Change the package in one place at a time, and see whether the module's own tests notice.

    python benchmarks/mutants.py [--count 300] [--seed 1] [--since REV]

The mutants of Cosmic Ray are drawn at random from `capture`, `live`, `judge` and `export`, or from
the functions that changed since a revision of git. A mutant is killed if the test file of its
module fails, or does not end within 20 seconds. The test file of ``rag_eval_otel/live/store.py`` is
``tests/live/test_store.py``. The mutants that survive are printed, and the share of those killed.
The exit status is 1 if the share is below 80 %. All runs use copies of the tree.
"""

from __future__ import annotations

import argparse
import ast
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue

import cosmic_ray.plugins
from cosmic_ray.ast import ast_nodes, get_ast
from cosmic_ray.mutating import mutate_code

ROOT = Path(__file__).parents[1]
PACKAGE = "rag_eval_otel"
AREAS = ("capture", "live", "judge", "export")
GOAL = 0.8
SECONDS = 20.0
FEW = 10  # of fewer mutants, a share says nothing
OPERATORS = [
    (name, operator())
    for name in cosmic_ray.plugins.operator_names()
    if not (operator := cosmic_ray.plugins.get_operator(name)).arguments()
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    """One change of a module: the ``occurrence``-th place of a Cosmic Ray operator."""

    module: Path
    tests: Path | None
    operator: str
    occurrence: int
    line: int

    @property
    def area(self) -> str:
        return self.module.parts[1]

    def __str__(self) -> str:
        where = f"{self.module}:{self.line}"
        return f"{where} {self.operator.removeprefix('core/')} ({self.tests or 'no test file'})"


def tests_of(module: Path) -> Path | None:
    """Return the test file of ``module``, or of the package that it belongs to."""
    inner = module.relative_to(PACKAGE)
    folder = Path("tests") / inner.parent
    for path in (folder / f"test_{inner.stem}.py", folder.parent / f"test_{folder.name}.py"):
        if (ROOT / path).exists():
            return path
    return None


def mutants_of(module: Path, lines: set[int] | None = None) -> Iterator[Mutant]:
    """Yield all mutants of ``module``, or those in ``lines``, without changes of annotations."""
    source = (ROOT / module).read_text(encoding="utf-8")
    ignored = _without_effect(ast.parse(source))
    nodes, tests = list(ast_nodes(get_ast(source))), tests_of(module)
    for name, operator in OPERATORS:
        places = [start for node in nodes for start, _ in operator.mutation_positions(node)]
        for occurrence, (line, column) in enumerate(places):
            is_ignored = any(begin <= (line, column) < end for begin, end in ignored)
            if not is_ignored and (lines is None or line in lines):
                yield Mutant(
                    module=module, tests=tests, operator=name, occurrence=occurrence, line=line
                )


def _without_effect(tree: ast.Module) -> list[tuple[tuple[int, int], tuple[int, int]]]:
    """Return the places of annotations and of blocks for type checkers, which never run."""
    found: list[ast.AST | None] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.arg | ast.AnnAssign):
            found.append(node.annotation)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            found.append(node.returns)
        elif isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            found.append(node)
    return [
        ((node.lineno, node.col_offset), (node.end_lineno, node.end_col_offset))  # type: ignore[attr-defined]
        for node in found
        if node is not None
    ]


def changed_since(revision: str) -> Mapping[Path, set[int]]:
    """Return the lines of the functions of the package that differ from ``revision``, by module."""
    command = ["git", "diff", "--unified=0", "--relative", revision, "--", PACKAGE]
    shown = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    found: dict[Path, set[int]] = {}
    module = Path()
    for line in shown.splitlines():
        if line.startswith("+++ b/"):
            module = Path(line.removeprefix("+++ b/"))
        elif (hunk := re.match(r"@@ \S+ \+(\d+)(?:,(\d+))? @@", line)) and module.suffix == ".py":
            first = int(hunk[1])
            found.setdefault(module, set()).update(range(first, first + int(hunk[2] or 1)))
    return {module: _functions_around(module, lines) for module, lines in found.items()}


def _functions_around(module: Path, lines: set[int]) -> set[int]:
    around = set()
    for node in ast.walk(ast.parse((ROOT / module).read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            of_node = range(node.lineno, (node.end_lineno or node.lineno) + 1)
            if lines.intersection(of_node):
                around.update(of_node)
    return around


def is_killed(mutant: Mutant, tree: Path) -> bool:
    """Run the tests of a mutant in the copy ``tree``."""
    if mutant.tests is None:
        return False
    path = tree / mutant.module
    source = path.read_text(encoding="utf-8")
    changed = mutate_code(source, dict(OPERATORS)[mutant.operator], mutant.occurrence)
    assert changed is not None, mutant
    try:
        path.write_text(changed, encoding="utf-8")
        return not passes(mutant.tests, tree)
    finally:
        path.write_text(source, encoding="utf-8")


def passes(tests: Path, tree: Path) -> bool:
    """Return True if ``tests`` pass in ``tree`` within the time."""
    command = (sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", str(tests))
    paths = os.pathsep.join([str(tree), str(tree / "tests")])
    env = {**os.environ, "PYTHONPATH": paths, "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        done = subprocess.run(command, cwd=tree, env=env, capture_output=True, timeout=SECONDS)  # noqa: PLW1510  # the status is the result
    except subprocess.TimeoutExpired:
        return False
    return done.returncode == 0


def copies(folder: Path, count: int) -> Iterator[Path]:
    """Copy what is tracked, and what is new, into ``count`` folders."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for number in range(count):
        tree = folder / str(number) / "tree"
        for name in filter(None, names.split("\0")):
            if (ROOT / name).is_file():
                (tree / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, tree / name)
        yield tree


def run(mutants: Sequence[Mutant], workers: int) -> tuple[list[Mutant], list[Path]]:
    """Return the mutants that survive, and the test files that fail without any mutant."""
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(workers) as pool:
        trees: SimpleQueue[Path] = SimpleQueue()
        for tree in copies(Path(folder), workers):
            trees.put(tree)

        def in_a_tree(mutant: Mutant | None, tests: Path | None) -> bool:
            tree = trees.get()
            try:
                if mutant is not None:
                    return is_killed(mutant, tree)
                return tests is None or passes(tests, tree)
            finally:
                trees.put(tree)

        files = sorted({mutant.tests for mutant in mutants if mutant.tests is not None})
        healthy = list(pool.map(lambda tests: in_a_tree(None, tests), files))
        broken = [tests for tests, is_healthy in zip(files, healthy, strict=True) if not is_healthy]
        tried = [mutant for mutant in mutants if mutant.tests not in broken]
        killed = pool.map(lambda mutant: in_a_tree(mutant, None), tried)
        return [one for one, is_dead in zip(tried, killed, strict=True) if not is_dead], broken


def main() -> int:
    """Draw mutants, run them, and print what survives."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--count", type=int, default=300, help="mutants at most (default: 300)")
    parser.add_argument("--seed", type=int, default=1, help="of the draw (default: 1)")
    parser.add_argument("--since", help="only functions that changed since this revision of git")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args()
    if options.since:
        places = changed_since(options.since)
        mutants = [one for path, lines in places.items() for one in mutants_of(path, lines)]
    else:
        modules = [path for area in AREAS for path in (ROOT / PACKAGE / area).rglob("*.py")]
        mutants = [one for path in modules for one in mutants_of(path.relative_to(ROOT))]
    drawn = random.Random(options.seed).sample(mutants, min(options.count, len(mutants)))
    survivors, broken = run(sorted(drawn, key=str), options.workers)
    for mutant in survivors:
        print(f"survives: {mutant}")
    for tests in broken:
        print(f"fails, or takes more than {SECONDS:.0f} s, without a mutant: {tests}")
    tried = [mutant for mutant in drawn if mutant.tests not in broken]
    alive, by_area = Counter(one.area for one in survivors), Counter(one.area for one in tried)
    for area, count in sorted(by_area.items()):
        print(f"{area}: {count - alive[area]} of {count} killed")
    share = 1 - len(survivors) / len(tried) if tried else 1.0
    print(f"{len(tried) - len(survivors)} of {len(tried)} mutants killed ({share:.0%})")
    return int(share < GOAL and len(tried) >= FEW)


if __name__ == "__main__":
    sys.exit(main())
