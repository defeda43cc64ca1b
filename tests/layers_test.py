"""Who may import whom: each module only from those above its line. DESIGN: one way for data."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

SOURCE = Path(__file__).parent.parent / "src" / "vermilion"

LEVELS: dict[str, int] = {
    "errors": 0,
    "progress": 0,
    "version": 0,
    "memory": 0,
    "exits": 0,
    "forks": 0,
    "store": 1,
    "process": 1,
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
    "export": 9,
    "inspection": 9,
    "inference_session": 9,
    "quantization": 9,
    "compare": 9,
    "optimize": 10,
    "buckets": 9,
    "hello_network": 9,
    "hello": 10,
    "batch": 10,
    "bench": 10,
    "llm": 11,
    "genai": 12,
    "cli": 13,
    "__main__": 14,
}


def imported_modules(path: Path) -> Iterator[tuple[int, str]]:
    """Yield (line, first module below `vermilion`) for every import of this package."""
    for node in ast.walk(ast.parse(path.read_text())):
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


def test_files_stay_readable() -> None:
    long = {
        str(path.relative_to(SOURCE)): lines
        for path in SOURCE.rglob("*.py")
        if not path.name.endswith("_test.py")
        and (lines := len(path.read_text().splitlines())) > 400
    }
    assert not long, f"over 400 lines, split by noun: {long}"
