"""Shapes that models which AMD ships for the NPU have: their operators are in the runtime.

Which models: https://ryzenai.docs.amd.com/en/1.5/hybrid_oga.html, "Pre-optimized Models", and the
collection huggingface.co/collections/amd/ryzenai-14-llm-hybrid-models, whose names say how they
are quantized (AWQ, unsigned 4 bits, groups of 128, some with a head in groups of 32). Of that list,
those are here whose measures were read in public sources (pytorch/torchtune, `torchtune/models/*/
_model_builders.py`, for all but two): the distilled Qwen models have the sizes of Qwen 2.5, which
they were trained from; Mistral v0.3 and ChatGLM 3 are as their `config.json` is quoted in the tests
of other engines (TensorRT-LLM's, for the second). The runtime's own list is not published (one
release names its length, 870 shapes: github.com/amd/RyzenAI-SW/issues/225), so a shape that is not
here may still be in it; one that is here has run.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import get_args

from vermilion.llm.architecture import Architecture
from vermilion.llm.operators import Graph, Operator, operators_of
from vermilion.llm.quantization import Quantization

SOURCE = "https://ryzenai.docs.amd.com/en/1.5/hybrid_oga.html"
_GROUPS = (128,)
_HEAD_GROUPS = (32, 128)

# Name, family, hidden, intermediate, layers, heads, KV heads, head size, vocabulary, context, tied.
_ROWS: tuple[tuple[str, str, int, int, int, int, int, int, int, int, bool], ...] = (
    ("Llama-2-7b", "llama", 4096, 11008, 32, 32, 32, 128, 32000, 4096, False),
    ("CodeLlama-7b-instruct", "llama", 4096, 11008, 32, 32, 32, 128, 32016, 16384, False),
    ("Llama-3-8B", "llama", 4096, 14336, 32, 32, 8, 128, 128256, 8192, False),
    ("Llama-3.1-8B", "llama", 4096, 14336, 32, 32, 8, 128, 128256, 131072, False),
    ("Llama-3.2-1B", "llama", 2048, 8192, 16, 32, 8, 64, 128256, 131072, True),
    ("Llama-3.2-3B", "llama", 3072, 8192, 28, 24, 8, 128, 128256, 131072, True),
    ("DeepSeek-R1-Distill-Llama-8B", "llama", 4096, 14336, 32, 32, 8, 128, 128256, 131072, False),
    ("Mistral-7B-v0.1", "mistral", 4096, 14336, 32, 32, 8, 128, 32000, 32768, False),
    ("Mistral-7B-v0.3", "mistral", 4096, 14336, 32, 32, 8, 128, 32768, 32768, False),
    ("Phi-3-mini-4k-instruct", "phi3", 3072, 8192, 32, 32, 32, 96, 32064, 4096, False),
    ("DeepSeek-R1-Distill-Qwen-1.5B", "qwen2", 1536, 8960, 28, 12, 2, 128, 151936, 131072, False),
    ("DeepSeek-R1-Distill-Qwen-7B", "qwen2", 3584, 18944, 28, 28, 4, 128, 152064, 131072, False),
    ("chatglm3-6b", "chatglm", 4096, 13696, 28, 32, 2, 128, 65024, 8192, False),
)


@dataclass(frozen=True)
class Verdict:
    """Whether a shipped model has this operator, which ones, and what else decided.

    The embedding is looked up on the CPU: AMD's passes leave it there (amd/Quark,
    contrib/onnx_utils, the strategy `hybrid_llm.yaml`).
    """

    is_known: bool
    models: tuple[str, ...] = ()
    reason: str = ""


def shipped_models() -> tuple[tuple[str, Architecture], ...]:
    """Return the shipped models by name."""
    return tuple((row[0], Architecture(*row[1:])) for row in _ROWS)


def verdict(operator: Operator) -> Verdict:
    """Say which shipped models have an operator of this shape."""
    if operator.op_type == "Embedding":
        return Verdict(True, reason="stays on the CPU")
    same = tuple(name for name, shipped in _shipped_operators() if _alike(shipped, operator))
    if not same:
        return Verdict(False, reason="no shipped model has this shape")
    if operator.op_type == "MatMul":
        return Verdict(False, same, "shipped models have this shape with 4-bit weights")
    if operator.weights is None:
        return Verdict(True, same)
    bits, block = operator.weights.bits, operator.weights.block
    groups = _HEAD_GROUPS if operator.roles == ("lm_head",) else _GROUPS
    if bits != 4 or block not in groups:
        words = " or ".join(map(str, groups))
        return Verdict(
            False, same, f"shipped models have this shape with 4 bits, groups of {words}"
        )
    return Verdict(True, same)


def _alike(shipped: Operator, operator: Operator) -> bool:
    kinds = {"MatMul": "MatMulNBits"}
    if shipped.op_type != kinds.get(operator.op_type, operator.op_type):
        return False
    ignored = {"rotary"}  # shipped graphs rotate apart, and fused after AMD's passes
    mine = {k: v for k, v in operator.shape.items() if k not in ignored}
    theirs = {k: v for k, v in shipped.shape.items() if k not in ignored}
    return mine == theirs


@cache
def _shipped_operators() -> list[tuple[str, Operator]]:
    weights = Quantization(4, 128, is_symmetric=False)
    return [
        (name, operator)
        for name, measures in shipped_models()
        for graph in get_args(Graph)
        for operator in operators_of(measures, weights, graph)
    ]
