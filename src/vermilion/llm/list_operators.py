"""`llm ops`: what a model's device must be able to do, from whatever describes the model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from vermilion.errors import ModelError, OptionError
from vermilion.llm.architecture import Quantization, architecture_of_config, architecture_of_gguf
from vermilion.llm.gguf import is_gguf, read_gguf
from vermilion.llm.operators import (
    Cost,
    Graph,
    Operator,
    Step,
    Verdict,
    cost,
    operators_of,
    verdict,
)

_HINT = "give a folder with `genai_config.json`, a `config.json` or its folder, or a `.gguf` file"


@dataclass(frozen=True)
class Wanted:
    """For what the operators are listed. `quantization` None: what the model says, or the default.

    Units: `prompt` and `context` in tokens.
    """

    prompt: int = 512
    context: int = 0  # the cache at a decode step; 0: the prompt and one token
    quantization: Quantization | None = None
    graph: Graph = "cpu"

    def __post_init__(self) -> None:
        if self.prompt < 1 or self.context < 0:
            raise OptionError("a prompt has at least one token, and a context no negative number")


@dataclass(frozen=True)
class Row:
    """One operator with its costs in both phases, for all its runs in a step."""

    operator: Operator
    prefill: Cost
    decode: Cost
    verdict: Verdict


@dataclass(frozen=True)
class OperatorList:
    """Everything that `llm ops` tells."""

    source: Path
    read_from: str
    family: str
    layers: int
    context: int
    prefill: Step
    decode: Step
    rows: tuple[Row, ...]
    other_nodes: Mapping[str, int] = field(default_factory=dict)

    @property
    def missing(self) -> tuple[Row, ...]:
        """The operators that must be compiled: no shipped model has them."""
        return tuple(row for row in self.rows if not row.verdict.is_known)


def list_operators(path: Path, wanted: Wanted) -> OperatorList:
    """Return the operators of an OGA folder, a `config.json` or a GGUF file.

    Raises: OptionError, ModelError, UnsupportedError.
    """
    if not path.exists():
        raise OptionError("no such file or folder", where=str(path), hint=_HINT)
    if path.is_dir():
        if (path / "genai_config.json").is_file():
            return _from_folder(path, wanted)
        if (path / "config.json").is_file():
            return _from_config(path / "config.json", wanted)
        raise ModelError("this folder holds no language model", where=str(path), hint=_HINT)
    if path.name == "genai_config.json":
        return _from_folder(path.parent, wanted)
    if path.suffix.lower() == ".json":
        return _from_config(path, wanted)
    if path.suffix.lower() == ".gguf" or is_gguf(path):
        measures = architecture_of_gguf(read_gguf(path))
        operators = operators_of(measures, _stored(wanted, None), wanted.graph)
        found = (measures.family, measures.layers, measures.context)
        return _listed(path, "GGUF header", found, operators, wanted)
    raise ModelError("this file is no language model", where=str(path), hint=_HINT)


def _from_config(path: Path, wanted: Wanted) -> OperatorList:
    measures, stated = architecture_of_config(path)
    operators = operators_of(measures, _stored(wanted, stated), wanted.graph)
    found = (measures.family, measures.layers, measures.context)
    return _listed(path, "config.json", found, operators, wanted)


def _stored(wanted: Wanted, stated: Quantization | None) -> Quantization:
    """Return how the weights will be stored: scales are as wide as the graph's activations."""
    chosen = wanted.quantization or stated or Quantization()
    return replace(chosen, scale_bytes=2 if wanted.graph == "dml" else 4)


def _from_folder(folder: Path, wanted: Wanted) -> OperatorList:
    from vermilion.ir.load import load_model
    from vermilion.llm.genai_config import read_genai_config
    from vermilion.llm.graph_operators import operators_of_graph

    config = read_genai_config(folder)
    files = config.model_files()
    file = folder / files[0]
    read_from = files[0]
    if len(set(files)) > 1:
        read_from += f", the first of {len(files)} stages"
    graph = operators_of_graph(load_model(file), config.head_size())
    found = (config.type, graph.layers, config.context_length())
    listed = _listed(folder, read_from, found, graph.operators, wanted, graph.activation_bytes)
    return OperatorList(**{**vars(listed), "other_nodes": graph.other_nodes})


def _listed(
    source: Path,
    read_from: str,
    found: tuple[str, int, int],
    operators: tuple[Operator, ...],
    wanted: Wanted,
    activation_bytes: int = 4,
) -> OperatorList:
    family, layers, context = found
    at = wanted.context or min(wanted.prompt + 1, max(context, wanted.prompt))
    if max(at, wanted.prompt) > context:
        raise OptionError(
            f"{max(at, wanted.prompt):,} tokens are over the model's context of {context:,}",
            where=str(source),
            hint="ask for a shorter prompt or context",
        )
    # DirectML's graphs compute in half precision; the CPU's do not.
    width = 2 if wanted.graph == "dml" else activation_bytes
    prefill = Step(wanted.prompt, wanted.prompt, width)
    decode = Step(1, at, width)
    rows = tuple(Row(one, cost(one, prefill), cost(one, decode), verdict(one)) for one in operators)
    return OperatorList(source, read_from, family, layers, context, prefill, decode, rows)
