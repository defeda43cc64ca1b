"""Which nodes the NPUs take: the vendor's operator table, and what it does not say.

Sources: Ryzen AI documentation 1.8, ops_support.rst (the table), modelrun.rst, relnotes.rst; and
the issues of github.com/amd/RyzenAI-SW named beside each rule.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import onnx_ir as ir

from vermilion.backends.base import Claim, ModelFacts
from vermilion.errors import Refusal
from vermilion.hardware.targets.target import Target
from vermilion.ir.attributes import text
from vermilion.ir.opset import constant_of, is_operator

# Which column of the vendor's operator table a model's number format is looked up in. Float models
# are compiled as bfloat16 (Ryzen AI documentation, model_quantization.rst).
_COLUMN = {
    "fp32": "bf16",
    "fp16": "bf16",
    "bf16": "bf16",
    "xint8": "xint8",
    "a8w8": "a8w8",
    "a16w8": "a16w8",
    "int8": "a8w8",  # QLinearConv and QLinearMatMul stand there; ConvInteger stands nowhere
}

_RESIZE_OPSET = 11  # Resize of opset 10 is refused: issues 164, 318

# What `--fix` turns into supported operators, and into which.
_FIXABLE: Mapping[str, str] = {"PRelu": "Relu, Mul and Sub", "Sum": "Add"}

# What the table has and what has failed all the same: compiled, but with a warning in the plan.
CAUTIONS: Mapping[str, str] = {
    "LSTM": "LSTM is documented, and Silero VAD, which has one, ends the process that loads it"
    " (https://github.com/amd/RyzenAI-SW/issues/394): here it is compiled in a child process",
}

_QDQ = ("QuantizeLinear", "DequantizeLinear")
# What may stand between an attention's Softmax and its two products.
_BETWEEN = (*_QDQ, "Add", "Cast", "Div", "Dropout", "Identity", "Mul", "Reshape", "Transpose")
_REACH = 6


def column_of(number_format: str) -> str | None:
    """Return the operator-table column for a model's number format, None where there is none."""
    return _COLUMN.get(number_format)


def claim(node: ir.Node, facts: ModelFacts, target: Target) -> Claim | Refusal:
    """Say whether the vendor's provider would take this node, and if not, why."""
    for rule in _RULES:
        refusal = rule(node, facts, target)
        if refusal is not None:
            return refusal
    return Claim()


def _whole_model(node: ir.Node, facts: ModelFacts, target: Target) -> Refusal | None:
    """Refuse every node for what the model is as a whole."""
    column = column_of(facts.number_format)
    if column is None or column not in target.formats:
        return Refusal(
            f"{target.name} takes {', '.join(target.formats)}; this model is {facts.number_format}",
            "quantize it first: `vermilion quantize MODEL --scheme xint8 --calib DATA`",
        )
    if facts.number_format == "bf16":
        # https://github.com/onnxsim/onnxsim/pull/1404; issue 172.
        return Refusal(
            f"{target.name}'s compiler refuses tensors of the ONNX type bfloat16",
            "give it the float32 model: it is compiled as bfloat16",
        )
    if facts.symbolic_dimensions:
        names = ", ".join(facts.symbolic_dimensions)
        return Refusal(
            f"{target.name} needs fixed shapes; {names} is dynamic",
            f"fix it: `{facts.bind}`",
        )
    limits = target.limits
    if facts.convolutions < limits.min_convolutions:
        return Refusal(
            f"{target.name} takes models with at least {limits.min_convolutions} convolutions; "
            f"this one has {facts.convolutions}",
            "such a model is little work; let the CPU run it",
        )
    return None


def _batch(node: ir.Node, facts: ModelFacts, target: Target) -> Refusal | None:
    """Refuse a node that computes several entries of a batch where only one is computed.

    Source: issue 401: on Phoenix the entries after the first are left unwritten, without an error.
    """
    most = target.limits.max_batch
    if most is None or facts.batch is None or facts.batch <= most:
        return None
    flowing = [v for v in [*node.inputs, *node.outputs] if v is not None and _flows(v)]
    if flowing and all(_leading(value) not in (None, facts.batch) for value in flowing):
        return None
    return Refusal(
        f"{target.name} computes {most} entry of a batch; this model has {facts.batch}",
        "use batch 1 and run once an entry, or `--fix`, which unrolls the batch",
    )


def _flows(value: ir.Value) -> bool:
    return not value.is_initializer() and not is_operator(value.producer(), "Constant")


def _leading(value: ir.Value) -> int | None:
    """Return the first size, 1 of a scalar; None where it is not known."""
    if value.shape is None:
        return None
    size = value.shape[0] if len(value.shape) else 1
    return size if isinstance(size, int) else None


def _table(node: ir.Node, facts: ModelFacts, target: Target) -> Refusal | None:
    """Refuse what the vendor's table has not in this number format."""
    column = column_of(facts.number_format) or ""
    if node.domain not in ("", "ai.onnx"):
        return Refusal(
            f"`{node.domain}::{node.op_type}` is not a standard ONNX operator",
            "export the model with standard operators",
        )
    if node.op_type in target.operators[column]:
        return None
    return Refusal(
        f"`{node.op_type}` is not supported in {column} by {target.name}",
        _instead(node.op_type, column, target.operators),
    )


def _instead(op_type: str, column: str, operators: Mapping[str, frozenset[str]]) -> str:
    if op_type in _FIXABLE:
        return f"`--fix` writes it as {_FIXABLE[op_type]}"
    others = [name for name in sorted(operators) if name != column and op_type in operators[name]]
    if others:
        return f"it is supported in {', '.join(others)}"
    return "replace it by supported operators where you export the model, or let the CPU run it"


def _resize(node: ir.Node, facts: ModelFacts, target: Target) -> Refusal | None:
    """Refuse the forms of Resize that send a whole model to the CPU: issues 164, 318."""
    if not is_operator(node, "Resize"):
        return None
    if facts.opset < _RESIZE_OPSET:
        return Refusal("Resize of opset 10 is not supported", "convert the model to opset 17")
    mode = text(node, "mode", "nearest")
    if mode == "cubic":
        return Refusal("Resize is supported in the modes nearest and linear, not cubic")
    if text(node, "coordinate_transformation_mode", "half_pixel") == "tf_crop_and_resize":
        return Refusal("Resize that crops is not supported", "crop with Slice before it")
    scales = node.inputs[2] if len(node.inputs) > 2 else None
    if scales is None or scales.name == "":
        known = node.inputs[3] if len(node.inputs) > 3 else None
        if known is None or constant_of(known) is None:
            return Refusal(
                "Resize to a size that is computed is not supported",
                "export the model with fixed sizes, or bind its dimensions with `--dim`",
            )
        return _resized_axes(node)
    tensor = constant_of(scales)
    if tensor is None:
        return Refusal(
            "Resize by scales that are computed is not supported",
            "export the model with fixed scales",
        )
    return _resized_axes(node)


def _resized_axes(node: ir.Node) -> Refusal | None:
    source = node.inputs[0]
    before = source.shape if source is not None else None
    after = node.outputs[0].shape
    if before is None or after is None or len(before) != 4:
        return None
    if before[0] == after[0] and before[1] == after[1]:
        return None
    return Refusal(
        "Resize of other axes than height and width is not supported (`scale should have two"
        " dims`)",
        "put the channels second: NCHW",
    )


def _padding(node: ir.Node, facts: ModelFacts, target: Target) -> Refusal | None:
    if not is_operator(node, "Pad") or len(node.inputs) < 2:
        return None
    if constant_of(node.inputs[1]) is not None:
        return None
    return Refusal(
        "Pad by amounts that are computed is not supported",
        "bind the model's dimensions with `--dim`, so that they become constants",
    )


def _attention(node: ir.Node, facts: ModelFacts, target: Target) -> Refusal | None:
    """Refuse attention in INT8: vision transformers in XINT8 ran on the CPU, issue 208."""
    if column_of(facts.number_format) == "bf16" or not is_operator(node, "MatMul"):
        return None
    if any(value is not None and _is_weight(value) for value in node.inputs[:2]):
        return None
    near = any(v is not None and _comes_from_softmax(v, _REACH) for v in node.inputs[:2])
    if not near and not _goes_to_softmax(node.outputs[0], _REACH):
        return None
    return Refusal(
        f"attention is not taken in {facts.number_format}",
        "transformers run in BF16: compile the float model"
        if "bf16" in target.formats
        else "this chip runs convolutional networks; let the CPU run it",
    )


def _is_weight(value: ir.Value) -> bool:
    producer = value.producer()
    if is_operator(producer, *_QDQ) and producer is not None and producer.inputs[0] is not None:
        return _is_weight(producer.inputs[0])
    return not _flows(value)


def _comes_from_softmax(value: ir.Value, reach: int) -> bool:
    producer = value.producer()
    if producer is None or reach == 0:
        return False
    if is_operator(producer, "Softmax"):
        return True
    return is_operator(producer, *_BETWEEN) and any(
        v is not None and _flows(v) and _comes_from_softmax(v, reach - 1) for v in producer.inputs
    )


def _goes_to_softmax(value: ir.Value, reach: int) -> bool:
    if reach == 0:
        return False
    for reader in value.consumers():
        if is_operator(reader, "Softmax"):
            return True
        if is_operator(reader, *_BETWEEN) and _goes_to_softmax(reader.outputs[0], reach - 1):
            return True
    return False


def _edge_of_quantized(node: ir.Node, facts: ModelFacts, target: Target) -> Refusal | None:
    """Keep the outermost Q and DQ on the CPU.

    Source: the vendor's own summary of a quantized ResNet-50 v1 offloads 491 of 493 operators, and
    its compiler logs say `Standalone (de)quantizeLinear is not supported`.
    """
    if node.op_type == "QuantizeLinear":
        source = node.inputs[0]
        if source is not None and source.is_graph_input():
            return Refusal(
                "quantizing the model's input happens before the device",
                "feed integers, or take it as it is: it is little work",
            )
    if node.op_type == "DequantizeLinear":
        output = node.outputs[0]
        if output.is_graph_output() and not output.uses():
            return Refusal(
                "dequantizing the model's output happens after the device",
                "take it as it is: it is little work",
            )
    return None


_RULES: tuple[Callable[[ir.Node, ModelFacts, Target], Refusal | None], ...] = (
    _whole_model,
    _batch,
    _table,
    _resize,
    _padding,
    _attention,
    _edge_of_quantized,
)
