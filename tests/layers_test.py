"""Who may import whom: each module only from those above its line. DESIGN: one way for data."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path

SOURCE = Path(__file__).parent.parent / "src" / "vermilion"

LEVELS: dict[str, int] = {
    "errors": 0,
    "progress": 0,
    "version": 0,
    "memory": 0,
    "forks": 0,
    "cores": 0,
    "plain": 0,
    "rounds": 1,
    "busy": 1,
    "files": 1,
    "pages": 1,
    "store": 1,
    "process": 1,
    "amdgpu": 2,
    "clib": 2,
    "ir": 2,
    "hardware": 2,
    "hipify": 2,
    "proof": 3,
    "codegen": 3,
    "quantize": 4,
    "backends": 5,
    "partition": 6,
    "runtime": 7,
    "api": 8,
    "ahead": 9,
    "export": 9,
    "inspection": 9,
    "quantization": 9,
    "sides": 9,
    "compare": 10,
    "optimize": 10,
    "planning": 10,
    "buckets": 9,
    "hello_network": 9,
    "device_memory": 9,
    "hello": 10,
    "batch": 10,
    "bench": 10,
    "llm": 11,
    "ort": 11,
    "genai": 12,
    "view": 12,
    "serve": 12,
    "cli": 13,
    "__main__": 14,
}


@cache
def import_nodes(text: str) -> Sequence[ast.Import | ast.ImportFrom]:
    """Return the imports of a file, wherever they stand in it."""
    nodes = ast.walk(ast.parse(text))
    return [node for node in nodes if isinstance(node, ast.Import | ast.ImportFrom)]


def imported_modules(path: Path) -> Iterator[tuple[int, str]]:
    """Yield (line, first module below `vermilion`) for every import of this package."""
    for node in import_nodes(path.read_text()):
        if isinstance(node, ast.ImportFrom) and node.module:
            parts = node.module.split(".")
            if parts == ["vermilion"]:
                yield from ((node.lineno, alias.name) for alias in node.names)
            elif parts[0] == "vermilion":
                yield node.lineno, parts[1]
        elif isinstance(node, ast.Import):
            for alias in node.names:
                parts = alias.name.split(".")
                if parts[0] == "vermilion" and len(parts) > 1:
                    yield node.lineno, parts[1]


def test_imports_point_upwards_only() -> None:
    wrong = []
    for path in sorted(SOURCE.rglob("*.py")):
        if path.name.endswith("_test.py") or path == SOURCE / "__init__.py":
            continue
        own = path.relative_to(SOURCE).with_suffix("").parts[0]
        assert own in LEVELS, f"{own} has no level: add it to the table, and to CONTRIBUTING.md"
        for line, module in imported_modules(path):
            if module == own or module not in LEVELS:
                continue
            allowed = LEVELS[module] < LEVELS[own] or own == "cli"
            if not allowed:
                wrong.append(f"{path.relative_to(SOURCE)}:{line} imports {module}")
    assert not wrong, "\n".join(wrong)


def test_the_check_sees_a_wrong_import(tmp_path: Path) -> None:
    file = tmp_path / "x.py"
    file.write_text("from vermilion.cli import main\nimport vermilion.api\n")
    assert list(imported_modules(file)) == [(1, "cli"), (2, "api")]


# (file, file it imports inside a function): why the two need each other all the same.
CIRCLES: Mapping[tuple[str, str], str] = {}


def imported_files(path: Path, files: Mapping[str, Path]) -> set[Path]:
    """Return the files of the package that one imports, at its top or inside a function."""
    names = set()
    for node in import_nodes(path.read_text()):
        if isinstance(node, ast.ImportFrom) and node.module:
            inner = {f"{node.module}.{alias.name}" for alias in node.names}
            names |= {name if name in files else node.module for name in inner}
        elif isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
    return {files[name] for name in names if name in files} - {path}


def circle_in(imports: Mapping[Path, set[Path]]) -> list[Path]:
    """Return files that import each other in a circle, none where there is no circle."""
    left = {path: set(others) for path, others in imports.items()}
    while ready := {path for path, others in left.items() if not others & left.keys()}:
        left = {path: others for path, others in left.items() if path not in ready}
    if not left:
        return []
    way = [next(iter(left))]
    while way.count(way[-1]) == 1:
        way.append(sorted(left[way[-1]] & left.keys())[0])
    return way[way.index(way[-1]) :]


def imports_of(source: Path) -> dict[Path, set[Path]]:
    """Return what each file below `source`, a package's folder, imports of the package."""
    paths = [path for path in sorted(source.rglob("*.py")) if not path.name.endswith("_test.py")]
    files = {}
    for path in paths:
        parts = path.relative_to(source.parent).with_suffix("").parts
        files[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return {path: imported_files(path, files) for path in paths}


def test_no_files_import_each_other_in_a_circle() -> None:
    imports = imports_of(SOURCE)
    for (importer, imported), reason in CIRCLES.items():
        assert SOURCE / imported in imports[SOURCE / importer], "no longer imported: drop its row"
        assert len(reason) > 20
        imports[SOURCE / importer].discard(SOURCE / imported)
    circle = [str(path.relative_to(SOURCE)) for path in circle_in(imports)]
    assert not circle, "move what they share to the lower file: " + " → ".join(circle)


def test_the_check_sees_a_circle(tmp_path: Path) -> None:
    package = tmp_path / "vermilion"
    package.mkdir()
    for name, text in {
        "top": "from vermilion import one\n",
        "one": "def f():\n    from vermilion.two import g\n",
        "two": "from vermilion.low import h\nimport vermilion.one\n",
        "low": "",
    }.items():
        (package / f"{name}.py").write_text(text)
    circle = circle_in(imports_of(package))
    assert {path.stem for path in circle} == {"one", "two"}
    (package / "two.py").write_text("from vermilion.low import h\n")
    assert circle_in(imports_of(package)) == []


@cache
def bound_at_the_top(text: str) -> set[str]:
    """Return the names that a file binds outside of functions and classes, imports included."""
    names: set[str] = set()
    left: list[ast.AST] = list(ast.parse(text).body)
    while left:
        node = left.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
            continue
        if isinstance(node, ast.Import | ast.ImportFrom):
            names |= {alias.asname or alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        left += ast.iter_child_nodes(node)
    return names


def missing_imports(path: Path, source: Path) -> list[str]:
    """Return what a file imports of `source`, a package's folder, that is not there."""

    def file_of(module: str) -> Path | None:
        place = source.parent.joinpath(*module.split("."))
        files = [place.with_suffix(".py"), place / "__init__.py"]
        return next((file for file in files if file.is_file()), None)

    missing = []
    for node in import_nodes(path.read_text()):
        if isinstance(node, ast.Import):
            missing += [
                f"{path}:{node.lineno} {alias.name}"
                for alias in node.names
                if alias.name.split(".")[0] == source.name and file_of(alias.name) is None
            ]
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == source.name:
            module = str(node.module)
            file = file_of(module)
            names = bound_at_the_top(file.read_text()) if file is not None else set()
            missing += [
                f"{path}:{node.lineno} {module}.{alias.name}"
                for alias in node.names
                if alias.name not in names and file_of(f"{module}.{alias.name}") is None
            ]
    return missing


def test_every_import_is_of_something_in_this_checkout() -> None:
    # mypy and pytest find another checkout's module, which is installed, where this one has none.
    root = SOURCE.parent.parent
    paths = [root / "conftest.py"]
    for folder in ("src", "tests", "bench", "tools"):
        paths += sorted((root / folder).rglob("*.py"))
    missing = [line for path in paths for line in missing_imports(path, SOURCE)]
    assert not missing, "\n".join(missing)


def test_the_check_sees_what_is_not_there(tmp_path: Path) -> None:
    package = tmp_path / "vermilion"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "one.py").write_text("import os\n\nif os.name:\n    A: int = 1\n\n\ndef f(): ...\n")
    user = tmp_path / "user.py"
    user.write_text(
        "from vermilion.one import A, f, os\nfrom vermilion import one\nimport vermilion.one\n"
    )
    assert missing_imports(user, package) == []
    user.write_text(
        "import vermilion.two\nfrom vermilion import one, two\n"
        "from vermilion.two import g\nfrom vermilion.one import f, g\n"
    )
    found = [line.removeprefix(f"{user}:") for line in missing_imports(user, package)]
    assert found == ["1 vermilion.two", "2 vermilion.two", "3 vermilion.two.g", "4 vermilion.one.g"]


def test_files_stay_readable() -> None:
    long = {
        str(path.relative_to(SOURCE)): lines
        for path in SOURCE.rglob("*.py")
        if not path.name.endswith("_test.py")
        and (lines := len(path.read_text().splitlines())) > 400
    }
    assert not long, f"over 400 lines, split by noun: {long}"
