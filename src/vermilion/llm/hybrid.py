"""`model_generate --hybrid`: an OGA folder → one that computes prompts one way, tokens another.

```
genai_config.json    both stages over one cache of keys and values
prefill.onnx         the prompt's graph: the same weights, logits of the last token only
decode/              the model as it came, a folder that opens by itself: products in 4 bits
operators/           machine code for prompts, from plugins: what the engine compiles otherwise
dd_plugins/          the operators of those plugins that the model needs
hybrid.json          what was looked up, where it was found, and the digests of `operators/`
```
"""

from __future__ import annotations

import json
import shutil
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import get_args

import numpy as np
import onnx_ir as ir

from vermilion.errors import ModelError, OptionError
from vermilion.ir.load import load_model
from vermilion.llm.genai_config import NAME, GenaiConfig, read_genai_config
from vermilion.llm.hybrid_config import (
    DECODE,
    DECODE_FILE,
    FORMAT,
    OPERATORS,
    PREFILL_FILE,
    REPORT,
    HybridEra,
    check_source,
    decode_data,
    hybrid_data,
    programs_digest,
)
from vermilion.llm.plugins.archive import write_plugin
from vermilion.llm.plugins.find import (
    DEFAULT_FOLDER,
    Found,
    Trace,
    missing_error,
    open_plugins,
    plugin_root,
)
from vermilion.llm.plugins.programs import Programs, architecture_of, write_programs
from vermilion.llm.plugins.wanted import Needs, OperatorRequest, needs_of
from vermilion.store.signature import signature_of

_LOGITS = "logits"


def write_prompt_graph(
    source: Path, target: Path, weights: str
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Write a decoder's graph with its head on the last token; give the names of its ends.

    The weights are not written: `weights` is the folder in which the external data lies, relative
    to that of `target`. A graph that was pruned already is written as it is.

    Raises: ModelError for a graph that has no logits of (batch, tokens, vocabulary).
    """
    model = load_model(source)
    graph = model.graph
    logits = next((value for value in graph.outputs if value.name == _LOGITS), None)
    if logits is None or logits.shape is None or len(logits.shape) != 3:
        raise ModelError(
            "the graph gives no logits of (batch, tokens, vocabulary)",
            where=str(source),
            hint="build it with `vermilion llm build`",
        )
    if logits.shape[1] != 1:
        _prune(model, logits, str(source))
    proto = ir.to_proto(model)
    for tensor in proto.graph.initializer:
        for entry in tensor.external_data:
            if entry.key == "location":
                entry.value = f"{weights}/{entry.value}"
    target.write_bytes(proto.SerializeToString())
    inputs = tuple(
        str(value.name) for value in graph.inputs if value.name not in graph.initializers
    )
    return inputs, tuple(str(value.name) for value in graph.outputs)


def _prune(model: ir.Model, logits: ir.Value, where: str) -> None:
    """Take the last token's row before the head: Gather(axis 1, [-1]) keeps three dimensions."""
    head = logits.producer()
    # What stands between the head's product and the result computes each value by itself.
    while head is not None and head.op_type in (
        "Cast",
        "Softcap",
        "Tanh",
        "Div",
        "Mul",
        "Identity",
    ):
        head = next((v.producer() for v in head.inputs if v is not None and v.producer()), None)
    if head is None or head.op_type not in ("MatMulNBits", "MatMul"):
        raise ModelError(
            "the logits come from no matrix product", where=where, hint="build the folder again"
        )
    rows = head.inputs[0]
    assert rows is not None, "a product has a left side"
    name = "vermilion.last_token"
    index = ir.Value(
        name=name,
        const_value=ir.tensor(np.array([-1], np.int64), name=name),
        shape=ir.Shape([1]),
        type=ir.TensorType(ir.DataType.INT64),
    )
    model.graph.register_initializer(index)
    gather = ir.node("Gather", [rows, index], {"axis": 1}, name="vermilion.last_token/Gather")
    gather.outputs[0].name = f"{name}.row"
    gather.outputs[0].type = rows.type
    model.graph.insert_before(head, gather)
    head.replace_input_with(0, gather.outputs[0])
    # Shapes after it have one token now; written ones that say otherwise are taken off.
    for node in model.graph:
        if node is head or _is_between(node, head, logits):
            for value in node.outputs:
                value.shape = _one_token(value.shape)


def _is_between(node: ir.Node, head: ir.Node, logits: ir.Value) -> bool:
    """Say whether a node lies on the way from the head to the logits."""
    at = logits.producer()
    while at is not None and at is not head:
        if at is node:
            return True
        at = next((v.producer() for v in at.inputs if v is not None and v.producer()), None)
    return False


def _one_token(shape: ir.Shape | None) -> ir.Shape | None:
    if shape is None or len(shape) != 3:
        return None
    return ir.Shape([shape[0], 1, shape[2]])


STOCK_NAME = "genai_config.stock.json"
_PLUGIN = "operators"


@dataclass(frozen=True)
class HybridRequest:
    """A folder of the model builder, where the hybrid goes, and how prompts are computed."""

    source: Path
    output: Path
    operators: OperatorRequest
    era: HybridEra = "stock"

    def __post_init__(self) -> None:
        if self.era not in get_args(HybridEra):
            raise OptionError(
                f"`--era {self.era}`", hint=f"one of {', '.join(get_args(HybridEra))}"
            )


@dataclass(frozen=True)
class HybridParts:
    """What plugins had: an object for each operator, and the engine's programs, where any has."""

    found: tuple[Found, ...]
    programs: Programs | None


@dataclass(frozen=True)
class Hybrid:
    """What was written."""

    folder: Path
    needs: Needs
    found: tuple[Found, ...]
    has_programs: bool
    plugins: tuple[str, ...]
    seconds: float


def generate_hybrid(request: HybridRequest, trace: Trace) -> Hybrid:
    """Write the hybrid folder; one that fails leaves nothing.

    Raises: OptionError, ModelError for a source that is no folder of the model builder;
    ArtifactError for a plugin that is damaged, and for operators that no plugin has.
    """
    begin = time.perf_counter()
    config = read_genai_config(request.source)
    check_source(config)
    output = _new_place(request.output)
    needs = needs_of(config.folder, request.operators)
    root = plugin_root()
    plugins = open_plugins(root, trace)
    for one in needs.asked:
        if not one.identities:
            operator = one.row.operator
            trace(f"{operator.op_type} {operator.shape_words()}: {one.reason}")
    found, missing = plugins.find_all(needs.identities, trace)
    if missing:
        raise missing_error(missing, root, command_for(request))
    programs = plugins.programs(architecture_of(needs.model, request.operators.number), trace)
    parts = HybridParts(tuple(found), programs)
    try:
        with tempfile.TemporaryDirectory(prefix=f".{output.name}.", dir=output.parent) as name:
            new = Path(name) / "new"
            new.mkdir()
            _write(new, config, request, needs, parts)
            if output.is_dir():
                output.rmdir()  # it was empty
            new.rename(output)
    except OSError as error:
        raise OptionError(
            f"the folder cannot be written: {error.strerror or error}", where=str(output)
        ) from error
    names = tuple(dict.fromkeys(one.plugin.path.name for one in found))
    seconds = time.perf_counter() - begin
    return Hybrid(output, needs, parts.found, programs is not None, names, seconds)


def command_for(request: HybridRequest) -> str:
    """Return the command that compiles what this request needs."""
    operators = request.operators
    words = [
        *("vermilion onnx_utils vaiml --model-dir", str(request.source)),
        *("--plugin_name", request.source.name or "plugin"),
        *("--compile --ops_type", operators.number),
    ]
    if operators.targets != ("cpu",):
        words += ["--target", ",".join(operators.targets)]
    if operators.context != OperatorRequest().context:
        words += ["--context_length", str(operators.context)]
    return " ".join(words)


def _new_place(output: Path) -> Path:
    place = output.absolute()
    if place.exists() and (not place.is_dir() or any(place.iterdir())):
        raise OptionError(
            "the output is there already", where=str(output), hint="name a new folder, or remove it"
        )
    if not place.parent.is_dir():
        raise OptionError("the output's folder does not exist", where=str(place.parent))
    return place


def _write(
    new: Path,
    config: GenaiConfig,
    request: HybridRequest,
    needs: Needs,
    parts: HybridParts,
) -> None:
    (file,) = config.model_files()
    decode = new / DECODE
    decode.mkdir()
    for path in sorted(config.folder.iterdir()):
        if not path.is_file() or path.name in (file, REPORT):
            continue
        # Never a second name for the same file: readers refuse weights that have several.
        shutil.copyfile(path, decode / path.name)
        if path.suffix in (".json", ".jinja", ".txt", ".model") and path.name != NAME:
            shutil.copyfile(path, new / path.name)
    shutil.copyfile(config.folder / file, new / DECODE_FILE)
    _write_json(decode / NAME, decode_data(config))
    inputs, outputs = write_prompt_graph(config.folder / file, new / PREFILL_FILE, DECODE)
    _write_json(new / NAME, hybrid_data(config, inputs, outputs, request.era))
    if request.era != "stock":
        # Public builds reject the vendor's older keys, and look for its library at the newer ones.
        _write_json(new / STOCK_NAME, hybrid_data(config, inputs, outputs, "stock"))
    programs = () if parts.programs is None else (parts.programs,)
    if parts.found:
        objects = [(one.identity, one.data) for one in parts.found]
        write_plugin(new / DEFAULT_FOLDER / f"{_PLUGIN}.zip", objects, programs)
    for one in programs:
        write_programs(one, new / OPERATORS)
    _write_json(new / REPORT, _report(config, request, needs, parts))


def _report(
    config: GenaiConfig, request: HybridRequest, needs: Needs, parts: HybridParts
) -> Mapping[str, object]:
    files = {} if parts.programs is None else parts.programs.files
    digests = {name: sha256(data).hexdigest() for name, data in sorted(files.items())}
    return {
        "format": FORMAT,
        "source": config.folder.name,
        "era": request.era,
        "number": request.operators.number,
        "targets": list(request.operators.targets),
        "operators": [
            {
                "op_type": one.row.operator.op_type,
                "shape": dict(one.row.operator.shape),
                "roles": list(one.row.operator.roles),
                "prefill": request.operators.number if one.identities else "",
                "decode": _decoded(one.row.operator.weights),
                "reason": one.reason,
            }
            for one in needs.asked
        ],
        "compiled": [
            {**one.identity.as_json(), "key": one.entry.key, "plugin": one.plugin.path.name}
            for one in parts.found
        ],
        "programs": digests,
        "seal": signature_of(programs_digest(digests)),
    }


def _decoded(weights: object) -> str:
    from vermilion.llm.architecture import Quantization

    return f"int{weights.bits}" if isinstance(weights, Quantization) else ""


def _write_json(path: Path, data: Mapping[str, object]) -> None:
    path.write_text(json.dumps(data, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
