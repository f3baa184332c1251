"""The structure of a checkout in figures: imports, cycles, sizes of files and functions, types, names, docstrings.

    python benchmarks/structure.py [ROOT] [--json | --markdown]

Reads `src/voxstill` and `benchmarks` below ROOT (default: this checkout) as syntax trees and imports nothing of them:
any two versions can be compared by one copy of this file. The definition of each figure is the docstring of its
function. `benchmarks/utterance_files.py` counts what needs a run: the files that an utterance passes through.
"""

from __future__ import annotations

import argparse
import ast
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

PACKAGE = "voxstill"
ENTRY_POINTS = {PACKAGE, f"{PACKAGE}.__main__"}
MAX_FILE_LINES = 400
MAX_FUNCTION_LINES = 60
FILLER_WORDS = ("each", "found", "told", "said", "some", "given", "made", "heard")
"""Participles and pronouns that name no thing: a variable of this name says nothing of what it holds."""

Function = ast.FunctionDef | ast.AsyncFunctionDef
Graph = Mapping[str, frozenset[str]]


@dataclass(frozen=True)
class Module:
    """One file: dotted name, path relative to the root, number of lines, syntax tree."""

    name: str
    path: str
    num_lines: int
    tree: ast.Module


@dataclass(frozen=True)
class Import:
    """One module imports another; `lazy` where the import is inside a function and so runs when that is called."""

    importer: str
    imported: str
    lazy: bool


@dataclass(frozen=True)
class Figure:
    """A value and, where it is a count of few things, the things."""

    value: float
    details: tuple[str, ...] = ()


class Checkout:
    """The syntax trees of the package and of the benchmarks below a root."""

    def __init__(self, root: Path) -> None:
        self.package = tuple(read_modules(root, root / "src" / PACKAGE, PACKAGE))
        self.benchmarks = tuple(read_modules(root, root / "benchmarks", "benchmarks"))

    @cached_property
    def imports(self) -> tuple[Import, ...]:
        """All imports of files of the package, those for type checkers alone left out."""
        return tuple(imports_between((*self.package, *self.benchmarks)))

    @cached_property
    def functions(self) -> tuple[tuple[Module, str, Function], ...]:
        """Every function of the package, nested ones too: its module, its qualified name, its tree."""
        return tuple((module, *named) for module in self.package for named in functions_of(module.tree))


def read_modules(root: Path, folder: Path, prefix: str) -> Iterator[Module]:
    """Parse every Python file below a folder; `prefix` is the dotted name of the folder."""
    for path in sorted(folder.rglob("*.py")):
        parts = path.relative_to(folder).with_suffix("").parts
        name = ".".join((prefix, *parts)).removesuffix(".__init__")
        text = path.read_text(encoding="utf-8")
        tree = ast.parse(text, filename=str(path))
        yield Module(name, path.relative_to(root).as_posix(), len(text.splitlines()), tree)


def imports_between(modules: Iterable[Module]) -> Iterator[Import]:
    """Imports of one of the modules by another; `from package import module` imports the module."""
    by_name = {module.name: module for module in modules}
    for module in by_name.values():
        is_package = module.path.endswith("/__init__.py")
        for node, lazy in import_statements(module.tree, lazy=False):
            for name in imported_names(node, module.name, is_package):
                target = name if name in by_name else name.rpartition(".")[0]
                if target in by_name and target != module.name:
                    yield Import(module.name, target, lazy)


def import_statements(node: ast.AST, *, lazy: bool) -> Iterator[tuple[ast.Import | ast.ImportFrom, bool]]:
    """Import statements below a node and whether they are in a function; not those under `if TYPE_CHECKING`."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import | ast.ImportFrom):
            yield child, lazy
        elif isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
            for other in child.orelse:
                yield from import_statements(other, lazy=lazy)
        else:
            yield from import_statements(child, lazy=lazy or isinstance(child, Function))


def imported_names(node: ast.Import | ast.ImportFrom, importer: str, is_package: bool) -> list[str]:
    """Absolute dotted names of what a statement imports; a module's attribute is named like a submodule."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    base = node.module or ""
    if node.level:
        parts = importer.split(".")
        above = parts[: len(parts) - node.level + is_package]
        base = ".".join([*above, base] if base else above)
    return [f"{base}.{alias.name}" for alias in node.names]


def functions_of(node: ast.AST, prefix: str = "") -> Iterator[tuple[str, Function]]:
    """Functions below a node with their qualified names, methods and nested functions too."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, Function):
            yield prefix + child.name, child
            yield from functions_of(child, f"{prefix}{child.name}.")
        elif isinstance(child, ast.ClassDef):
            yield from functions_of(child, f"{prefix}{child.name}.")
        else:
            yield from functions_of(child, prefix)


def parameters_of(function: Function) -> list[ast.arg]:
    """All parameters of a function, `self`, `*args` and `**kwargs` too."""
    arguments = function.args
    rest = [arg for arg in (arguments.vararg, arguments.kwarg) if arg is not None]
    return [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, *rest]


def bindings_of(tree: ast.AST) -> Iterator[str]:
    """Names bound by assignments, loops, comprehensions, `with`, parameters, functions and classes."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name


def is_filler(name: str) -> bool:
    """Whether a name is a filler word, also in the plural, in capitals or with underscores around it."""
    plain = name.lower().strip("_")
    return plain in FILLER_WORDS or plain.removesuffix("s") in FILLER_WORDS


def graph_of(imports: Iterable[Import]) -> Graph:
    """Imported modules by importer."""
    graph: dict[str, set[str]] = {}
    for edge in imports:
        graph.setdefault(edge.importer, set()).add(edge.imported)
    return {name: frozenset(targets) for name, targets in graph.items()}


def reachable(graph: Graph, start: str) -> frozenset[str]:
    """Nodes on the ends of paths of one edge or more."""
    visited: set[str] = set()
    waiting = list(graph.get(start, ()))
    while waiting:
        node = waiting.pop()
        if node not in visited:
            visited.add(node)
            waiting.extend(graph.get(node, ()))
    return frozenset(visited)


def cycles(graph: Graph) -> list[tuple[str, ...]]:
    """Strongly connected components of more than one node, each sorted: files that import one another in a circle."""
    reach = {name: reachable(graph, name) for name in graph}
    circular = [name for name in graph if name in reach[name]]
    components = {
        tuple(sorted(other for other in circular if other in reach[n] and n in reach[other])) for n in circular
    }
    return sorted(components)


def command_imports(checkout: Checkout) -> Figure:
    """Ordered pairs of files of `commands/` of which one imports the other, lazily or not."""
    pairs = sorted({(edge.importer, edge.imported) for edge in checkout.imports if is_between_commands(edge)})
    return Figure(len(pairs), tuple(f"{short(importer)} -> {short(imported)}" for importer, imported in pairs))


def command_cycles(checkout: Checkout) -> Figure:
    """Groups of files of `commands/` that import one another in a circle, lazy imports counted."""
    return listed_cycles(filter(is_between_commands, checkout.imports))


def is_between_commands(edge: Import) -> bool:
    """Whether both ends are files of `commands/`."""
    prefix = f"{PACKAGE}.commands."
    return edge.importer.startswith(prefix) and edge.imported.startswith(prefix)


def packages(checkout: Checkout) -> Figure:
    """Folders and files directly in `src/voxstill` but `__init__.py` and `__main__.py`; `benchmarks` counts as one."""
    units = {unit(module.name) for module in (*checkout.package, *checkout.benchmarks)} - ENTRY_POINTS
    return Figure(len(units), tuple(sorted(units)))


def package_pairs(checkout: Checkout) -> Figure:
    """Ordered pairs of these of which one imports from the other, lazily or not."""
    pairs = {(unit(edge.importer), unit(edge.imported)) for edge in checkout.imports}
    return Figure(sum(first != second and not ENTRY_POINTS & {first, second} for first, second in pairs))


def import_cycles(checkout: Checkout) -> Figure:
    """Groups of files of the package that import one another in a circle when they are imported."""
    return listed_cycles(edge for edge in checkout.imports if not edge.lazy)


def lazy_import_cycles(checkout: Checkout) -> Figure:
    """Groups of files of the package that import one another in a circle, imports inside functions counted too."""
    return listed_cycles(checkout.imports)


def listed_cycles(imports: Iterable[Import]) -> Figure:
    """The cycles of these imports, listed."""
    groups = cycles(graph_of(imports))
    return Figure(len(groups), tuple(" <-> ".join(map(short, group)) for group in groups))


def long_files(checkout: Checkout) -> Figure:
    """Files of the package above 400 lines."""
    return above({module.path: module.num_lines for module in checkout.package}, MAX_FILE_LINES)


def long_functions(checkout: Checkout) -> Figure:
    """Functions of the package above 60 lines, from `def` to the last line, docstring included."""
    sizes = {f"{module.path}:{name}": num_lines(function) for module, name, function in checkout.functions}
    return above(sizes, MAX_FUNCTION_LINES)


def any_parameters(checkout: Checkout) -> Figure:
    """Parameters typed `Any` itself, of all parameters (`self` too) in package and benchmarks, in percent."""
    return share(map(is_any, parameter_annotations(checkout)))


def nested_any_parameters(checkout: Checkout) -> Figure:
    """Parameters with an `Any` inside their type, such as `dict[str, Any]`, of the same parameters, in percent."""
    return share(mentions_any(annotation) and not is_any(annotation) for annotation in parameter_annotations(checkout))


def parameter_annotations(checkout: Checkout) -> Iterator[ast.expr | None]:
    """The type of every parameter of package and benchmarks, None where it has none (`self`)."""
    for module in (*checkout.package, *checkout.benchmarks):
        for _, function in functions_of(module.tree):
            yield from (parameter.annotation for parameter in parameters_of(function))


def dict_returns(checkout: Checkout) -> Figure:
    """Functions of the package with `dict[str, Any]` in the type that they return."""
    names = [
        f"{module.path}:{name}"
        for module, name, function in checkout.functions
        if function.returns is not None and "dict[str, Any]" in ast.unparse(function.returns)
    ]
    return Figure(len(names), tuple(names))


def filler_bindings(checkout: Checkout) -> Figure:
    """Names bound in the package (targets, parameters, functions, classes) that are a filler word, in percent."""
    return share(is_filler(name) for module in checkout.package for name in bindings_of(module.tree))


def documented_names(checkout: Checkout) -> Figure:
    """Modules of the package and their public classes, functions and methods that have a docstring, in percent."""
    return share(docstring for module in checkout.package for docstring in docstrings(module.tree))


def typed_functions(checkout: Checkout) -> Figure:
    """Functions of the package with a type for every parameter but `self` and `cls` and for the result, in percent."""
    return share(is_typed(function) for _, _, function in checkout.functions)


FIGURES: dict[str, Callable[[Checkout], Figure]] = {
    "imports between files of commands/": command_imports,
    "circles among them": command_cycles,
    "top-level packages and modules": packages,
    "pairs of them with an import": package_pairs,
    "import cycles": import_cycles,
    "import cycles, lazy imports too": lazy_import_cycles,
    "files above 400 lines": long_files,
    "functions above 60 lines": long_functions,
    "parameters typed Any, %": any_parameters,
    "parameters with a nested Any, %": nested_any_parameters,
    "functions that return dict[str, Any]": dict_returns,
    "bindings named by a filler word, %": filler_bindings,
    "public names with a docstring, %": documented_names,
    "functions typed in full, %": typed_functions,
}


def short(name: str) -> str:
    """A module's name without the package."""
    return name.removeprefix(f"{PACKAGE}.")


def unit(name: str) -> str:
    """The top-level package or module that a module is in: `voxstill.text` of `voxstill.text.lm`."""
    return "benchmarks" if name.startswith("benchmarks") else ".".join(name.split(".")[:2])


def share(flags: Iterable[object]) -> Figure:
    """How many of them are true, in percent."""
    known = list(map(bool, flags))
    return Figure(100 * sum(known) / max(len(known), 1), (f"{sum(known)} of {len(known)}",))


def num_lines(function: Function) -> int:
    """Lines of a function without its decorators."""
    return (function.end_lineno or function.lineno) - function.lineno + 1


def above(sizes: Mapping[str, int], limit: int) -> Figure:
    """What is above a limit, with its size, the largest first."""
    large = sorted((-size, name) for name, size in sizes.items() if size > limit)
    return Figure(len(large), tuple(f"{name} ({-size})" for size, name in large))


def is_typed(function: Function) -> bool:
    """Whether all parameters but `self` and `cls` and the result have a type."""
    parameters = [arg for arg in parameters_of(function) if arg.arg not in ("self", "cls")]
    return function.returns is not None and all(arg.annotation is not None for arg in parameters)


def is_any(annotation: ast.expr | None) -> bool:
    """Whether a type is `Any`, or a union with it, which is the same to a type checker."""
    if isinstance(annotation, ast.BinOp):
        return is_any(annotation.left) or is_any(annotation.right)
    return isinstance(annotation, ast.Name) and annotation.id == "Any"


def mentions_any(annotation: ast.expr | None) -> bool:
    """Whether a type has `Any` somewhere in it."""
    nodes = ast.walk(annotation) if annotation is not None else ()
    return any(isinstance(node, ast.Name) and node.id == "Any" for node in nodes)


def docstrings(node: ast.Module | ast.ClassDef) -> Iterator[str | None]:
    """The docstrings of a module or class and of the public classes, functions and methods in it."""
    yield ast.get_docstring(node)
    for child in node.body:
        if isinstance(child, ast.ClassDef) and not child.name.startswith("_"):
            yield from docstrings(child)
        elif isinstance(child, Function) and not child.name.startswith("_"):
            yield ast.get_docstring(child)


def markdown(figures: Mapping[str, Figure]) -> str:
    """A table with the definitions."""
    rows = [f"| {name} | {figure.value:.4g} | {definition(name)} |" for name, figure in figures.items()]
    return "\n".join(["| figure | value | what is counted |", "|---|---|---|", *rows])


def plain(figures: Mapping[str, Figure]) -> str:
    """A table, and below it what was counted where that is a few things."""
    lines = [f"{name:<40}{figure.value:>8.4g}" for name, figure in figures.items()]
    for name, figure in figures.items():
        if figure.details:
            lines += ["", f"{name}: {definition(name)}", *(f"  {detail}" for detail in figure.details)]
    return "\n".join(lines)


def definition(name: str) -> str:
    """The first sentence of the docstring of a figure's function."""
    return (FIGURES[name].__doc__ or "").partition("\n")[0]


def main() -> None:
    """Measure a checkout and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("root", nargs="?", type=Path, default=Path(__file__).resolve().parents[1])
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="values with what was counted")
    form.add_argument("--markdown", action="store_true", help="a table with definitions")
    args = parser.parse_args()
    checkout = Checkout(args.root)
    figures = {name: measure(checkout) for name, measure in FIGURES.items()}
    if args.json:
        print(
            json.dumps({name: {"value": fig.value, "details": fig.details} for name, fig in figures.items()}, indent=1)
        )
    else:
        print(markdown(figures) if args.markdown else plain(figures))


if __name__ == "__main__":
    main()
