"""The loader of objects: what our generator writes loads and runs; anything else is refused."""

from __future__ import annotations

import ctypes
import struct
import sys

import pytest

from vermilion.codegen.elf import load_elf
from vermilion.codegen.isa import isa_of
from vermilion.codegen.object import compile_object
from vermilion.errors import DeviceError
from vermilion.hardware.targets.find import find_target

pytestmark = pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="this system has another format than ELF"
)

IR = """
@table = internal constant [4 x double] [double 1.5, double 2.5, double 3.5, double 4.5]
declare i64 @labs(i64)
define internal i64 @twice(i64 %x) noinline {
  %y = shl i64 %x, 1
  ret i64 %y
}
define i64 @work(i64 %x) {
  %size = call i64 @labs(i64 %x)
  %result = call i64 @twice(i64 %size)
  ret i64 %result
}
define double @look(i64 %i) {
  %at = getelementptr [4 x double], ptr @table, i64 0, i64 %i
  %value = load double, ptr %at
  ret double %value
}
"""


@pytest.fixture(scope="module")
def data() -> bytes:
    return compile_object(IR, isa_of(find_target("x86-64-v3")))


def test_code_constants_and_library_calls_work(data: bytes) -> None:
    loaded = load_elf(data, ["work", "look"])
    work = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)(loaded.addresses["work"])
    look = ctypes.CFUNCTYPE(ctypes.c_double, ctypes.c_int64)(loaded.addresses["look"])
    assert work(-21) == 42
    assert [look(i) for i in range(4)] == [1.5, 2.5, 3.5, 4.5]


def test_a_missing_function_is_named(data: bytes) -> None:
    with pytest.raises(DeviceError, match="no function `absent`"):
        load_elf(data, ["absent"])


@pytest.mark.parametrize("cut", [0, 3, 40, 63])
def test_a_short_file_is_refused(data: bytes, cut: int) -> None:
    with pytest.raises(DeviceError, match="cannot be loaded"):
        load_elf(data[:cut], ["work"])


def test_another_machines_object_is_refused(data: bytes) -> None:
    other = bytearray(data)
    struct.pack_into("<H", other, 18, 183)  # AArch64
    with pytest.raises(DeviceError, match="no object file for x86-64"):
        load_elf(bytes(other), ["work"])


def test_an_unknown_library_function_is_refused() -> None:
    text = """
        declare void @no_such_function()
        define void @go() {
          call void @no_such_function()
          ret void
        }
    """
    with pytest.raises(DeviceError, match="no `no_such_function`"):
        load_elf(compile_object(text, isa_of(find_target("x86-64-v3"))), ["go"])
