from __future__ import annotations

import re
import struct
from pathlib import Path

import onnx_ir as ir
import pytest

from models import Net
from vermilion.amdgpu.code_object import assemble, read_code_object
from vermilion.backends.base import Part
from vermilion.backends.iree.check_programs import NOT_INTERPRETED, OwnProgram, check_programs
from vermilion.backends.iree.own_program import why_not
from vermilion.backends.iree.signature import signature_of
from vermilion.backends.iree.toolchain import Work, compile_for_gpu, import_part, linker
from vermilion.errors import DeviceError
from vermilion.ir.literal.types import complete_types
from vermilion.progress import no_progress

pytestmark = pytest.mark.needs("iree")

FAMILY = "gfx11-generic"  # which the compiler has no name for


def network() -> ir.Model:
    net = Net("product", seed=6)
    x = net.input("x", (4, 40))
    y = net.op("MatMul", x, net.constant("w", net.normal((40, 24), 0.2)), name="product")
    net.output(net.op("Relu", y, name="relu"), "y", (4, 24))
    complete_types(model := net.model())
    return model


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> OwnProgram:
    folder = tmp_path_factory.mktemp("own")
    work = Work(folder, folder / "log.txt", no_progress)
    made = compile_for_gpu(import_part(network(), work), FAMILY, folder / "own.vmfb", work)
    return OwnProgram(FAMILY, folder / "own.vmfb", made.assemblies)


def checked(program: OwnProgram) -> dict[str, str]:
    model = network()
    part = Part("part", "gpu", "iree", model, (), 1e-5)
    return check_programs(part, [program], signature_of(model, ()), {}, "fp32", (linker(),))


def with_fault(program: OwnProgram, right: str, wrong: str, folder: Path) -> OwnProgram:
    """Return a program with another instruction of the same length in its machine code."""
    ((code, text),) = program.assemblies.items()
    changed, count = re.subn(right, wrong, text, count=1)
    assert count == 1, right
    made = [
        read_code_object(assemble(one, (linker(),), folder, version=6, strip=True))
        for one in (text, changed)
    ]
    old, new = (one.sections[".text"].data for one in made)
    assert len(old) == len(new)
    start = code.index(old)
    faulty = code[:start] + new + code[start + len(old) :]
    place = folder / "fault.vmfb"
    place.write_bytes(program.place.read_bytes().replace(code, faulty))
    return OwnProgram(program.gpu, place, {faulty: changed})


def test_a_program_for_a_family_computes_what_the_part_does(compiled: OwnProgram) -> None:
    ((code, _),) = compiled.assemblies.items()
    (flags,) = struct.unpack_from("<I", code, 0x30)
    assert flags & 0xFF == 0x54  # EF_AMDGPU_MACH_AMDGCN_GFX11_GENERIC, in AMDGPUUsage
    assert read_code_object(code).sections[".note"].data.count(b"amdhsa.kernels") == 1
    said = checked(compiled)
    assert said["interpreted"].startswith(f"{FAMILY} (")
    assert NOT_INTERPRETED not in said


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("v_mul_f32_e32", "v_add_f32_e32"),  # one term of a sum
        (r"(buffer_load_b\w+ .* offset):(\d+)", r"\1:64"),  # a slice that begins elsewhere
    ],
)
def test_a_fault_in_the_machine_code_is_found(
    compiled: OwnProgram, right: str, wrong: str, tmp_path: Path
) -> None:
    with pytest.raises(DeviceError, match=rf"machine code for {FAMILY}"):
        checked(with_fault(compiled, right, wrong, tmp_path))


def test_text_that_is_not_the_machine_codes(compiled: OwnProgram) -> None:
    ((code, text),) = compiled.assemblies.items()
    other = {code: re.sub("v_mul_f32_e32", "v_add_f32_e32", text)}
    said = checked(OwnProgram(FAMILY, compiled.place, other))
    assert "is not the code object's machine code" in said[NOT_INTERPRETED]


def test_large_parts_are_not_executed() -> None:
    reason = why_not(4.1, {})
    assert reason is not None
    assert "4100.0 million operations" in reason.reason
