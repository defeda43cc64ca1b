"""From an OGA folder to a decoder on ONNX Runtime."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from vermilion.errors import ModelError, UnsupportedError
from vermilion.ir.element_types import numpy_type
from vermilion.ir.execute import open_session
from vermilion.ir.load import load_model
from vermilion.llm.genai_config import GenaiConfig, is_there, leads_out, session_options
from vermilion.llm.ort_decoder import FIRST_POSITION, CacheShape, Names, OrtDecoder, Stage

# The names that onnxruntime-genai takes where the configuration gives none.
# Source: `Config::Defaults` in its `src/config.h`.
_DEFAULT_NAMES: Mapping[str, str] = {
    "input_ids": "input_ids",
    "attention_mask": "attention_mask",
    "position_ids": "position_ids",
    "past_key_names": "past_key_values.%d.key",
    "past_value_names": "past_key_values.%d.value",
    "present_key_names": "present.%d.key",
    "present_value_names": "present.%d.value",
    "logits": "logits",
}


def open_ort_decoder(config: GenaiConfig, *, threads: int = 0) -> OrtDecoder:
    """Open a folder's graph, or the two graphs of a `decoder-pipeline`.

    Raises: ModelError for a damaged folder; UnsupportedError for a graph of another kind.
    """
    names = Names(
        tokens=_name(config, "input_ids"),
        mask=_name(config, "attention_mask"),
        positions=_name(config, "position_ids"),
        logits=_name(config, "logits"),
    )
    pairs = _cache_names(config)
    config.model_files()  # says so where there is none, or one leads out
    rows = [stage for _, stage in config.stages() if isinstance(stage.get("filename"), str)]
    models = [_load(config, str(stage["filename"]), pairs) for stage in rows]
    least = max(_widest_window(model) for model in models)
    stages = tuple(
        _stage(config, stage, model, names, threads)
        for stage, model in zip(rows, models, strict=True)
    )
    caches = CacheShape(
        pairs,
        config.measure("num_key_value_heads"),
        config.head_size(),
        _cache_type(config, stages, pairs),
        least_capacity=least,
    )
    vocabulary = config.model.get("vocab_size")
    if not isinstance(vocabulary, int) or isinstance(vocabulary, bool) or vocabulary < 2:
        raise ModelError(f"`model.vocab_size` is {vocabulary!r}", where=config.where)
    return OrtDecoder(stages, names, caches, vocabulary, config.context_length())


def _name(config: GenaiConfig, key: str) -> str:
    for part in ("inputs", "outputs"):
        given = config.decoder.get(part)
        if isinstance(given, dict) and isinstance(given.get(key), str):
            return str(given[key])
    return _DEFAULT_NAMES[key]


def _cache_names(config: GenaiConfig) -> tuple[tuple[str, str], ...]:
    return tuple(
        (
            _name(config, f"past_{kind}_names") % layer,
            _name(config, f"present_{kind}_names") % layer,
        )
        for layer in range(config.measure("num_hidden_layers"))
        for kind in ("key", "value")
    )


def _load(config: GenaiConfig, file: str, pairs: Sequence[tuple[str, str]]) -> ir.Model:
    if leads_out(file) or not is_there(config.folder, file):
        raise ModelError(
            f"`{file}` is not in the folder",
            where=config.where,
            hint="copy it there, or build the folder again with `vermilion llm build`",
        )
    model = load_model(config.folder / file)
    _check_caches(model, pairs, str(config.folder / file))
    return model


def _widest_window(model: ir.Model) -> int:
    """Return the widest window of local attention, 1 where every layer sees all."""
    windows = (node.attributes.get_int("local_window_size", -1) for node in model.graph)
    return max(1, *(window for window in windows if window is not None), 1)


def _stage(
    config: GenaiConfig,
    stage: Mapping[str, object],
    model: ir.Model,
    names: Names,
    threads: int,
) -> Stage:
    where = str(config.folder / str(stage["filename"]))
    keep_last_logits(model, names.logits)
    try:
        session = open_session(model, threads=threads or _own_threads(config))
    except ValueError as error:  # how onnx_ir refuses weights in a file with several links
        raise ModelError(
            f"the weights cannot be read: {error}",
            where=where,
            hint="copy the folder instead of linking its files",
        ) from error
    types: dict[str, np.dtype[Any]] = {}
    for value in session.get_inputs():
        dtype = numpy_type(value.type)
        if dtype is None:
            raise UnsupportedError(
                f"`{value.name}` is a {value.type}, which is not fed here",
                where=where,
                hint="`--engine onnxruntime-genai` runs what it can",
            )
        types[value.name] = dtype
    return Stage(
        session,
        types,
        on_prompt=stage.get("run_on_prompt") is not False,
        on_token=stage.get("run_on_token_gen") is not False,
    )


def _own_threads(config: GenaiConfig) -> int:
    """Return the threads that the folder asks for, 0 where it does not."""
    for _, options in session_options(config):
        asked = options.get("intra_op_num_threads")
        if isinstance(asked, int) and not isinstance(asked, bool) and asked > 0:
            return asked
    return 0


def _check_caches(model: ir.Model, pairs: Sequence[tuple[str, str]], where: str) -> None:
    """Hold the graph to the one form that can append in place.

    Raises: UnsupportedError.
    """
    inputs = {value.name for value in model.graph.inputs}
    outputs = {value.name: value for value in model.graph.outputs}
    for past, present in pairs:
        if past not in inputs or present not in outputs:
            missing = past if past not in inputs else present
            raise UnsupportedError(
                f"the graph has no `{missing}`",
                where=where,
                hint="is it a decoder, and is `genai_config.json` its own?",
            )
        maker = outputs[present].producer()
        if maker is None or maker.op_type != "GroupQueryAttention":
            raise UnsupportedError(
                f"`{present}` does not come from GroupQueryAttention: this cache cannot stay in one"
                " place",
                where=where,
                hint="`--engine onnxruntime-genai` runs it",
            )


def _cache_type(
    config: GenaiConfig, stages: Sequence[Stage], pairs: Sequence[tuple[str, str]]
) -> np.dtype[Any]:
    found = {stage.types[past] for stage in stages for past, _ in pairs}
    if len(found) != 1:
        raise UnsupportedError(
            f"the caches are of {len(found)} types",
            where=config.where,
            hint="build the folder again",
        )
    return found.pop()


# What may stand between the head and the logits: each element of the output is of its own input.
_ELEMENTWISE = frozenset(("Cast", "Div", "Identity", "Mul", "Tanh"))
_HEADS = frozenset(("MatMul", "MatMulNBits"))


def keep_last_logits(model: ir.Model, logits: str) -> bool:
    """Cut the head's input down to the positions from `FIRST_POSITION` on; say whether it fired.

    Before → after: `MatMul(x, W)` → `MatMul(Slice(x, FIRST_POSITION, …, axis 1), W)`, for the
    product that makes the logits. A graph that ends in another way, or that was built for the
    last position only, stays as it is.
    """
    output = next((value for value in model.graph.outputs if value.name == logits), None)
    after = _after_head(output)
    if not after:
        return False
    head = after[-1]
    hidden = head.inputs[0]
    if hidden is None or _is_cut(hidden):
        return False
    first = ir.Value(
        name=FIRST_POSITION, shape=ir.Shape([1]), type=ir.TensorType(ir.DataType.INT64)
    )
    end = _constant(model, "vermilion.end", np.iinfo(np.int64).max)
    axis = _constant(model, "vermilion.axis", 1)
    cut = ir.node("Slice", [hidden, first, end, axis], name="vermilion.last")
    cut.outputs[0].name = "vermilion.last_hidden"
    model.graph.inputs.append(first)
    model.graph.insert_before(head, cut)
    head.replace_input_with(0, cut.outputs[0])
    for node in after:
        # The declared number of positions is that of the prompt, which no longer holds.
        value = node.outputs[0]
        if value.shape is not None and len(value.shape) == 3:
            batch, _, width = value.shape
            value.shape = ir.Shape([batch, "vermilion.positions", width])
    return True


def _after_head(output: ir.Value | None) -> list[ir.Node]:
    """Return the nodes from the logits up to the product that makes them, which is the last."""
    nodes: list[ir.Node] = []
    node = output.producer() if output is not None else None
    while node is not None:
        nodes.append(node)
        if node.op_type in _HEADS:
            return nodes
        made = [value for value in node.inputs if value is not None and _is_made(value)]
        node = made[0].producer() if node.op_type in _ELEMENTWISE and len(made) == 1 else None
    return []


def _is_made(value: ir.Value) -> bool:
    node = value.producer()
    return node is not None and node.op_type != "Constant"


def _is_cut(hidden: ir.Value) -> bool:
    """Say whether the builder has cut it already (`prune_lm_head`), by a Gather or Slice."""
    node = hidden.producer()
    while node is not None and node.op_type in ("Unsqueeze", "Reshape", "Cast"):
        first = node.inputs[0]
        node = first.producer() if first is not None else None
    return node is not None and node.op_type in ("Gather", "GatherND", "Slice")


def _constant(model: ir.Model, name: str, number: int) -> ir.Value:
    tensor = ir.tensor(np.array([number], np.int64), name=name)
    value = ir.Value(
        name=name,
        shape=ir.Shape([1]),
        type=ir.TensorType(ir.DataType.INT64),
        const_value=tensor,
    )
    model.graph.initializers[name] = value
    return value
