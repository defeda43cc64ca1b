"""Write the tables of the documentation from the code: `python tools/tables.py`."""

from __future__ import annotations

import re
import sys
from pathlib import Path

from api_page import api_page
from cli_page import cli_page
from option_tables import error_table, latency_table, options_page
from ort_tables import surface_tables

from vermilion.hardware.targets.find import all_targets
from vermilion.hardware.targets.target import Target
from vermilion.ir.ops import OPERATORS
from vermilion.proof.bounds import BOUNDS
from vermilion.quantize.formats import SCHEMES

ROOT = Path(__file__).parent.parent

# What stands behind a kind of target today.
_COMPILED_BY = {
    "cpu": "our code generator",
    "npu": "modelled: rules of the vendor",
    "gpu": "IREE, ahead of time",
}
_RUNS = {
    "cpu": "here, if the features are this machine's",
    "npu": "modelled, on the CPU",
    "gpu": "with HIP where the GPU is; else its CPU build, modelled",
}


def table(head: list[str], rows: list[list[str]]) -> str:
    """Return a Markdown table."""
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows)])


def targets_table() -> str:
    """Return every target that a model can be compiled for, GPUs in one row."""
    rows = [_row(target) for target in all_targets() if target.kind != "gpu"]
    names = ", ".join(f"`{target.name}`" for target in all_targets() if target.kind == "gpu")
    formats = "those of the model; fp16 from fp32"
    rows.append([names, "AMD GPUs", formats, _COMPILED_BY["gpu"], _RUNS["gpu"]])
    return table(["target", "chip", "data types", "compiled by", "runs"], rows)


def _row(target: Target) -> list[str]:
    names = ", ".join(f"`{name}`" for name in (target.name, *target.aliases))
    formats = ", ".join(target.formats) or "those of the model"
    return [names, target.title, formats, _COMPILED_BY[target.kind], _RUNS[target.kind]]


def gpus_table() -> str:
    """Return every GPU and what its matrix instructions multiply."""
    rows = []
    for target in all_targets():
        if target.gpu is not None:
            inputs = ", ".join(sorted(target.gpu.matrix_inputs))
            does = f"{target.gpu.matrix_instructions.upper()}: {inputs}" if inputs else "none"
            rows.append([f"`{target.name}`", target.title, does])
    return table(["named", "chips", "matrix instructions"], rows)


def bounds_table() -> str:
    """Return the bound of every number format of the proof."""
    titles = {
        "fp64": "float64", "fp32": "float32", "fp16": "float16", "bf16": "bfloat16",
        "bfp16": "blocks of 8 that share an exponent (BFP16)", "fp8": "float8",
    }  # fmt: skip
    rows = [
        [titles[name], f"{b.sqnr_db:g} dB", f"{b.row_error:.1g}", f"{b.floor:.1g}"]
        for name, b in BOUNDS.items()
        if name in titles
    ]
    rows.append(["integers, booleans, text", "exact", "exact", "exact"])
    head = ["number format", "SQNR at least", "error in a row at most", "or of the largest value"]
    return table(head, rows)


def schemes_table() -> str:
    """Return every quantization scheme."""
    rows = [[f"`{name}`", scheme.title] for name, scheme in sorted(SCHEMES.items())]
    return table(["scheme", "what it is"], rows)


def operators_page() -> str:
    """Return the operators by target's number format, and how their work is counted."""
    npus = [target for target in all_targets() if target.kind == "npu"]
    formats = sorted({name for target in npus for name in target.formats})
    supported = {
        name: set.union(*(set(t.operators.get(name, ())) for t in npus)) for name in formats
    }
    names = sorted(set.union(*supported.values()))
    matrix = [[name, *("yes" if name in supported[f] else "" for f in formats)] for name in names]
    counting = [
        [f"[{o.name}]({o.specification})", o.domain or "ai.onnx", o.counting]
        for o in sorted(OPERATORS.values(), key=lambda o: (o.domain, o.name))
    ]
    takes = [[f"`{t.name}`", t.title, ", ".join(t.formats), t.source] for t in npus]
    return "\n\n".join(
        [
            "# Operators",
            "Made by `python tools/tables.py`.",
            "## What the NPUs take, by number format",
            table(["target", "chip", "formats", "source"], takes),
            table(["operator", *formats], matrix),
            "## How work is counted",
            "One multiply-accumulate is two operations.",
            table(["operator", "domain", "operations"], counting),
        ]
    )


def fill(text: str, name: str, content: str) -> str:
    """Return `text` with what stands between the marks of `name` replaced."""
    mark = re.compile(rf"(<!-- {name}: [^>]*-->\n).*?(<!-- end -->)", re.DOTALL)
    filled, count = mark.subn(lambda m: f"{m[1]}\n{content}\n\n{m[2]}", text)
    assert count == 1, f"the marks of `{name}` are there {count} times"
    return filled


def documents() -> dict[Path, str]:
    """Return the documents as they should be."""
    targets = ROOT / "docs" / "targets.md"
    text = fill(targets.read_text(encoding="utf-8"), "targets", targets_table())
    text = fill(text, "schemes", schemes_table())
    gpu = ROOT / "docs" / "gpu.md"
    npu = ROOT / "docs" / "npu.md"
    proof = ROOT / "docs" / "proof.md"
    ort = ROOT / "docs" / "onnxruntime.md"
    npu_text = fill(npu.read_text(encoding="utf-8"), "latencies", latency_table())
    return {
        targets: text,
        ROOT / "docs" / "api.md": api_page(table),
        ROOT / "docs" / "cli.md": cli_page(),
        ROOT / "docs" / "operators.md": operators_page() + "\n",
        ROOT / "docs" / "options.md": options_page() + "\n",
        gpu: fill(gpu.read_text(encoding="utf-8"), "gpus", gpus_table()),
        ort: fill(ort.read_text(encoding="utf-8"), "ort-surface", surface_tables(table)),
        npu: fill(npu_text, "errors", error_table()),
        proof: fill(proof.read_text(encoding="utf-8"), "bounds", bounds_table()),
    }


def main() -> int:
    """Write the documents that are not as they should be."""
    for path, text in documents().items():
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")
            sys.stdout.write(f"wrote {path.relative_to(ROOT)}\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
