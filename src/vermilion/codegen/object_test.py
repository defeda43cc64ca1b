"""IR becomes objects, here or in processes of their own, the same bytes either way."""

from __future__ import annotations

import ctypes
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from vermilion.codegen import object as module
from vermilion.codegen.isa import isa_of
from vermilion.codegen.load import load_object
from vermilion.codegen.object import assembly, compile_object, compile_objects, link_object
from vermilion.errors import DeviceError
from vermilion.hardware.targets.find import find_target

ISA = isa_of(find_target("x86-64-v3"))
OBJECTS = "VERMILION_TEST_OBJECTS"  # where tests look for what was compiled (`conftest.py`)


@pytest.fixture(autouse=True)
def is_compiled_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(OBJECTS, raising=False)


def text(name: str, factor: int) -> str:
    return f"define i64 @{name}(i64 %x) {{\n  %y = mul i64 %x, {factor}\n  ret i64 %y\n}}\n"


def test_several_modules_are_what_each_is_alone() -> None:
    texts = [text("one", 3), text("two", 5), text("three", 7)]
    objects = compile_objects(texts, ISA)
    assert objects == [compile_object(one, ISA) for one in texts]
    for name, factor, data in zip(("one", "two", "three"), (3, 5, 7), objects, strict=True):
        library, functions = load_object(data, [name], ISA)
        assert ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)(functions[name])(6) == 6 * factor
        del library


def test_a_process_that_cannot_start_is_replaced(monkeypatch: Any) -> None:
    monkeypatch.setattr(module, "_WORKER", "raise SystemExit(3)")
    texts = [text("one", 3), text("two", 5)]
    assert compile_objects(texts, ISA) == [compile_object(one, ISA) for one in texts]


def test_wrong_ir_is_an_error_wherever_it_is_compiled() -> None:
    with pytest.raises(RuntimeError, match="expected"):
        compile_objects([text("one", 3), "define nonsense"], ISA)


def test_the_worker_compiles_what_it_reads() -> None:
    request = (
        '{"llvm_cpu": "x86-64-v3", "lanes": 8, "registers": 16, "has_bf16": false, '
        '"has_vnni": false}\n'
    )
    done = subprocess.run(
        [sys.executable, "-c", module._WORKER], input=(request + text("f", 9)).encode(),
        capture_output=True, check=True,
    )  # fmt: skip
    assert done.stdout == compile_object(text("f", 9), ISA)


def test_a_loop_stays_the_loop_that_was_written() -> None:
    loop = """define i64 @sum(i64 %n) {
    entry:
      br label %next
    next:
      %i = phi i64 [ 0, %entry ], [ %j, %next ]
      %total = phi i64 [ 0, %entry ], [ %more, %next ]
      %more = add i64 %total, %i
      %j = add i64 %i, 1
      %again = icmp ult i64 %j, %n
      br i1 %again, label %next, label %end
    end:
      ret i64 %more
    }
    """
    data = compile_object(loop, ISA)
    library, functions = load_object(data, ["sum"], ISA)
    assert ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)(functions["sum"])(10) == 45
    del library
    assert "jb" in assembly(loop, ISA)  # all of LLVM's passes make a formula of it


def test_assembly_is_what_is_encoded() -> None:
    assert "imulq\t$9, %rdi, %rax" in assembly(text("f", 9), ISA) or "leaq" in assembly(
        text("f", 9), ISA
    )
    wide = isa_of(find_target("zen4"))
    product = """define <16 x float> @f(<16 x float> %a, <16 x float> %b, <16 x float> %c) {
        %y = call <16 x float> @llvm.fma.v16f32(<16 x float> %a, <16 x float> %b, <16 x float> %c)
        ret <16 x float> %y
    }
    declare <16 x float> @llvm.fma.v16f32(<16 x float>, <16 x float>, <16 x float>)"""
    assert "vfmadd213ps\t%zmm2, %zmm1, %zmm0" in assembly(product, wide)


def test_an_object_without_the_function_is_refused() -> None:
    with pytest.raises(DeviceError):
        link_object(compile_object(text("f", 9), ISA), ["absent"], ISA)


def test_tests_compile_a_text_once_for_each_core(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    wide = isa_of(find_target("zen4"))
    here = {isa: compile_object(text("f", 9), isa) for isa in (ISA, wide)}
    monkeypatch.setenv(OBJECTS, str(tmp_path))
    for isa, data in here.items():
        assert compile_object(text("f", 9), isa) == data
    assert {file.read_bytes() for file in tmp_path.iterdir()} == set(here.values())
    for file in tmp_path.iterdir():
        file.write_bytes(b"found")
    assert compile_objects([text("g", 9), text("f", 9)], ISA)[1] == b"found"
    assert len(list(tmp_path.iterdir())) == 3
