"""What CONTRIBUTING.md says that a change touches: each is made in a copy, tried, and counted."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent.parent / "src" / "vermilion"


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """Return a copy of the package, without its tests, with what Python has compiled of it."""
    ignored = shutil.ignore_patterns("*_test.py", "*.pyc.*", "recorded")
    return Path(shutil.copytree(SOURCE, tmp_path / "src" / "vermilion", ignore=ignored))


def insert(copy: Path, file: str, before: str, text: str) -> None:
    """Write `text` in front of the first line that is `before`."""
    path = copy / file
    head, mark, tail = path.read_text(encoding="utf-8").partition(f"\n{before}")
    assert mark, f"{file} has no line `{before}`"
    path.write_text(f"{head}\n{text}{mark[1:]}{tail}", encoding="utf-8")


def touched(copy: Path) -> set[str]:
    """Return the files that are not as in the package."""
    return {
        path.relative_to(copy).as_posix()
        for path in copy.rglob("*.py")
        if not (SOURCE / path.relative_to(copy)).is_file()
        or path.read_bytes() != (SOURCE / path.relative_to(copy)).read_bytes()
    }


def run(copy: Path, *command: str) -> str:
    """Run Python with the copy as the package; give what it printed."""
    environment: Mapping[str, str] = {
        **os.environ,
        "PYTHONPATH": str(copy.parent),
        "VERMILION_CACHE": str(copy.parent.parent / "cache"),
    }
    done = subprocess.run(
        [sys.executable, *command], env=environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


# Where operators of ONNX Runtime are written as ONNX's own. In the copies these are not, so that
# there is no generated code for them.
WRITTEN = "ir/passes/contrib_float.py"


def forget(copy: Path, operator: str) -> None:
    """Take the row of an operator out of `WRITTEN`."""
    lines = (copy / WRITTEN).read_text(encoding="utf-8").splitlines(keepends=True)
    kept = [line for line in lines if not line.startswith(f'    "{operator}": ')]
    assert len(kept) == len(lines) - 1
    (copy / WRITTEN).write_text("".join(kept), encoding="utf-8")


# x · sigmoid(αx), and an approximation of GELU.
OPERATOR = """
import math
import sys
import numpy as np
import onnx
import vermilion
from vermilion.codegen.lower.rules import refusal
from vermilion.ir.cost import node_cost
from vermilion.ir.load import load_model
from vermilion.ir.passes.pipeline import simplify

name, operations = sys.argv[1], int(sys.argv[2])
model = onnx.parser.parse_model(
    '<ir_version: 8, opset_import: ["": 17, "com.microsoft": 1]> g (float[4,64] x)'
    f' => (float[4,64] y) {{ t = Neg(x) y = com.microsoft.{name}(t) }}'
)
onnx.save(model, sys.argv[3])
node = list(simplify(load_model(sys.argv[3])).model.graph)[-1]
assert refusal(node) is None, refusal(node)
assert node_cost(node).operations == operations * 256
compiled = vermilion.compile_model(sys.argv[3])
assert compiled.report.summary.offloaded_operators == 2, compiled.report.nodes
x = np.linspace(-6, 6, 256, dtype=np.float32).reshape(4, 64)
with compiled.session() as session:
    (found,) = session.run(None, {"x": x})
exact = -x.astype(np.float64)
if name.startswith("QuickGelu"):
    exact = exact / (1 + np.exp(-1.702 * exact))
else:
    exact = exact / 2 * (1 + np.tanh(math.sqrt(2 / math.pi) * (exact + 0.044715 * exact**3)))
assert np.abs(found - exact).max() < 1e-5
"""


ROW = '    Elementwise("{}", {}, "floats", {}, domain="com.microsoft"),\n'


def test_an_elementwise_operator_is_one_row(copy: Path) -> None:
    forget(copy, "QuickGelu")
    insert(
        copy,
        "ir/elementwise.py",
        ")\n\nELEMENTWISE: Mapping",
        ROW.format("QuickGelu", "_swish", 4),
    )
    run(copy, "-c", OPERATOR, "QuickGelu<alpha = 1.702>", "4", str(copy.parent / "m.onnx"))
    assert touched(copy) - {WRITTEN} == {"ir/elementwise.py"}


def test_an_activation_with_new_arithmetic_is_two_files(copy: Path) -> None:
    forget(copy, "FastGelu")
    insert(
        copy,
        "ir/elementwise.py",
        ")\n\nELEMENTWISE: Mapping",
        ROW.format("FastGelu", '_operation("fast_gelu")', 5),
    )
    insert(
        copy,
        "codegen/emit/vector_math.py",
        "    def sigmoid(self",
        "    def fast_gelu(self, x: Value) -> Value:\n"
        "        cube = self.multiply(self.multiply(x, x), x)\n"
        "        inner = self.fma(cube, self.number(0.044715), x)\n"
        "        half = self.multiply(x, self.number(0.5))\n"
        "        t = self.tanh(self.multiply(inner, self.number(0.7978845608)))\n"
        "        return self.fma(half, t, half)\n\n",
    )
    run(copy, "-c", OPERATOR, "FastGelu", "5", str(copy.parent / "m.onnx"))
    wanted = {"ir/elementwise.py", "codegen/emit/vector_math.py"}
    assert touched(copy) - {WRITTEN} == wanted


NPU = """    Target(
        name="medusa",
        kind="npu",
        title="Medusa Point NPU (XDNA 3)",
        source="made up for a test, with nothing behind it",
        aliases=("mds",),
        limits=_LIMITS,
        npu=NpuFacts(
            chips="Medusa",
            operators=OPERATORS,
            summary_codes=("mds",),
            vaiml_code="mds",
            compilers=("X2", "X1"),
            pci={(0x17F0, 0x99): "Medusa Point NPU (XDNA 3)"},
            array=ArrayFacts(8, 8, 1024, 2000, 8192, "made up"),
            first_release="1.8",
            not_on=("Linux",),
        ),
    ),
"""

USES_NPU = """
import sys
import onnx
from vermilion.backends.npu_cost import predict
from vermilion.errors import Refusal, UnsupportedError
from vermilion.hardware.npu import find_npus
from vermilion.hardware.options.vitisai_build import Request, build_options
from vermilion.hardware.options.vitisai import all_options
from vermilion.hardware.pci import PciDevice
from vermilion.hardware.targets.find import find_target
from vermilion.hardware.targets.npu import TARGET_OF_CODE
from vermilion.ir.load import load_model

target = find_target("MDS")
assert (target.name, TARGET_OF_CODE["mds"]) == ("medusa", "medusa")
(npu,) = find_npus([PciDevice(0x1022, 0x17F0, 0x99, 0x118000, "0000:c5:00.1")])
assert (npu.target, npu.recognition) == ("medusa", "known")
assert build_options(Request("medusa", "1.8", "int8")).options == {"target": "X2"}
config = build_options(Request("medusa", "1.8", "bf16")).config_text()
assert '"device": "mds"' in config
for release, system in (("1.7", "Windows"), ("1.8", "Linux")):
    try:
        build_options(Request("medusa", release, "int8", system=system))
    except UnsupportedError as error:
        assert "edusa" in error.message
    else:
        raise AssertionError("not refused")
assert any("Strix, Krackan and Medusa" in option.meaning for option in all_options())
model = onnx.parser.parse_model(
    '<ir_version: 8, opset_import: ["": 17]> g (float[1,8,32,32] x, float[8,8,3,3] w)'
    ' => (float[1,8,30,30] y) { y = Conv(x, w) }'
)
onnx.save(model, sys.argv[1])
nodes = list(load_model(sys.argv[1]).graph)
mine = predict(target, "xint8", nodes, parts=1)
assert isinstance(mine, Refusal) and "on medusa" in mine.reason
"""


def test_an_npu_is_one_row(copy: Path) -> None:
    insert(copy, "hardware/targets/npu.py", "    # The vendor's compiler for this chip", NPU)
    run(copy, "-c", USES_NPU, str(copy.parent / "m.onnx"))
    assert touched(copy) == {"hardware/targets/npu.py"}


CPU = """    _target(
        "zen7",
        "AMD Zen 7",
        "znver7",
        CpuFacts(ZEN5 | {"avx512fp16"}, "znver5", models=((0x1B, 0x00, 0x0F),)),
    ),
"""

USES_CPU = """
import sys
import onnx
import vermilion
from vermilion.codegen.isa import isa_of
from vermilion.hardware.cpu import parse_proc
from vermilion.hardware.targets.find import find_target, resolve_cpu
from vermilion.hardware.targets.x86 import ZEN5

cpu = parse_proc(
    "processor : 0\\nvendor_id : AuthenticAMD\\ncpu family : 27\\nmodel : 3\\nflags : avx512fp16",
    "",
)
assert (cpu.core, cpu.features) == ("zen7", {"avx512fp16"})
assert resolve_cpu(ZEN5 | {"avx512fp16"}) == find_target("znver7")
assert isa_of(find_target("zen7")).has_bf16
model = onnx.parser.parse_model(
    '<ir_version: 8, opset_import: ["": 17]> g (float[1,8,32,32] x) => (float[1,8,32,32] y)'
    ' { y = Relu(x) }'
)
onnx.save(model, sys.argv[1])
compiled = vermilion.compile_model(sys.argv[1], target="zen7")
assert compiled.report.summary.offloaded_operators == 1
"""


def test_a_cpu_core_is_one_row(copy: Path) -> None:
    insert(copy, "hardware/targets/x86.py", '    _target(\n        "x86-64-v3"', CPU)
    run(copy, "-c", USES_CPU, str(copy.parent / "m.onnx"))
    assert touched(copy) == {"hardware/targets/x86.py"}


VERB = '''"""`vermilion chips`: the names of what can be compiled for."""

from __future__ import annotations

from vermilion.cli.output import Result
from vermilion.cli.verb import Terminal, verb


@verb("chips")
def chips(terminal: Terminal) -> Result:
    """List the names of targets."""
    from vermilion.hardware.targets.find import all_targets

    names = [target.name for target in all_targets()]
    return Result({"chips": names}, lambda: ", ".join(names))
'''


def test_a_verb_is_one_file_and_one_line(copy: Path) -> None:
    (copy / "cli" / "chips.py").write_text(VERB, encoding="utf-8")
    insert(copy, "cli/__init__.py", '        "doctor": "doctor",', '        "chips": "chips",\n')
    assert "zen5, x86-64-v3" in run(copy, "-m", "vermilion", "chips")
    assert '"verb": "chips"' in run(copy, "-m", "vermilion", "chips", "--json")
    assert "List the names of targets" in run(copy, "-m", "vermilion", "--help")
    assert touched(copy) == {"cli/chips.py", "cli/__init__.py"}
