"""The operators that a decoder needs, with their shapes, and what each costs.

The graphs are those of onnxruntime-genai's model builder 0.18 (`models/builders/base.py`): for
the CPU, Q, K and V are one product and attention rotates by itself; for DirectML, which AMD's
hybrid recipe starts from, they are three products and two rotations.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Literal, get_args

from vermilion.llm.architecture import FAMILIES, Architecture, Family, Quantization

Graph = Literal["cpu", "dml"]


@dataclass(frozen=True)
class Operator:
    """One operator at one shape, and how often a step of the model runs it.

    `shape` names sizes (`K`, `N`, `heads` …). `weights` says how a product's are stored, None for
    one in plain floats. `on_last_token` marks what a prefill needs only once.
    """

    op_type: str
    roles: tuple[str, ...]
    shape: Mapping[str, int]
    count: int
    weights: Quantization | None = None
    on_last_token: bool = False

    @property
    def key(self) -> tuple[object, ...]:
        """What two operators that one compiled kernel serves have in common."""
        return (self.op_type, tuple(sorted(self.shape.items())), self.weights)

    def shape_words(self) -> str:
        """Return the shape for people: `K 576 N 960`."""
        return " ".join(f"{name} {size}" for name, size in self.shape.items())


@dataclass(frozen=True)
class Step:
    """One run of the model: `tokens` new ones, `context` of them all in the cache afterwards."""

    tokens: int
    context: int
    activation_bytes: int = 4


@dataclass(frozen=True)
class Cost:
    """What one step asks of a device, in 10^9 operations and in bytes moved."""

    gops: float
    bytes: int


def operators_of(
    architecture: Architecture, quantization: Quantization | None, graph: Graph = "cpu"
) -> tuple[Operator, ...]:
    """Return the distinct operators of a decoder, in the order of its graph."""
    return merged(list(_operators(architecture, quantization, graph)))


def merged(found: Sequence[Operator]) -> tuple[Operator, ...]:
    """Return each distinct operator once, with the roles and counts of all that are alike."""
    kept: dict[tuple[object, ...], Operator] = {}
    for one in found:
        key = (*one.key, one.on_last_token)
        other = kept.get(key)
        if other is None:
            kept[key] = one
            continue
        roles = tuple(dict.fromkeys((*other.roles, *one.roles)))
        count = other.count + one.count
        kept[key] = Operator(one.op_type, roles, one.shape, count, one.weights, one.on_last_token)
    return tuple(kept.values())


def _operators(
    a: Architecture, quantization: Quantization | None, graph: Graph
) -> Iterator[Operator]:
    family = FAMILIES.get(a.family, Family())
    layers = a.layers
    yield Operator(
        "Embedding",
        ("embed_tokens",),
        {"vocabulary": a.vocabulary, "hidden": a.hidden},
        1,
        quantization if a.has_tied_embeddings else None,
    )
    norms = layers * family.norms + 1
    yield Operator("RMSNorm", ("layer norms", "final norm"), {"hidden": a.hidden}, norms)
    query, key_value = a.heads * a.head_size, a.kv_heads * a.head_size
    if graph == "cpu":
        yield _product("qkv_proj", a.hidden, query + 2 * key_value, layers, quantization)
    else:
        yield _product("q_proj", a.hidden, query, layers, quantization)
        for role in ("k_proj", "v_proj"):
            yield _product(role, a.hidden, key_value, layers, quantization)
    if family.has_qk_norm:
        for role, heads in (("q_norm", a.heads), ("k_norm", a.kv_heads)):
            shape = {"hidden": a.head_size, "heads": heads}
            yield Operator("RMSNorm", (role,), shape, layers)
    if graph == "dml":
        for role, heads in (("q_rotary", a.heads), ("k_rotary", a.kv_heads)):
            yield Operator(
                "RotaryEmbedding", (role,), {"heads": heads, "head_size": a.head_size}, layers
            )
    yield attention(a.heads, a.kv_heads, a.head_size, layers, rotates=graph == "cpu")
    yield _product("o_proj", query, a.hidden, layers, quantization)
    for role in ("gate_proj", "up_proj"):
        yield _product(role, a.hidden, a.intermediate, layers, quantization)
    yield Operator(f"{family.activation}Mul", ("mlp",), {"width": a.intermediate}, layers)
    yield _product("down_proj", a.intermediate, a.hidden, layers, quantization)
    yield _product("lm_head", a.hidden, a.vocabulary, 1, quantization, last=True)


def attention(heads: int, kv_heads: int, head_size: int, count: int, *, rotates: bool) -> Operator:
    """Return grouped-query attention over a cache of keys and values."""
    shape = {"heads": heads, "kv_heads": kv_heads, "head_size": head_size, "rotary": int(rotates)}
    return Operator("GroupQueryAttention", ("attention",), shape, count)


def _product(
    role: str, depth: int, width: int, count: int, weights: Quantization | None, last: bool = False
) -> Operator:
    kind = "MatMulNBits" if weights is not None else "MatMul"
    return Operator(kind, (role,), {"K": depth, "N": width}, count, weights, last)


def cost(operator: Operator, step: Step) -> Cost:
    """Return what all runs of one operator cost in a step.

    Operations: a multiplication and an addition are two; a norm is counted as 4 a value, a
    rotation as 3, an activation with its product as 5. Bytes: weights, what is read and written,
    and the cache, each once.
    """
    tokens = 1 if operator.on_last_token else step.tokens
    size = operator.shape.get
    width = step.activation_bytes
    if operator.op_type in ("MatMulNBits", "MatMul"):
        depth, columns = size("K", 0), size("N", 0)
        stored = (
            operator.weights.stored_bytes(depth, columns)
            if operator.weights
            else depth * columns * width
        )
        operations = 2 * tokens * depth * columns
        moved = stored + tokens * (depth + columns) * width
    elif operator.op_type == "GroupQueryAttention":
        operations, moved = _attention_cost(operator.shape, step)
    elif operator.op_type == "Embedding":
        hidden = size("hidden", 0)
        row = operator.weights.stored_bytes(hidden, 1) if operator.weights else hidden * width
        operations, moved = 0, tokens * (row + hidden * width)
    else:
        values = tokens * _values(operator.shape)
        each, arrays = {"RMSNorm": (4, 2), "RotaryEmbedding": (3, 2)}.get(operator.op_type, (5, 3))
        operations, moved = each * values, arrays * values * width
    return Cost(operations * operator.count / 1e9, moved * operator.count)


def _values(shape: Mapping[str, int]) -> int:
    if "head_size" in shape:
        return shape["heads"] * shape["head_size"]
    return shape.get("hidden", shape.get("width", 0)) * shape.get("heads", 1)


def _attention_cost(shape: Mapping[str, int], step: Step) -> tuple[int, int]:
    """Causal: a token sees itself and what came before it, so a prompt costs half a square."""
    before = step.context - step.tokens
    pairs = step.tokens * before + step.tokens * (step.tokens + 1) // 2
    operations = 4 * shape["heads"] * shape["head_size"] * pairs
    cache = 2 * shape["kv_heads"] * shape["head_size"] * step.context
    ends = 2 * step.tokens * shape["heads"] * shape["head_size"]
    return operations, (cache + ends) * step.activation_bytes


# Shapes that models which AMD ships for the NPU have: their operators are in the runtime.
# Which models: https://ryzenai.docs.amd.com/en/1.5/hybrid_oga.html, "Pre-optimized Models", and the
# collection huggingface.co/collections/amd/ryzenai-14-llm-hybrid-models, whose names say how they
# are quantized (AWQ, unsigned 4 bits, groups of 128, some with a head in groups of 32). Of that
# list, those are here whose measures were read in public sources (pytorch/torchtune,
# `torchtune/models/*/_model_builders.py`, for all but two): the distilled Qwen models have the
# sizes of Qwen 2.5, which they were trained from; Mistral v0.3 and ChatGLM 3 are as their
# `config.json` is quoted in the tests of other engines (TensorRT-LLM's, for the second). The
# runtime's own list is not published (one release names its length, 870 shapes:
# github.com/amd/RyzenAI-SW/issues/225), so a shape that is not here may still be in it; one that is
# here has run.
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
