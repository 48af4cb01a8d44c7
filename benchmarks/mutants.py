"""Change the package in one place at a time, and see whether the module's own tests notice.

    python benchmarks/mutants.py [--count 300] [--seed 1] [--since REV]

The mutants of Cosmic Ray are drawn at random from `capture`, `live`, `judge` and `export`, or from
the functions that changed since a revision of git. A mutant is killed if the test file of its
module fails, or does not end within 20 seconds. The test file of ``rag_eval_otel/live/store.py`` is
``tests/live/test_store.py``. The mutants that survive are printed, and the share of those killed.
The exit status is 1 if the share is below 80 %. All runs use copies of the tree.

What no test could tell, or every import does, is not drawn: changes of annotations, of the star
before keyword-only parameters, of the options of `@dataclass`, of blocks for type checkers, of `==`
to `is` or back, and what does not compile.
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
import warnings
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from queue import SimpleQueue
from typing import Literal, TypeAlias

import cosmic_ray.plugins
from cosmic_ray.ast import ast_nodes, get_ast
from cosmic_ray.mutating import mutate_code

ROOT = Path(__file__).parents[1]
PACKAGE = "rag_eval_otel"
AREAS = ("capture", "live", "judge", "export")
Outcome: TypeAlias = Literal["fails", "does not end", "survives"]
GOAL = 0.8
SECONDS = 20.0
FEW = 10  # of fewer mutants, a share says nothing
OPERATORS = [
    (name, operator())
    for name in cosmic_ray.plugins.operator_names()
    if not (operator := cosmic_ray.plugins.get_operator(name)).arguments()
    and not name.endswith(("_Eq_Is", "_NotEq_IsNot", "_Is_Eq", "_IsNot_NotEq"))
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
    """Yield all mutants of ``module``, or those in ``lines``, without those of declarations."""
    source = (ROOT / module).read_text(encoding="utf-8")
    ignored = _declarations(ast.parse(source))
    nodes, tests = list(ast_nodes(get_ast(source))), tests_of(module)
    rows = source.splitlines()
    for name, operator in OPERATORS:
        places = [start for node in nodes for start, _ in operator.mutation_positions(node)]
        for occurrence, (line, column) in enumerate(places):
            is_ignored = rows[line - 1].startswith("*,", column) or any(  # keyword-only parameters
                begin <= (line, column) < end for begin, end in ignored
            )
            if not is_ignored and (lines is None or line in lines):
                yield Mutant(
                    module=module, tests=tests, operator=name, occurrence=occurrence, line=line
                )


def _declarations(tree: ast.Module) -> list[tuple[tuple[int, int], tuple[int, int]]]:
    """Return the places of annotations, options of dataclasses and blocks for type checkers."""
    found: list[ast.AST | None] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.arg | ast.AnnAssign):
            found.append(node.annotation)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            found.append(node.returns)
        elif isinstance(node, ast.ClassDef):
            calls = [one for one in node.decorator_list if isinstance(one, ast.Call)]
            found += [option.value for call in calls for option in call.keywords]
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


def in_random_order(mutants: Sequence[Mutant], seed: int) -> Iterator[Mutant]:
    """Yield the mutants that compile."""
    for mutant in random.Random(seed).sample(mutants, len(mutants)):
        with warnings.catch_warnings(), suppress(SyntaxError):
            warnings.simplefilter("ignore")
            compile(changed_source(mutant, ROOT), str(mutant.module), "exec")
            yield mutant


def changed_source(mutant: Mutant, tree: Path) -> str:
    source = (tree / mutant.module).read_text(encoding="utf-8")
    changed = mutate_code(source, dict(OPERATORS)[mutant.operator], mutant.occurrence)
    assert changed is not None, mutant
    return changed


def outcome_of(mutant: Mutant, tree: Path) -> Outcome:
    """Run the tests of a mutant in the copy ``tree``."""
    if mutant.tests is None:
        return "survives"
    path = tree / mutant.module
    try:
        path.write_text(changed_source(mutant, ROOT), encoding="utf-8")
        return outcome_of_tests(mutant.tests, tree, PYTHONDONTWRITEBYTECODE="1")
    finally:
        shutil.copy2(ROOT / mutant.module, path)


def outcome_of_tests(tests: Path, tree: Path, **variables: str) -> Outcome:
    command = (sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", str(tests))
    paths = os.pathsep.join([str(tree), str(tree / "tests")])
    env = {**os.environ, "PYTHONPATH": paths, "PYTHONDONTWRITEBYTECODE": "", **variables}
    try:
        done = subprocess.run(command, cwd=tree, env=env, capture_output=True, timeout=SECONDS)  # noqa: PLW1510  # the status is the result
    except subprocess.TimeoutExpired:
        return "does not end"
    return "fails" if done.returncode else "survives"


def copy_of_tree(tree: Path) -> Path:
    """Copy what is tracked, and what is new, and link the data beside the tree, if there is any."""
    tree.mkdir(parents=True)
    data = ROOT.parent / "shared"
    if data.is_dir():
        (tree.parent / data.name).symlink_to(data)
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in filter(None, names.split("\0")):
        if (ROOT / name).is_file():
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, tree / name)
    return tree


def outcomes(mutants: Sequence[Mutant], workers: int) -> Iterator[tuple[Mutant, Outcome]]:
    """Yield what becomes of each mutant, if its tests pass without it."""
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(workers) as pool:
        tree = copy_of_tree(Path(folder, "0", "tree"))
        files = sorted({mutant.tests for mutant in mutants if mutant.tests is not None})
        passed = pool.map(lambda one: outcome_of_tests(one, tree), files)
        found = dict(zip(files, passed, strict=True))
        for tests in (tests for tests in files if found[tests] != "survives"):
            print(f"{found[tests]} without a mutant, in {SECONDS:.0f} s: {tests}")
        trees: SimpleQueue[Path] = SimpleQueue()  # with the bytecode of the run without mutants
        for number in range(workers):
            copy = shutil.copytree(tree.parent, Path(folder, str(number + 1)), symlinks=True)
            trees.put(copy / tree.name)

        def in_a_tree(mutant: Mutant) -> Outcome:
            tree = trees.get()
            try:
                return outcome_of(mutant, tree)
            finally:
                trees.put(tree)

        tried = [one for one in mutants if one.tests is None or found[one.tests] == "survives"]
        yield from zip(tried, pool.map(in_a_tree, tried), strict=True)


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
        modules = [path for area in AREAS for path in sorted((ROOT / PACKAGE / area).rglob("*.py"))]
        mutants = [one for path in modules for one in mutants_of(path.relative_to(ROOT))]
    drawn = list(islice(in_random_order(mutants, options.seed), options.count))
    counts: defaultdict[str, Counter[Outcome]] = defaultdict(Counter)
    for mutant, outcome in outcomes(sorted(drawn, key=str), options.workers):
        counts[mutant.area][outcome] += 1
        if outcome != "fails":
            print(f"{outcome}: {mutant}", flush=True)
    for area, of_area in counts.items():
        print(f"{area}: {of_area.total() - of_area['survives']} of {of_area.total()} killed")
    tried = sum(of_area.total() for of_area in counts.values())
    killed = tried - sum(of_area["survives"] for of_area in counts.values())
    print(f"{killed} of {tried} mutants killed ({killed / max(tried, 1):.0%})")
    return int(killed < GOAL * tried and tried >= FEW)


if __name__ == "__main__":
    sys.exit(main())
