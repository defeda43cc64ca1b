"""Which nodes IREE's importer cannot take. What else it refuses shows when the part is compiled."""

from __future__ import annotations

import onnx_ir as ir

from vermilion.backends.base import Claim, ModelFacts
from vermilion.errors import Refusal

# The sizes of their results depend on what they read.
_OPEN_RESULTS = frozenset({"NonZero", "NonMaxSuppression", "Unique", "Compress"})
_NOT_TENSORS = (
    *("SequenceAt", "SequenceConstruct", "SequenceEmpty", "SequenceErase", "SequenceInsert"),
    *("SequenceLength", "SplitToSequence", "ConcatFromSequence", "SequenceMap"),
    *("Optional", "OptionalGetElement", "OptionalHasElement", "StringConcat", "StringNormalizer"),
    *("StringSplit", "RegexFullMatch", "ImageDecoder", "TfIdfVectorizer"),
)
_CONTROL = frozenset({"If", "Loop", "Scan"})


def claim(node: ir.Node, facts: ModelFacts) -> Claim | Refusal:
    """Take a node of the standard domain with fixed sizes."""
    if node.domain not in ("", "ai.onnx"):
        return Refusal(
            f"IREE's importer has no operators of the domain `{node.domain}`",
            "rewrite the node with standard operators",
        )
    if node.op_type in _CONTROL or any(
        attribute.type in (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS)
        for attribute in node.attributes.values()
    ):
        return Refusal(
            f"`{node.op_type}` decides at run time what is computed",
            "export the model with the branch or the number of rounds fixed",
        )
    if node.op_type in _OPEN_RESULTS:
        return Refusal(
            f"the size of what `{node.op_type}` gives depends on its input",
            "keep it behind the network: it runs on the CPU",
        )
    if node.op_type in _NOT_TENSORS:
        return Refusal(f"`{node.op_type}` does not compute on plain tensors")
    if facts.symbolic_dimensions:
        open_sizes = ", ".join(facts.symbolic_dimensions)
        return Refusal(
            f"the program is compiled for fixed shapes; {open_sizes} is open",
            " ".join(f"--dim {name}=1" for name in facts.symbolic_dimensions),
        )
    return Claim()
