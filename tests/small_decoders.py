"""Decoders that run, small enough for tests, with the nodes that the model builder writes."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

HIDDEN, WIDE, VOCABULARY, CONTEXT, LAYERS = 64, 96, 320, 256, 2
HEADS, KEY_HEADS = 4, 2


@dataclass(frozen=True)
class Options:
    """What differs between families. `bits` 32 are plain numbers."""

    bits: Literal[4, 8, 32] = 4
    block: int = 32
    key_block: int = 0  # of the keys' product, where it has another
    has_zeros: bool = False
    is_split: bool = False  # queries, keys and values apart, each turned by a node of its own
    is_tied: bool = False
    has_head_norms: bool = False
    has_bias: bool = False
    has_post_norms: bool = False  # of what attention and the MLP give, as Gemma 2 does
    activation: Literal["silu", "gelu_tanh", "gelu"] = "silu"
    window: int = -1
    softcap: float = 0.0
    logits_bound: float = 0.0
    embedding_factor: float = 1.0
    head_size: int = 16
    turned: int = 16  # numbers of a head
    seed: int = 0


@dataclass
class _Graph:
    options: Options
    random: np.random.Generator
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    weights: list[onnx.TensorProto] = field(default_factory=list)

    def weight(self, name: str, values: NDArray[np.generic]) -> str:
        self.weights.append(numpy_helper.from_array(values, name))
        return name

    def node(self, kind: str, inputs: list[str], outputs: list[str], **attributes: Any) -> str:
        theirs = {"MatMulNBits", "GatherBlockQuantized", "GroupQueryAttention", "RotaryEmbedding",
                  "SkipSimplifiedLayerNormalization"}  # fmt: skip
        domain = "com.microsoft" if kind in theirs else ""
        name = outputs[0]
        self.nodes.append(
            helper.make_node(kind, inputs, outputs, name, domain=domain, **attributes)
        )
        return outputs[0]

    def floats(self, *shape: int, scale: float = 1.0) -> NDArray[np.float32]:
        return (self.random.standard_normal(shape) * scale).astype(np.float32)

    def product(self, name: str, x: str, depth: int, width: int) -> str:
        o = self.options
        if o.bits == 32:
            values = self.floats(depth, width, scale=depth**-0.5)
            return self.node("MatMul", [x, self.weight(f"{name}.w", values)], [f"{name}.y"])
        block = o.key_block if o.key_block and name.endswith(".k") else o.block
        codes, scales, zeros = self.codes(depth, width, block)
        inputs = [x, self.weight(f"{name}.w", codes), self.weight(f"{name}.s", scales)]
        if o.has_zeros:
            inputs.append(self.weight(f"{name}.z", zeros))
        return self.node(
            "MatMulNBits", inputs, [f"{name}.y"], K=depth, N=width, bits=o.bits,
            block_size=block, accuracy_level=4,
        )  # fmt: skip

    def codes(
        self, depth: int, width: int, block: int
    ) -> tuple[NDArray[np.uint8], NDArray[np.float32], NDArray[np.uint8]]:
        o = self.options
        blocks = -(-depth // block)
        codes = self.random.integers(0, 256, (width, blocks, block * o.bits // 8), np.uint8)
        spread = 2.0**o.bits / 3.5  # of uniform codes, about the deviation's inverse
        scales = np.abs(self.floats(width, blocks, scale=0.2) + 1.0) / spread / depth**0.5
        zeros = self.random.integers(0, 256, (width, -(-blocks * o.bits // 8)), np.uint8)
        # About the middle of the range.
        zeros = zeros & 0x11 | 0x66 if o.bits == 4 else zeros // 8 + np.uint8(112)
        return codes, scales.astype(np.float32), zeros.astype(np.uint8)

    def norm(self, name: str, x: str, width: int) -> str:
        weight = self.weight(f"{name}.w", 1.0 + self.floats(width, scale=0.1))
        return self.node(
            "SimplifiedLayerNormalization", [x, weight], [f"{name}.y"], axis=-1, epsilon=1e-5,
            stash_type=1,
        )  # fmt: skip

    def skip_norm(self, name: str, x: str, delta: str) -> tuple[str, str]:
        weight = self.weight(f"{name}.w", 1.0 + self.floats(HIDDEN, scale=0.1))
        outputs = [f"{name}.y", "", "", f"{name}.sum"]
        self.node("SkipSimplifiedLayerNormalization", [x, delta, weight], outputs, epsilon=1e-5)
        return outputs[0], outputs[3]

    def embedding(self) -> str:
        o = self.options
        if o.is_tied and o.bits != 32:
            codes, scales, _ = self.codes(HIDDEN, VOCABULARY, o.block)
            self.weight("head.w", codes)
            self.weight("head.s", scales)
            flat = self.weight("flat", np.array([VOCABULARY, codes[0].size]))
            table = self.node("Reshape", ["head.w", flat], ["table"])
            x = self.node(
                "GatherBlockQuantized", [table, "input_ids", "head.s"], ["embedded"], bits=o.bits,
                block_size=o.block, gather_axis=0, quantize_axis=1,
            )  # fmt: skip
        else:
            table = self.weight("table", self.floats(VOCABULARY, HIDDEN))
            x = self.node("Gather", [table, "input_ids"], ["embedded"])
        if o.embedding_factor != 1.0:
            factor = self.weight("factor", np.array(o.embedding_factor, np.float32))
            x = self.node("Mul", [x, factor], ["scaled"])
        return x

    def head_norm(self, name: str, x: str, width: int) -> str:
        """Norm each head, between two reshapes."""
        shapes = [np.array([0, -1, self.options.head_size]), np.array([0, -1, width])]
        into, back = (
            self.weight(f"{name}.shape{number}", shape) for number, shape in enumerate(shapes)
        )
        heads = self.node("Reshape", [x, into], [f"{name}.heads"])
        return self.node(
            "Reshape", [self.norm(name, heads, self.options.head_size), back], [f"{name}.flat"]
        )  # fmt: skip

    def attention(self, at: str, layer: int, x: str) -> str:
        o = self.options
        sizes = [count * o.head_size for count in (HEADS, KEY_HEADS, KEY_HEADS)]
        if o.is_split:
            q, k, v = (
                self.biased(f"{at}.{name}", self.product(f"{at}.{name}", x, HIDDEN, size), size)
                for name, size in zip("qkv", sizes, strict=True)
            )
            q, k = (
                self.node("RotaryEmbedding", [one, "position_ids", "cos", "sin"], [f"{one}.turned"],
                          interleaved=0)
                for one in (q, k)
            )  # fmt: skip
            sources = [q, k, v]
        else:
            packed = self.product(f"{at}.qkv", x, HIDDEN, sum(sizes))
            sources = [self.biased(f"{at}.qkv", packed, sum(sizes)), "", ""]
            if o.has_head_norms:
                sources = self.normed_heads(at, sources[0], sizes)
        caches = [f"past_key_values.{layer}.{kind}" for kind in ("key", "value")]
        waves = ["", ""] if o.is_split else ["cos", "sin"]
        outputs = [f"{at}.attended", *(f"present.{layer}.{kind}" for kind in ("key", "value"))]
        return self.node(
            "GroupQueryAttention", [*sources, *caches, "lengths", "total", *waves], outputs,
            num_heads=HEADS, kv_num_heads=KEY_HEADS, scale=0.25, local_window_size=o.window,
            softcap=o.softcap, do_rotary=int(not o.is_split), rotary_interleaved=0,
        )  # fmt: skip

    def normed_heads(self, at: str, packed: str, sizes: list[int]) -> list[str]:
        parts = [f"{at}.part{number}" for number in range(3)]
        split = self.weight(f"{at}.sizes", np.array(sizes))
        self.node("Split", [packed, split], parts, axis=-1)
        q = self.head_norm(f"{at}.q_norm", parts[0], sizes[0])
        k = self.head_norm(f"{at}.k_norm", parts[1], sizes[1])
        return [q, k, parts[2]]

    def biased(self, name: str, x: str, width: int) -> str:
        if not self.options.has_bias:
            return x
        bias = self.weight(f"{name}.bias", self.floats(width, scale=0.5))
        return self.node("Add", [x, bias], [f"{name}.biased"])

    def mlp(self, at: str, x: str) -> str:
        gate = self.product(f"{at}.gate", x, HIDDEN, WIDE)
        up = self.product(f"{at}.up", x, HIDDEN, WIDE)
        if self.options.activation == "silu":
            inner = self.node("Sigmoid", [gate], [f"{at}.sigmoid"])
            active = self.node("Mul", [gate, inner], [f"{at}.active"])
        else:
            form = "tanh" if self.options.activation == "gelu_tanh" else "none"
            active = self.node("Gelu", [gate], [f"{at}.active"], approximate=form)
        return self.product(
            f"{at}.down", self.node("Mul", [active, up], [f"{at}.gated"]), WIDE, HIDDEN
        )  # fmt: skip

    def whole(self) -> None:
        o = self.options
        angles = np.arange(CONTEXT)[:, None] / 100.0 ** (np.arange(o.turned // 2) / (o.turned // 2))
        self.weight("cos", np.cos(angles).astype(np.float32))
        self.weight("sin", np.sin(angles).astype(np.float32))
        self.bookkeeping()
        x = self.embedding()
        normed = self.norm("first", x, HIDDEN)
        for layer in range(LAYERS):
            at = f"layer{layer}"
            attended = self.attention(at, layer, normed)
            delta = self.product(f"{at}.o", attended, HEADS * o.head_size, HIDDEN)
            if o.has_post_norms:
                delta = self.norm(f"{at}.post", delta, HIDDEN)
            normed, x = self.skip_norm(f"{at}.middle", x, delta)
            delta = self.mlp(at, normed)
            if o.has_post_norms:
                delta = self.norm(f"{at}.post2", delta, HIDDEN)
            normed, x = self.skip_norm(f"{at}.end", x, delta)
        self.head(normed)

    def bookkeeping(self) -> None:
        """Return the lengths that attention asks for, from the mask."""
        one = self.weight("one", np.array([1]))
        number = self.weight("number", np.array(1))
        self.node("ReduceSum", ["attention_mask", one], ["counted"], keepdims=0)
        self.node("Sub", ["counted", one], ["before"])
        self.node("Cast", ["before"], ["lengths"], to=TensorProto.INT32)
        self.node("Shape", ["attention_mask"], ["shape"])
        self.node("Gather", ["shape", number], ["all"], axis=0)
        self.node("Cast", ["all"], ["total"], to=TensorProto.INT32)

    def head(self, x: str) -> None:
        o = self.options
        if o.is_tied and o.bits != 32:
            logits = self.node(
                "MatMulNBits", [x, "head.w", "head.s"], ["head.y"], K=HIDDEN, N=VOCABULARY,
                bits=o.bits, block_size=o.block, accuracy_level=4,
            )  # fmt: skip
        else:
            logits = self.product("head", x, HIDDEN, VOCABULARY)
        if o.logits_bound:
            bound = self.weight("bound", np.array(o.logits_bound, np.float32))
            divided = self.node("Div", [logits, bound], ["divided"])
            logits = self.node("Mul", [self.node("Tanh", [divided], ["tanh"]), bound], ["bounded"])
        self.node("Cast", [logits], ["logits"], to=TensorProto.FLOAT)


def decoder_model(options: Options) -> onnx.ModelProto:
    """Return a decoder that ONNX Runtime runs."""
    graph = _Graph(options, np.random.default_rng(options.seed))
    graph.whole()

    def info(name: str, kind: int, shape: list[Any]) -> onnx.ValueInfoProto:
        return helper.make_tensor_value_info(name, kind, shape)

    places = [f"{layer}.{kind}" for layer in range(LAYERS) for kind in ("key", "value")]
    inputs = [
        info("input_ids", TensorProto.INT64, ["batch", "tokens"]),
        info("attention_mask", TensorProto.INT64, ["batch", "all"]),
    ]
    if options.is_split:
        inputs.append(info("position_ids", TensorProto.INT64, ["batch", "tokens"]))
    cache = ["batch", KEY_HEADS, "past", options.head_size]
    inputs += [info(f"past_key_values.{place}", TensorProto.FLOAT, cache) for place in places]
    outputs = [info("logits", TensorProto.FLOAT, ["batch", "tokens", VOCABULARY])]
    present = ["batch", KEY_HEADS, "all", options.head_size]
    outputs += [info(f"present.{place}", TensorProto.FLOAT, present) for place in places]
    whole = helper.make_graph(graph.nodes, "main_graph", inputs, outputs, graph.weights)
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(whole, opset_imports=opsets, ir_version=10)


def decoder_folder(folder: Path, options: Options = Options()) -> Path:
    """Write an OGA folder of such a decoder."""
    folder.mkdir(parents=True, exist_ok=True)
    decoder = {
        "session_options": {"log_id": "onnxruntime-genai", "provider_options": []},
        "filename": "model.onnx",
        "head_size": options.head_size,
        "hidden_size": HIDDEN,
        "num_attention_heads": HEADS,
        "num_hidden_layers": LAYERS,
        "num_key_value_heads": KEY_HEADS,
        "inputs": {
            "input_ids": "input_ids",
            "attention_mask": "attention_mask",
            "past_key_names": "past_key_values.%d.key",
            "past_value_names": "past_key_values.%d.value",
        },
        "outputs": {
            "logits": "logits",
            "present_key_names": "present.%d.key",
            "present_value_names": "present.%d.value",
        },
    }
    config = {
        "model": {
            "type": "llama",
            "bos_token_id": 1,
            "eos_token_id": 2,
            "pad_token_id": 2,
            "vocab_size": VOCABULARY,
            "context_length": CONTEXT,
            "decoder": decoder,
        },
        "search": {"max_length": CONTEXT, "past_present_share_buffer": True},
    }
    (folder / "genai_config.json").write_text(json.dumps(config))
    onnx.save(decoder_model(options), folder / "model.onnx")
    return folder


def feeds(options: Options, tokens: NDArray[np.int64]) -> dict[str, NDArray[np.generic]]:
    """Return the inputs of the model for whole sequences from their beginning."""
    batch, count = tokens.shape
    empty = np.zeros((batch, KEY_HEADS, 0, options.head_size), np.float32)
    found: dict[str, NDArray[np.generic]] = {
        "input_ids": tokens,
        "attention_mask": np.ones_like(tokens),
    }
    if options.is_split:
        found["position_ids"] = np.tile(np.arange(count), (batch, 1))
    for layer in range(LAYERS):
        for kind in ("key", "value"):
            found[f"past_key_values.{layer}.{kind}"] = empty
    return found
