"""What the wheel holds: built as `pip` builds it, where the builder is installed."""

from __future__ import annotations

import importlib
import os
import tomllib
import zipfile
from pathlib import Path

import pytest

import vermilion

pytestmark = pytest.mark.needs("hatchling")

ROOT = Path(__file__).parent.parent
MARK = "vermilion/py.typed"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    build = importlib.import_module("hatchling.build")
    folder, before = tmp_path_factory.mktemp("wheel"), Path.cwd()
    os.chdir(ROOT)
    try:
        name = build.build_wheel(str(folder))
    finally:
        os.chdir(before)
    return folder / name


@pytest.fixture(scope="module")
def names(wheel: Path) -> list[str]:
    with zipfile.ZipFile(wheel) as file:
        return file.namelist()


def test_type_checkers_are_told_that_there_are_types(names: list[str]) -> None:
    """PEP 561: without the file, hints of an installed package are not read."""
    assert MARK in names


def test_pytorch_is_told_of_the_backend(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as file:
        (told,) = [name for name in file.namelist() if name.endswith("entry_points.txt")]
        text = file.read(told).decode()
    wanted = "[torch_dynamo_backends]\nvermilion = vermilion.export.dynamo:torch_backend\n"
    assert wanted in text


def test_every_module_is_in_it_and_no_test(names: list[str]) -> None:
    source = ROOT / "src"
    wanted = {
        path.relative_to(source).as_posix()
        for path in (source / "vermilion").rglob("*.py")
        if not path.name.endswith("_test.py") and "recorded" not in path.parts
    }
    assert wanted <= set(names)
    assert not [name for name in names if name.endswith("_test.py")]


@pytest.mark.needs("c compiler")
def test_the_c_library_is_in_it_with_its_header_and_sources(names: list[str]) -> None:
    assert "vermilion/clib/lib/libvermilion.so" in names
    assert "vermilion/clib/include/vermilion.h" in names
    wanted = (ROOT / "src" / "vermilion" / "clib" / "source").iterdir()
    assert {f"vermilion/clib/source/{path.name}" for path in wanted} <= set(names)


def test_what_pages_are_made_of_is_in_it(names: list[str]) -> None:
    source = ROOT / "src"
    files = [*(source / "vermilion" / "view" / "assets").iterdir(),
             source / "vermilion" / "pages" / "style.css"]  # fmt: skip
    assert {path.relative_to(source).as_posix() for path in files} <= set(names)


def test_the_mark_lies_where_the_wheel_takes_its_files_from() -> None:
    build = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]
    assert "src/vermilion" in build["targets"]["wheel"]["packages"]
    assert (ROOT / "src" / MARK).is_file()
    assert (Path(vermilion.__file__).parent / "py.typed").is_file()
