"""Compiled code is kept from one process to the next, and never trusted more than what made it."""

from __future__ import annotations

import ctypes
import json
from hashlib import sha256
from pathlib import Path

import pytest

from vermilion.codegen.emit.builder import Function, Module
from vermilion.codegen.emit.register_tile import RegisterTile, Side
from vermilion.codegen.isa import Isa
from vermilion.codegen.load import load_object
from vermilion.codegen.object import assembly, compile_object
from vermilion.hardware.targets.find import find_target
from vermilion.quantize import native_code
from vermilion.quantize.native_code import isa_with, machine_code
from vermilion.store.entry import INDEX_FILE
from vermilion.store.namespaces import CALIBRATION
from vermilion.store.store import Store

FILE = "code.o"

TEXT = """
define i64 @twice(i64 %x) {
  %sum = add i64 %x, %x
  ret i64 %sum
}
"""
KINDS = {"twice": ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)}


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("VERMILION_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return a list that grows with each text that is compiled."""
    texts: list[str] = []

    def compile_and_note(text: str, isa: Isa) -> bytes:
        texts.append(text)
        return compile_object(text, isa)

    monkeypatch.setattr(native_code, "compile_object", compile_and_note)
    return texts


def test_a_text_is_compiled_once(root: Path, compiled: list[str]) -> None:
    assert machine_code(TEXT, KINDS)["twice"](21) == 42
    assert machine_code(TEXT, KINDS)["twice"](4) == 8
    assert machine_code(TEXT.replace("add", "mul"), KINDS)["twice"](4) == 16
    assert len(compiled) == 2
    assert not [path for path in (root / CALIBRATION.name).iterdir() if path.name.startswith(".")]


def test_code_without_this_users_signature_is_never_run(root: Path, compiled: list[str]) -> None:
    machine_code(TEXT, KINDS)
    machine_code(TEXT.replace("add", "mul"), KINDS)
    first, second = (root / CALIBRATION.name).glob(f"*/{FILE}")
    # The digest of another code is one that anybody can compute; and what this user signed, for
    # another text.
    code = second.read_bytes()
    index = json.loads((first.parent / INDEX_FILE).read_text())
    index["entry"]["files"][0].update(sha256=sha256(code).hexdigest(), size_bytes=len(code))
    for text in (json.dumps(index), (second.parent / INDEX_FILE).read_text()):
        (first.parent / FILE).write_bytes(code)
        (first.parent / INDEX_FILE).write_text(text)
        compiled.clear()
        assert machine_code(TEXT, KINDS)["twice"](5) == 10
        assert machine_code(TEXT.replace("add", "mul"), KINDS)["twice"](5) == 25
        assert len(compiled) == 1


@pytest.mark.parametrize("damage", [b"", b"short", bytes(200)])
def test_what_was_changed_is_compiled_again(damage: bytes, root: Path, compiled: list[str]) -> None:
    machine_code(TEXT, KINDS)
    (file,) = (root / CALIBRATION.name).glob(f"*/{FILE}")
    whole = file.read_bytes()
    file.write_bytes(damage)
    assert machine_code(TEXT, KINDS)["twice"](5) == 10
    assert len(compiled) == 2
    assert file.read_bytes() == whole


def test_a_cache_that_cannot_be_written_is_none(root: Path, compiled: list[str]) -> None:
    root.write_text("a file where the folder would be")
    for number in (1, 2):
        assert machine_code(TEXT, KINDS)["twice"](number) == 2 * number
    assert len(compiled) == 2


def test_the_cache_lists_and_checks_it(root: Path) -> None:
    machine_code(TEXT, KINDS)
    (row,) = Store(root).ls()
    assert row.kind == "calibration: machine code"
    assert row.key.startswith("calibration/")
    assert row.size_bytes > 100
    assert [check.is_whole for check in Store(root).verify()] == [True]
    (row.path / FILE).write_bytes(bytes(100))
    (check,) = Store(root).verify()
    assert "is not what was written" in check.problem
    assert Store(root).prune(older_than_days=0).keys == (row.key,)
    assert not row.path.exists()


def test_products_of_bfloat16_are_used_where_the_processor_has_them() -> None:
    features = find_target("x86-64-v4").features
    assert not isa_with(features).has_bf16
    isa = isa_with(features | {"avx512bf16"})
    assert isa.has_bf16
    module = Module(has_bf16=True)
    f = Function(module, "add_pairs", [("sums", "ptr"), ("pairs", "ptr")], internal=False)
    tile = RegisterTile(f, isa, "bf16", 1, 1)
    tile.multiply(Side(f.arguments[1]), Side(f.arguments[1], 64), 2)
    f.store(tile.accumulators[0][0].get(), f.arguments[0])
    f.finish()
    assert "vdpbf16ps" in assembly(module.text(), isa)


def test_of_an_unknown_processor_llvm_says_what_it_has(root: Path) -> None:
    assert isa_with(frozenset()).llvm_cpu
    data = compile_object(TEXT, isa_with(frozenset()))
    library, addresses = load_object(data, KINDS, isa_with(frozenset()))
    assert library
    assert KINDS["twice"](addresses["twice"])(8) == 16
