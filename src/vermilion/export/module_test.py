from __future__ import annotations

import sys
from pathlib import Path

import pytest

from vermilion.errors import ModelError, OptionError
from vermilion.export.module import load_module

pytestmark = pytest.mark.needs("torch")

SOURCE = """
import torch
from sibling import WIDTH

class Net(torch.nn.Module):
    def __init__(self, width=WIDTH):
        super().__init__()
        self.layer = torch.nn.Linear(width, 2)
        self.dropout = torch.nn.Dropout()

    @staticmethod
    def small():
        return Net(1)

    def forward(self, x):
        return self.dropout(self.layer(x))

ready = Net(5)

def build():
    return Net(4)

def wants_arguments(width):
    return Net(width)

def breaks():
    return build_it()

def raises_type_error():
    return Net(width=4, height=3)

def leaves():
    raise SystemExit(3)

def gives_a_number():
    return 42
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "sibling.py").write_text("WIDTH = 3\n")
    path = tmp_path / "nets.py"
    path.write_text(SOURCE)
    return path


@pytest.mark.parametrize(
    ("name", "width"), [("Net", 3), ("ready", 5), ("build", 4), ("Net.small", 1)]
)
def test_a_class_a_module_or_a_function_will_do(file: Path, name: str, width: int) -> None:
    module = load_module(f"{file}:{name}")
    assert module.layer.in_features == width
    assert not module.training


def test_a_module_is_found_beside_the_caller_and_the_path_is_left_as_it_was(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(file.parent)
    before = list(sys.path)
    assert load_module("nets:build").layer.in_features == 4
    assert sys.path == before


def test_random_weights_are_the_same_each_time(file: Path) -> None:
    first, second = load_module(f"{file}:build"), load_module(f"{file}:build")
    assert (first.layer.weight == second.layer.weight).all()


@pytest.mark.parametrize(
    ("name", "message", "hint"),
    [
        ("wants_arguments", "cannot be called without arguments", "without arguments"),
        ("gives_a_number", "gave `int`, not a torch.nn.Module", "function that returns one"),
        ("biuld", "there is no `biuld`", "did you mean `build`"),
        ("Net.smal", "there is no `smal`", "did you mean `small`"),
    ],
)
def test_a_wrong_factory_is_wrong_use(file: Path, name: str, message: str, hint: str) -> None:
    with pytest.raises(OptionError, match=message) as caught:
        load_module(f"{file}:{name}")
    assert hint in caught.value.hint


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("breaks", "NameError: name 'build_it' is not defined"),
        ("raises_type_error", "TypeError: .*height"),
        ("leaves", "SystemExit: 3"),
    ],
)
def test_a_factory_that_fails_points_at_the_users_line(file: Path, name: str, message: str) -> None:
    with pytest.raises(ModelError, match=message) as caught:
        load_module(f"{file}:{name}")
    assert "raised at " in caught.value.hint


@pytest.mark.parametrize("spec", ["nets", ":build", "nets:", ""])
def test_a_spec_without_a_factory_says_how_to_write_one(spec: str) -> None:
    with pytest.raises(OptionError, match="names no factory"):
        load_module(spec)


def test_missing_modules_and_files_are_named(file: Path) -> None:
    with pytest.raises(OptionError, match=r"no Python module `no_such_package\.nets`"):
        load_module("no_such_package.nets:build")
    with pytest.raises(OptionError, match="no such file"):
        load_module(f"{file.parent / 'none.py'}:build")


def test_code_that_cannot_be_imported_is_the_files_fault(tmp_path: Path) -> None:
    (tmp_path / "syntax.py").write_text("def build(:\n")
    (tmp_path / "needs.py").write_text("import no_such_package\n")
    with pytest.raises(ModelError, match="importing it failed: SyntaxError"):
        load_module(f"{tmp_path / 'syntax.py'}:build")
    with pytest.raises(ModelError, match="No module named 'no_such_package'") as caught:
        load_module(f"{tmp_path / 'needs.py'}:build")
    assert "install `no_such_package`" in caught.value.hint
