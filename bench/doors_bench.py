"""Compiled models through every door: the bits and the time of `Session`, in C, C++, C#, plugin.

    python bench/doors_bench.py --out doors.json [--only resnet18,minilm] [--formats fp32,bf16,int8]
        [--sizes static,dynamic] [--turns 20] [--workers 2] [--doors c,c++,c#,plugin]
        [--clock wall|cpu] [--onnxruntime PYTHON]... [--print]

Ten networks in three number formats, with all sizes fixed and with open ones. Each is compiled
once; then it is run on the same inputs, at two sizes where sizes are open, by `Session`, by a C
program on the C library, by a C++ program linked with the model itself (`-o NAME.so`), by a C#
program on the C library, and by ONNX Runtime with the plugin. `--onnxruntime` names the Python of
an environment with another ONNX Runtime (numpy is all else it needs), and may be given several
times. Outputs are compared byte by byte. Then the doors take turns, each in a process of its own,
in an order that favours none: `time` is a door's ÷ `Session`'s within a round, the median of all
rounds. `--clock cpu` takes the processes' time on processors, which on a busy machine says more,
with `--workers 1`.

C# wants a compiler and what runs it: `mcs` and `mono`, or the command lines in `$DOOR_MCS` and
`$DOOR_MONO`. What is in OUT is not measured again. Exits 1 where bits differ, or where a door's
median over all models is beyond 1.03.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from workloads import FORMATS, WORKLOADS, default_cache, model_file

from vermilion.ahead.interface import Interface, interface_of
from vermilion.ahead.link import link
from vermilion.api import compile_model
from vermilion.bench.harness import save_json
from vermilion.clib.build import INCLUDE, compiler
from vermilion.clib.library import library, plugin_library
from vermilion.errors import VermilionError
from vermilion.ir.load import load_model
from vermilion.ir.passes.bind_dimensions import bind_dimensions, symbolic_names
from vermilion.ir.samples import sample_inputs
from vermilion.quantization import quantize_file
from vermilion.rounds import in_rounds
from vermilion.runtime.artifact import open_artifact

HERE = Path(__file__).parent / "doors"
MOST_TIME = 1.03
PRECISIONS = ("fp32", "bf16", "int8")
SIZES = ("static", "dynamic")
MODELS = (
    "resnet50", "resnet18", "mobilenetv2", "bert-base", "minilm",
    "ocr-det", "ocr-rec", "ocr-cls", "nsfw", "nudenet",
)  # fmt: skip
# A second size of each open dimension.
OTHER = {"batch": 2, "sequence": 40, "height": 96, "width": 160}
# Images whose outputs are as wide as they are.
OTHER_OF = {"ocr-rec": {"height": 48}, "ocr-cls": {"height": 48}}
RUNS_A_TURN_MS = 100.0
NAME = "net"


@dataclass(frozen=True)
class Cell:
    """A model, its number format, and whether its sizes are fixed."""

    model: str
    precision: str
    sizes: str

    def __str__(self) -> str:
        """Return its key in the results."""
        return f"{self.model} {self.precision} {self.sizes}"


@dataclass(frozen=True)
class Door:
    """A way to run a model: its name, the command before the folders, and its environment."""

    name: str
    command: tuple[str, ...]
    environment: Mapping[str, str]


def network(cell: Cell, cache: Path) -> tuple[Path, dict[str, int]]:
    """Return the model's file and the sizes of the dimensions that are open in it."""
    dims = {name: int(size) for name, size in WORKLOADS[cell.model].dims.items()}  # type: ignore[call-overload]
    if cell.precision != "int8":
        return model_file(cell.model, cache), dims
    if WORKLOADS[cell.model].quantize:
        # ONNX Runtime's quantizer has fixed all but the batch.
        return model_file(f"{cell.model}-{FORMATS[0]}", cache), {"batch": dims["batch"]}
    file = model_file(cell.model, cache)
    output = file.with_name(f"{cell.model}-ours.onnx")
    if not output.is_file():
        samples = [sample_inputs(bind_dimensions(load_model(file), dims), n) for n in range(4)]
        quantize_file(file, output, calib=samples, samples=len(samples), scheme="a8w8")
    open_names = symbolic_names(load_model(output))
    return output, {name: size for name, size in dims.items() if name in open_names}


def inputs_at(file: Path, dims: Mapping[str, int], folder: Path) -> None:
    """Write an input of each kind at these sizes."""
    folder.mkdir(parents=True)
    bound = bind_dimensions(load_model(file), dict(dims))
    for number, array in enumerate(sample_inputs(bound, 3).values()):
        (folder / f"in{number}.bin").write_bytes(np.ascontiguousarray(array).tobytes())
        (folder / f"in{number}.shape").write_text("x".join(map(str, array.shape)))


def linked_door(interface: Interface) -> str:
    """Return the C++ that stands between the door and the model's own header."""
    name = interface.name
    lines = [f'#include "{name}.h"', '#include "door.h"', f"static {name} *model;"]
    lines += [f"static {name}_inputs inputs;", f"static {name}_outputs outputs;"]
    lines.append(f"static size_t sizes[{len(interface.outputs) + 1}];")
    lines.append(
        "static void must(int code) { if (code) { fprintf(stderr, "
        f'"%s\\n", {name}_error()); exit(3); }} }}'
    )
    lines.append(
        "static void door_open(const char *path, int workers) "
        f"{{ (void)path; must({name}_open(&model, workers)); }}"
    )
    lines.append("static void door_take(const char *folder) {")
    lines.append("  void *data; size_t bytes; int64_t shape[16];")
    for number, field in enumerate(interface.inputs):
        lines.append(f"  read_input(folder, {number}, &data, &bytes, shape);")
        lines.append(f"  inputs.{field.name} = (const {field.type} *)data;")
        if field.is_open:
            lines.append(
                f"  memcpy(inputs.{field.name}_shape, shape, sizeof inputs.{field.name}_shape);"
            )
    lines.append(f"  must({name}_shapes(model, &inputs, &outputs));")
    for number, field in enumerate(interface.outputs):
        lines.append(f"  {{ size_t count = {'1' if field.is_open else field.elements};")
        if field.is_open:
            lines.append(
                f"    for (int k = 0; k < {len(field.shape)}; k++) "
                f"count *= (size_t)outputs.{field.name}_shape[k];"
            )
            lines.append(f"    outputs.{field.name}_room = count;")
        lines.append(f"    sizes[{number}] = count * sizeof({field.type});")
        lines.append(f"    outputs.{field.name} = ({field.type} *)room(sizes[{number}]); }}")
    lines.append("}")
    lines.append(f"static void door_run(void) {{ must({name}_run(model, &inputs, &outputs)); }}")
    lines.append("static void door_write(const char *folder) {")
    for number, field in enumerate(interface.outputs):
        lines.append(f"  write_output(folder, {number}, outputs.{field.name}, sizes[{number}]);")
    return "\n".join([*lines, "}", ""])


def built(source: Path, output: Path, words: Sequence[str], *, is_cpp: bool = False) -> Path:
    """Compile a door."""
    chosen = compiler("linux")
    command = list(chosen.words)
    if is_cpp:
        command[-1] = {"cc": "c++", "gcc": "g++", "clang": "clang++"}.get(command[-1], "c++")
    kind = ["-x", "c++"] if is_cpp else ["-std=c11"]
    subprocess.run(
        [*command, *kind, "-O2", "-w", f"-I{HERE}", f"-I{INCLUDE}", str(source), "-x", "none",
         *words, "-o", str(output), "-lpthread"],
        check=True,
    )  # fmt: skip
    return output


def tool(variable: str, *names: str) -> list[str] | None:
    """Return a command line from the environment or the path."""
    if os.environ.get(variable):
        return shlex.split(os.environ[variable])
    found = next((place for name in names if (place := shutil.which(name))), None)
    return None if found is None else [found]


def doors_of(cell: Cell, folder: Path, file: Path, dims: Any, options: Any) -> list[Door]:
    """Compile the model, and all that runs it; the first is `Session`."""
    wanted = options.doors
    context = folder / f"{NAME}_ctx.onnx"
    compiled = compile_model(
        file, precision=cell.precision, dims=dims, cache_dir=options.cache / "compiled",
        output=folder / f"{NAME}.rai", ep_context=context,
    )  # fmt: skip
    bundle, workers = str(folder / f"{NAME}.rai"), str(options.workers)
    python = str(HERE / "door.py")
    doors = [Door("session", (sys.executable, python, "session", bundle, workers), {})]
    where, directory = f"-Wl,-rpath,{library().parent}", {"LD_LIBRARY_PATH": str(library().parent)}
    if "c" in wanted:
        program = built(HERE / "door.c", folder / "door", [str(library()), where])
        doors.append(Door("c", (str(program), bundle, workers), {}))
    if "c++" in wanted:
        reader = open_artifact(compiled.artifact)
        link([reader], folder / f"{NAME}.so")
        text = linked_door(interface_of(NAME, reader.manifest.inputs, reader.manifest.outputs))
        (folder / "linked_door.h").write_text(text)
        words = ['-DLINKED="linked_door.h"', f"-I{folder}", str(folder / f"{NAME}.so")]
        words.append(f"-Wl,-rpath,{folder}")
        program = built(HERE / "door.c", folder / "linked", words, is_cpp=True)
        doors.append(Door("c++", (str(program), "-", workers), {}))
    compile_cs, run_cs = tool("DOOR_MCS", "mcs"), tool("DOOR_MONO", "mono")
    if "c#" in wanted and compile_cs and run_cs:
        program = folder / "Door.exe"
        subprocess.run(
            [*compile_cs, "-unsafe", "-optimize", f"-out:{program}", str(HERE / "Door.cs")],
            check=True,
        )
        doors.append(Door("c#", (*run_cs, str(program), bundle, workers), directory))
    if "plugin" in wanted:
        own = {"DOOR_PLUGIN": str(plugin_library())}
        for name, one in [("plugin", sys.executable), *map(python_of, options.onnxruntime)]:
            doors.append(Door(name, (one, python, "plugin", str(context), workers), own))
    return doors


def python_of(path: str) -> tuple[str, str]:
    """Return the name of a door through another ONNX Runtime, and the Python that has it."""
    text = "import onnxruntime; print(onnxruntime.__version__)"
    done = subprocess.run([path, "-c", text], capture_output=True, text=True, check=True)
    return f"plugin {done.stdout.strip()}", path


class Turns:
    """A door's process, which runs when it is asked to."""

    def __init__(self, door: Door, folders: Sequence[Path], clock: str) -> None:
        self._child = subprocess.Popen(
            [*door.command, *map(str, folders)], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **door.environment, "DOOR": door.name, "DOOR_CLOCK": clock},
        )  # fmt: skip
        if self._line() != "ready":
            raise RuntimeError(f"the door `{door.name}` did not open")

    def _line(self) -> str:
        assert self._child.stdout is not None
        return self._child.stdout.readline().strip()

    def run(self, count: int) -> float:
        """Run so often; return the milliseconds of a run."""
        assert self._child.stdin is not None
        self._child.stdin.write(f"{count}\n")
        self._child.stdin.flush()
        return float(self._line())

    def __enter__(self) -> Turns:
        return self

    def __exit__(self, *error: object) -> None:
        self._child.communicate()


def differing(door: Door, folders: Sequence[Path]) -> list[str]:
    """Return the outputs whose bytes are not `Session`'s."""
    found = []
    for folder in folders:
        for wanted in sorted(folder.glob("session-out*.bin")):
            own = folder / wanted.name.replace("session", door.name, 1)
            if not own.is_file() or own.read_bytes() != wanted.read_bytes():
                found.append(f"{folder.name}/{wanted.stem.removeprefix('session-')}")
    return found


def measure(cell: Cell, options: argparse.Namespace) -> dict[str, Any]:
    """Compile, compare and time one cell."""
    with tempfile.TemporaryDirectory(prefix="doors-") as name:
        folder = Path(name)
        file, dims = network(cell, options.cache)
        folders = [folder / "one"]
        inputs_at(file, dims, folders[0])
        if cell.sizes == "dynamic":
            other = {**{name: OTHER[name] for name in dims}, **OTHER_OF.get(cell.model, {})}
            other = {name: size for name, size in other.items() if name in dims}
            folders.append(folder / "two")
            inputs_at(file, other, folders[1])
        doors = doors_of(cell, folder, file, dims if cell.sizes == "static" else None, options)
        with ExitStack() as stack:
            open_doors = [
                stack.enter_context(Turns(door, folders, options.clock)) for door in doors
            ]
            rows = {door.name: {"differs": differing(door, folders)} for door in doors[1:]}
            once = max(open_doors[0].run(3), 0.01)
            count = max(3, min(2000, round(RUNS_A_TURN_MS / once)))
            took = in_rounds(
                range(len(doors)), lambda door, _: open_doors[door].run(count), options.turns,
                warm_up=1,
            )  # fmt: skip
        for door, own in zip(doors[1:], took[1:], strict=True):
            ratios = [mine / base for mine, base in zip(own, took[0], strict=True)]
            quartiles = statistics.quantiles(ratios, n=4)
            rows[door.name]["time"] = {
                "median": quartiles[1],
                "q1": quartiles[0],
                "q3": quartiles[2],
            }
        return {"session_ms": statistics.median(took[0]), "doors": rows}


def cells(options: argparse.Namespace) -> Iterator[Cell]:
    """Yield what was asked for."""
    for model in options.only:
        for precision in options.formats:
            yield from (Cell(model, precision, sizes) for sizes in options.sizes)


def show(stored: Mapping[str, Any]) -> bool:
    """Print the table; say whether all bits are equal and no door is slow."""
    names = list(dict.fromkeys(name for row in stored.values() for name in row.get("doors", ())))
    print(f"{'model':28} {'Session ms':>10}", *(f"{name:>20}" for name in names))
    good = True
    medians: dict[str, list[float]] = {name: [] for name in names}
    for key, row in stored.items():
        if "error" in row:
            print(f"{key:28} {row['error']}")
            continue
        texts = []
        for name in names:
            door = row["doors"].get(name)
            if door is None:
                texts.append("")
                continue
            medians[name].append(door["time"]["median"])
            good = good and not door["differs"]
            bits = "DIFFERS" if door["differs"] else "same bits"
            texts.append(f"{bits}, {door['time']['median']:.3f}")
        print(f"{key:28} {row['session_ms']:10.3f}", *(f"{text:>20}" for text in texts))
    for name, found in medians.items():
        middle = statistics.median(found)
        slow = [one for one in found if one > MOST_TIME]
        good = good and middle <= MOST_TIME
        print(f"{name}: {len(found)} cells, median {middle:.3f} of Session's time, "
              f"{len(slow)} beyond {MOST_TIME}, at most {max(found):.3f}")  # fmt: skip
    return good


def main() -> int:
    """Measure what is not in OUT yet."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])

    def names(text: str) -> list[str]:
        return text.split(",")

    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--only", type=names, default=list(MODELS))
    parser.add_argument("--formats", type=names, default=list(PRECISIONS))
    parser.add_argument("--sizes", type=names, default=list(SIZES))
    parser.add_argument("--doors", type=names, default=["c", "c++", "c#", "plugin"])
    parser.add_argument("--onnxruntime", action="append", default=[], metavar="PYTHON")
    parser.add_argument("--turns", type=int, default=20)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--clock", choices=("wall", "cpu"), default="wall")
    parser.add_argument("--cache", type=Path, default=default_cache())
    parser.add_argument("--print", action="store_true")
    options = parser.parse_args()
    stored = json.loads(options.out.read_text()) if options.out.is_file() else {}
    for cell in [] if options.print else cells(options):
        if str(cell) in stored:
            continue
        try:
            stored[str(cell)] = measure(cell, options)
        except VermilionError as error:
            stored[str(cell)] = {"error": str(error)}
        print(cell, stored[str(cell)], flush=True)
        save_json(options.out, stored)
    return 0 if stored and show(stored) else 1


if __name__ == "__main__":
    sys.exit(main())
