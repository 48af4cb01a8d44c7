"""The rules of the house that no linter knows, read from the source itself.

A list here names the only places where something may be. To allow one more place, add it and say
in the commit why.
"""

import ast
import re
import statistics
from collections.abc import Callable, Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import TypeAlias

import pytest

pytestmark = pytest.mark.slow  # all source is parsed

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "rag_eval_otel"

MAX_MODULE_LINES = 900
MAX_FUNCTION_LINES = 70
MAX_MEDIAN_FUNCTION_LINES = 8

ONLY_IN = {
    "opentelemetry._logs": {"export/attributes.py", "live/pipeline.py", "runtime/sdk.py"},
    "opentelemetry.sdk._logs": {"export/attributes.py", "runtime/sdk.py"},
    "langchain": {"capture/langchain.py", "judge/langchain.py", "embed.py", "tools/demo.py"},
    "langchain_core": {
        "capture/langchain.py",
        "capture/vectorstores.py",
        "judge/langchain.py",
        "embed.py",
        "tools/demo.py",
    },
    "langchain_classic": set[str](),
    "langgraph": {"tools/demo.py"},
}
"""A library, and the only modules that may import it; for annotations all may."""

PRIVATE_SDK_NAME = ("_active_span_processor", {"runtime/sdk.py"})
ENVIRONMENT = {"os.environ", "os.environb", "os.getenv", "os.getenvb", "os.putenv", "os.unsetenv"}
ENVIRONMENT_IN = {"config.py", "environment.py", "tools/doctor.py", "tools/stack.py"}

BROAD_EXCEPT_IN = {
    ("evaluation.py", "_run"),
    ("runtime/threads.py", "_fulfil"),
    ("runtime/guard.py", "__exit__"),
    ("runtime/guard.py", "write_error"),
}
"""(module, function): exactly these catch errors of any kind, and count or hand on each."""

ASSERTING = ("assert_", "check", "eventually", "raises", "warns", "fail", "validate")
"""How the names of helpers begin that fail a test."""

Function: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef

MODULES = sorted(PACKAGE.rglob("*.py"))
TEST_MODULES = sorted((ROOT / "tests").rglob("*.py"))


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))


@cache
def nodes_of(tree: ast.AST) -> tuple[ast.AST, ...]:
    return tuple(ast.walk(tree))


def place(path: Path) -> str:
    return path.relative_to(PACKAGE).as_posix()


def dotted_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imported_names(tree: ast.AST, package: str = "") -> Iterator[str]:
    """Yield every name that is imported anywhere in ``tree``, as far as it is spelled out."""
    for node in nodes_of(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            parent = package.split(".")[: -node.level + 1 or None] if node.level else []
            base = ".".join([*parent, *filter(None, [node.module])])
            yield from (f"{base}.{alias.name}" for alias in node.names)


def dotted(node: ast.AST) -> str:
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value)}.{node.attr}"
    return ""


def touches(tree: ast.AST, names: set[str]) -> bool:
    used = (dotted(node) for node in nodes_of(tree) if isinstance(node, ast.Attribute))
    return not names.isdisjoint([*used, *imported_names(tree)])


def functions(tree: ast.AST) -> Iterator[Function]:
    for node in nodes_of(tree):
        if isinstance(node, Function):
            yield node


def has_docstring(function: Function) -> bool:
    return ast.get_docstring(function, clean=False) is not None


def is_constant(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def length(function: Function) -> int:
    lines = (function.end_lineno or function.lineno) - function.lineno + 1
    if has_docstring(function):
        docstring = function.body[0]
        lines -= (docstring.end_lineno or docstring.lineno) - docstring.lineno + 1
    return lines


def is_broad(kind: ast.expr | None) -> bool:
    kinds = kind.elts if isinstance(kind, ast.Tuple) else [kind]
    return any(one is None or ast.unparse(one) in {"Exception", "BaseException"} for one in kinds)


def catches_all(node: ast.AST) -> bool:
    if isinstance(node, ast.ExceptHandler):
        return is_broad(node.type)
    is_suppress = isinstance(node, ast.Call) and dotted(node.func).endswith("suppress")
    return is_suppress and any(map(is_broad, node.args))


def broad_excepts(node: ast.AST, function: str = "<module>") -> Iterator[str]:
    if isinstance(node, Function):
        function = node.name
    if catches_all(node):
        yield function
    for child in ast.iter_child_nodes(node):
        yield from broad_excepts(child, function)


@cache
def without_type_checking(tree: ast.Module) -> ast.Module:
    body = [
        node
        for node in tree.body
        if not (isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING"))
    ]
    return ast.Module(body=body, type_ignores=[])


def imported_modules(name: str, path: Path, known: set[str]) -> set[str]:
    package = name if path.stem == "__init__" else name.rpartition(".")[0]
    found = set(imported_names(without_type_checking(tree_of(path)), package))
    found |= {one.rpartition(".")[0] for one in found if one not in known}
    return (found & known) - {name}


@pytest.mark.parametrize("library", ONLY_IN)
def test_a_library_is_imported_only_where_it_is_at_home(library: str) -> None:
    """What is framework-specific or unstable is known to few modules."""
    found = {
        place(path)
        for path in MODULES
        for name in imported_names(without_type_checking(tree_of(path)))
        if f"{name}.".startswith(f"{library}.")
    }
    assert found <= ONLY_IN[library]


def test_the_private_name_of_the_sdk_is_used_in_one_place() -> None:
    """When the SDK renames its private attribute, one module changes."""
    name, modules = PRIVATE_SDK_NAME
    assert {place(path) for path in MODULES if name in path.read_text("utf-8")} <= modules


def test_the_environment_is_read_in_one_place() -> None:
    """All other modules get their settings as arguments."""
    assert {
        place(path) for path in MODULES if touches(tree_of(path), ENVIRONMENT)
    } <= ENVIRONMENT_IN


def test_errors_of_any_kind_are_caught_only_where_they_are_counted() -> None:
    """Elsewhere the errors that are meant are caught by name."""
    found = {(place(path), name) for path in MODULES for name in broad_excepts(tree_of(path))}
    assert found == BROAD_EXCEPT_IN


def test_modules_import_each_other_in_no_circle() -> None:
    """The modules can be read in an order in which each builds on the ones before."""
    names = {dotted_name(path): path for path in MODULES}
    graph = {name: imported_modules(name, path, set(names)) for name, path in names.items()}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(" -> ".join(error.args[1]))


def test_every_package_has_a_layer() -> None:
    """pyproject.toml names the layer of each module and package at the top, for import-linter."""
    layers = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    names = [dotted_name(path) for path in PACKAGE.glob("[!_]*") if path.suffix in {"", ".py"}]
    assert not [name for name in names if not re.search(rf"\b{name}\b", layers)]


def test_no_module_is_long() -> None:
    """A module is as long as its subject, and has at most 900 lines."""
    sizes = {place(path): path.read_bytes().count(b"\n") for path in MODULES}
    assert not {name: lines for name, lines in sizes.items() if lines > MAX_MODULE_LINES}


def test_functions_are_small() -> None:
    """The longest has at most 70 lines, and half of those with a body a few."""
    found = [(place(path), each) for path in MODULES for each in functions(tree_of(path))]
    lengths = {(name, f.name): length(f) for name, f in found}
    assert not {name: lines for name, lines in lengths.items() if lines > MAX_FUNCTION_LINES}
    bodies = [length(f) for _, f in found if not all(map(is_constant, f.body))]
    assert statistics.median(bodies) <= MAX_MEDIAN_FUNCTION_LINES


def matching_tests(condition: Callable[[Function], bool]) -> list[str]:
    return [
        f"{path.relative_to(ROOT)}::{function.name}"
        for path in TEST_MODULES
        for function in functions(tree_of(path))
        if function.name.startswith("test_") and condition(function)
    ]


def test_every_test_says_what_it_shows() -> None:
    """Each test has a docstring: one sentence that names the behaviour."""
    assert not matching_tests(lambda test: not has_docstring(test))


def asserts(test: Function) -> bool:
    nodes = list(ast.walk(test))
    calls = [dotted(node.func) for node in nodes if isinstance(node, ast.Call)]
    return any(isinstance(node, ast.Assert) for node in nodes) or any(
        call.rpartition(".")[2].startswith(ASSERTING) for call in calls
    )


def test_every_test_asserts() -> None:
    """A test asserts something, or names the helper that does."""
    assert not matching_tests(lambda test: not asserts(test))


def test_no_test_sleeps() -> None:
    """Tests wait for events, not for time to pass."""
    sleeping = [path for path in TEST_MODULES if touches(tree_of(path), {"time.sleep"})]
    assert not sleeping
