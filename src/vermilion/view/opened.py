"""What is to be shown, opened: a model file, a compiled bundle, a language model's folder."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path

import onnx_ir as ir

from vermilion.errors import OptionError
from vermilion.ir.cost import ModelCost
from vermilion.ir.load import load_model
from vermilion.ir.numbers import data_type_words, number_format
from vermilion.ir.opset import opset_of
from vermilion.ir.passes.bind_dimensions import Dimensions
from vermilion.ir.passes.pipeline import Simplified, simplify
from vermilion.progress import Progress
from vermilion.runtime.artifact import ArtifactReader, open_artifact
from vermilion.runtime.report import Report, read_report
from vermilion.runtime.session import is_artifact
from vermilion.view.graph import shorter

GENAI_CONFIG = "genai_config.json"


@dataclass(frozen=True)
class Opened:
    """A model and where it came from. `source` is as the file has it, `simplified` after passes.

    `report` and `reader` are those of a compiled bundle, whose model had its passes before.
    """

    path: Path
    label: str
    source: ir.Model
    simplified: Simplified
    reader: ArtifactReader | None = None
    report: Report | None = None
    facts: tuple[tuple[str, str], ...] = ()
    notes: tuple[str, ...] = field(default=())


def open_model(path: Path, dims: Dimensions, progress: Progress) -> Opened:
    """Open a model file, a bundle, or the folder of a language model.

    Raises: VermilionError of the kind that says who can fix it.
    """
    if (path / GENAI_CONFIG).is_file():
        return _language_model(path, dims, progress)
    if path.is_dir() and not (path / "manifest.json").is_file():
        return _folder(path, dims, progress)
    if path.exists() and is_artifact(path):
        return _bundle(path)
    source = load_model(path)
    return Opened(path, path.name, source, simplify(source, dims=dims, progress=progress))


def _folder(path: Path, dims: Dimensions, progress: Progress) -> Opened:
    """Open the one model in a folder."""
    found = sorted(path.glob("*.onnx"))
    if len(found) == 1:
        return open_model(found[0], dims, progress)
    what = f"{len(found)} ONNX files" if found else "no model"
    raise OptionError(
        f"this folder has {what}",
        where=str(path),
        hint="name the `.onnx` file, a `.rai`, a compiled folder, or one with `genai_config.json`",
    )


def _bundle(path: Path) -> Opened:
    reader = open_artifact(path, verify="as read")
    model = reader.model()
    manifest = reader.manifest
    facts = (
        ("compiled for", manifest.target),
        ("precision", str(manifest.options.get("precision", ""))),
        ("compiled", manifest.created),
        ("digest", manifest.digest),
    )
    return Opened(
        path, path.name, model, Simplified(model, ()), reader, read_report(reader), facts
    )  # fmt: skip


def _language_model(path: Path, dims: Dimensions, progress: Progress) -> Opened:
    from vermilion.llm.genai_config import read_genai_config

    config = read_genai_config(path)
    files = config.model_files()
    source = load_model(path / files[0])
    facts = [("language model", config.type)]
    for name in ("num_hidden_layers", "num_attention_heads", "num_key_value_heads", "hidden_size"):
        value = config.decoder.get(name)
        if isinstance(value, int):
            facts.append((name.replace("_", " "), f"{value:,}"))
    notes = (f"{files[0]} is the first of {len(set(files))} stages",) if len(set(files)) > 1 else ()
    simplified = simplify(source, dims=dims, progress=progress)
    return Opened(path, path.name, source, simplified, facts=tuple(facts), notes=notes)


def facts_of(opened: Opened, cost: ModelCost) -> list[list[str]]:
    """Return what is said of a model: what, the words, and the kind of number if it is one."""
    model, source = opened.simplified.model, opened.source
    weights = [
        v.const_value for v in model.graph.initializers.values() if v.const_value is not None
    ]
    size = sum(tensor.nbytes for tensor in weights)
    values = sum(math.prod(tensor.shape.numpy()) for tensor in weights)
    producer = f"{source.producer_name or 'unknown'} {source.producer_version or ''}".strip()
    return [
        ["model", shorter(str(opened.path)), ""],
        ["opset", f"{opset_of(source)}, from {shorter(producer)}", ""],
        ["numbers", f"{number_format(model)} ({data_type_words(model)})", ""],
        ["weights", f"{values:,} values, {size / 1e6:.1f} MB", ""],
        ["operators", f"{len(cost.nodes):,} (in the file: {len(source.graph):,} nodes)", ""],
        ["work", f"{cost.gops:.6g} GOPs{'' if cost.exact else ' at least'}", "counted"],
        *[[what, shorter(value), ""] for what, value in opened.facts if value],
    ]
