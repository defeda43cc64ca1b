"""A blueprint and its weights → what the engine computes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from vermilion.codegen.emit.decoder.weights import LANES
from vermilion.errors import ModelError, UnsupportedError
from vermilion.llm.engine.description import (
    Attention,
    Convolution,
    Description,
    ExpertMatrix,
    Experts,
    Floats,
    Norm,
    Operation,
    Product,
    Rotation,
    RowOperation,
    Rows,
)
from vermilion.llm.engine.matrices import Matrix, Part
from vermilion.llm.source.blueprint import Blueprint, Layer, Tensors
from vermilion.llm.source.rope import Turning
from vermilion.llm.source.stored import halves_of, in_order

_EMBEDDED, _LOGITS = "embedded", "logits"


def describe(blueprint: Blueprint, tensors: Tensors) -> Description:
    """Return the operations of a decoder over its weights.

    Raises: ModelError for weights that are missing or of another shape; UnsupportedError for what
    the kernels cannot compute, and for weights that nothing reads: a model with more to it than is
    known would give other tokens without a word.
    """
    description = _Writer(blueprint, tensors).whole()
    unread = tensors.unread()
    if unread:
        shown = ", ".join(f"`{name}`" for name in unread[:3])
        more = f" and {len(unread) - 3} more" if len(unread) > 3 else ""
        raise UnsupportedError(
            f"it has weights that a `{blueprint.family.gguf}` is not known to have: {shown}{more}",
            where=tensors.where,
            hint="what they do to the tokens is not known here",
        )
    return description


@dataclass
class _Writer:
    blueprint: Blueprint
    tensors: Tensors
    operations: list[Operation] = field(default_factory=list)
    rotations: dict[int, Rotation] = field(default_factory=dict)

    def whole(self) -> Description:
        """Write all layers and the head."""
        b, t = self.blueprint, self.tensors
        embedding = t.embedding("token_embd")
        if embedding.width != b.hidden:
            raise ModelError(
                f"tokens begin with {embedding.width} numbers, and layers have {b.hidden}",
                where=t.where,
            )
        if b.hidden % LANES or b.head_size % LANES:
            raise UnsupportedError(
                f"rows of {b.hidden} and heads of {b.head_size} numbers: the kernels take whole"
                f" vectors of {LANES}",
                where=t.where,
            )
        embedding = replace(embedding, factor=b.embedding_factor)
        stream = self._layers()
        head = t.part("output" if t.has("output") else "token_embd")
        if head.depth != b.hidden:
            raise ModelError(f"the head reads {head.depth} numbers", where=t.where)
        bias = t.floats("output.bias") if t.has("output.bias") else None
        source = Rows(stream, 0, b.hidden)
        self.operations.append(Product("output", source, _LOGITS, Matrix((head,)), bias))
        return Description(
            embedding, _EMBEDDED, tuple(self.operations), source, b.logits_bound,
            head.columns, b.logits_factor,
        )  # fmt: skip

    def _layers(self) -> str:
        """Write the layers and the last norm; return the buffer of the normed rows."""
        b, stream = self.blueprint, _EMBEDDED
        count = len(b.layers)
        norms_before = b.family.places != "after"
        normed = stream
        if norms_before:
            normed = "0 normed"
            self._row("plain", (stream,), "", "0.attn_norm", normed)
        for number, layer in enumerate(b.layers):
            following = f"{number + 1}.attn_norm" if norms_before else ""
            if number + 1 == count:
                following = "output_norm"
            stream, normed = self._layer(number, layer, stream, normed, following)
        return normed

    def _layer(
        self, number: int, layer: Layer, stream: str, normed: str, following: str
    ) -> tuple[str, str]:
        """Write a layer; return the buffers of its rows and of those, normed as what follows."""
        family, name = self.blueprint.family, str(number)
        attend = self._convolve if layer.taps else self._attend
        given = attend(name, layer, normed)
        if family.places != "before":
            given = self._row(
                "plain", (given,), "", f"{name}.attn_post_norm", f"{name} attention normed"
            )
        if family.is_parallel:
            other = self._inner(name, normed)
            stream = self._join(stream, given, "", f"{name} attended")[0]
            return self._join(stream, other, following, f"{name} done")
        own_norm = f"{name}.ffn_norm" if family.places != "after" else ""
        stream, normed = self._join(stream, given, own_norm, f"{name} attended")
        given = self._mixture(name, normed) if layer.is_mixture else self._inner(name, normed)
        if family.places != "before":
            given = self._row(
                "plain", (given,), "", f"{name}.ffn_post_norm", f"{name} inner normed"
            )
        return self._join(stream, given, following, f"{name} done")

    def _join(self, stream: str, given: str, norm: str, name: str) -> tuple[str, str]:
        """Add what a part gave to the rows; return them, and them normed."""
        if not norm:
            self._row("sum", (stream, given), "", "", name)
            return name, name
        self._row("sum", (stream, given), name, norm, f"{name}, normed")
        return name, f"{name}, normed"

    def _row(self, kind: str, inputs: Sequence[str], kept: str, norm: str, output: str) -> str:
        width = self.blueprint.hidden
        factor = self.blueprint.residual_factor if kind == "sum" else 1.0
        own = self._norm(norm, width) if norm else None
        rows = tuple(Rows(one, 0, width) for one in inputs)
        self.operations.append(
            RowOperation(output, kind, rows, kept, own, output, factor)  # type: ignore[arg-type]
        )
        return output

    def _norm(self, name: str, width: int) -> Norm:
        b, t = self.blueprint, self.tensors
        if b.family.has_plain_norms:
            return Norm(np.ones(width, np.float32), b.epsilon, b.family.norm)
        weight = t.floats(name)
        bias = t.floats(f"{name}.bias") if t.has(f"{name}.bias") else None
        if weight.size != width or (bias is not None and bias.size != width):
            raise ModelError(f"`{name}` norms {weight.size} numbers of {width}", where=t.where)
        if bias is not None and b.family.norm == "rms":
            raise UnsupportedError(f"the norm `{name}` adds a bias", where=t.where)
        return Norm(weight + np.float32(b.norm_offset), b.epsilon, b.family.norm, bias)

    # Attention ---------------------------------------------------------------------------------

    def _attend(self, name: str, layer: Layer, normed: str) -> str:
        b = self.blueprint
        size = b.head_size
        counts = {"q": b.heads, "k": b.key_heads, "v": b.key_heads}
        parts = self._separate(name, counts)
        rows = {}
        for kind, count in counts.items():
            part, bias = parts[kind]
            self._check(f"{name}.attn_{kind}", part, bias, b.hidden, count * size)
            if b.has_pairs and layer.turning is not None and kind != "v":
                order = _halves_of_pairs(count, size, b.turned)
                part, bias = in_order(part, order), None if bias is None else bias[order]
            buffer = f"{name} {kind}"
            self._product(f"{name}.attn_{kind}", part, normed, buffer, count * size, bias)
            rows[kind] = Rows(buffer, 0, count * size)
        query, key = (self._normed(name, kind, rows[kind]) for kind in ("q", "k"))
        if layer.turning is not None:
            rotation = self._rotation(layer.turning)
            is_last = b.family.qk_norm == "turned"
            query, key = (
                replace(one, rotation=rotation, is_normed_last=is_last) for one in (query, key)
            )
        output = f"{name} attention"
        self.operations.append(
            Attention(
                output, query, key, rows["v"], output, b.heads, b.key_heads, size, b.scale,
                layer.window, b.score_bound, sinks=self._sinks(name),
            )
        )  # fmt: skip
        return self._plain_product(f"{name}.attn_output", output, b.heads * size, b.hidden)

    def _convolve(self, name: str, layer: Layer, normed: str) -> str:
        """Write a short convolution: gates and values are thirds of one product."""
        width, t = self.blueprint.hidden, self.tensors
        part, bias = self._with_bias(f"{name}.shortconv_in_proj")
        buffer, output = f"{name} gated", f"{name} convolved"
        self._product(f"{name}.shortconv_in_proj", part, normed, buffer, 3 * width, bias)
        taps = t.floats(f"{name}.shortconv_conv", 2)
        if taps.shape != (width, layer.taps):
            raise ModelError(
                f"`{name}.shortconv_conv` is {list(taps.shape)}, and [{width}, {layer.taps}] is"
                " needed",
                where=t.where,
            )
        own = t.floats(f"{name}.shortconv_conv.bias") if bias is not None else None
        before, after, value = (Rows(buffer, at * width, width) for at in range(3))
        # The last of a number's taps is for the position itself.
        newest_first = np.ascontiguousarray(taps.T[::-1])
        self.operations.append(Convolution(output, before, after, value, output, newest_first, own))
        return self._plain_product(f"{name}.shortconv_out_proj", output, width, width)

    def _sinks(self, name: str) -> Floats | None:
        b, t = self.blueprint, self.tensors
        if not b.family.has_sinks:
            return None
        sinks = t.floats(f"{name}.attn_sinks")
        if sinks.size != b.heads:
            raise ModelError(f"{sinks.size} sinks for {b.heads} heads", where=t.where)
        return sinks

    def _separate(self, name: str, counts: dict[str, int]) -> dict[str, tuple[Part, Floats | None]]:
        """Return queries, keys and values with their biases, of one matrix where they are one."""
        t, size = self.tensors, self.blueprint.head_size
        if not t.has(f"{name}.attn_qkv"):
            return {kind: self._with_bias(f"{name}.attn_{kind}") for kind in counts}
        part, bias = self._with_bias(f"{name}.attn_qkv")
        columns = sum(counts.values()) * size
        self._check(f"{name}.attn_qkv", part, bias, self.blueprint.hidden, columns)
        found, first = {}, 0
        for kind, count in counts.items():
            order = np.arange(first, first + count * size)
            found[kind] = in_order(part, order), None if bias is None else bias[order]
            first += count * size
        return found

    def _with_bias(self, name: str) -> tuple[Part, Floats | None]:
        t = self.tensors
        return t.part(name), t.floats(f"{name}.bias") if t.has(f"{name}.bias") else None

    def _normed(self, name: str, kind: str, rows: Rows) -> Rows:
        """Return queries or keys with the norm that they have, if any."""
        b = self.blueprint
        own = f"{name}.attn_{kind}_norm"
        has_none = b.family.qk_norm == "some" and not self.tensors.has(own)
        if not b.family.qk_norm or has_none:
            return rows
        if b.family.qk_norm in ("head", "some", "turned"):
            return Rows(rows.buffer, 0, rows.width, self._norm(own, b.head_size))
        output = f"{rows.buffer} normed"
        norm = self._norm(own, rows.width)
        self.operations.append(RowOperation(output, "plain", (rows,), "", norm, output))
        return Rows(output, 0, rows.width)

    def _rotation(self, turning: Turning) -> Rotation:
        key = id(turning)
        if key not in self.rotations:
            self.rotations[key] = turning.rotation(self.blueprint.context)
        return self.rotations[key]

    # What is inside a layer --------------------------------------------------------------------

    def _inner(self, name: str, normed: str, suffix: str = "") -> str:
        """Write the products of a layer, or of its shared expert, which has a size of its own."""
        b, t = self.blueprint, self.tensors
        last, last_bias = self._with_bias(f"{name}.ffn_down{suffix}")
        inner = last.depth if suffix else b.inner
        up, up_bias = self._with_bias(f"{name}.ffn_up{suffix}")
        gates: list[Rows] = []
        if b.family.is_gated:
            if t.has(f"{name}.ffn_gate{suffix}"):
                gate, gate_bias = self._with_bias(f"{name}.ffn_gate{suffix}")
            else:  # both are one matrix
                both, both_bias = up, up_bias
                self._check(f"{name}.ffn_up{suffix}", both, both_bias, b.hidden, 2 * inner)
                gate, up = halves_of(both)
                gate_bias = None if both_bias is None else both_bias[:inner]
                up_bias = None if both_bias is None else both_bias[inner:]
            gated = f"{name} gate{suffix}"
            self._product(f"{name}.ffn_gate{suffix}", gate, normed, gated, inner, gate_bias)
            gates = [Rows(gated, 0, inner)]
        self._product(f"{name}.ffn_up{suffix}", up, normed, f"{name} up{suffix}", inner, up_bias)
        joined = f"{name} inner{suffix}"
        inputs = (*gates, Rows(f"{name} up{suffix}", 0, inner))
        self.operations.append(RowOperation(joined, b.activation, inputs, "", None, joined))
        output = f"{name}.ffn_down{suffix}"
        self._product(output, last, joined, output, b.hidden, last_bias, inner)
        return output

    def _mixture(self, name: str, normed: str) -> str:
        """Write a mixture of experts: the router, the shared expert if there is one, the others."""
        b, t, mixture = self.blueprint, self.tensors, self.blueprint.mixture
        if mixture is None:
            raise ModelError(f"layer {name} has a router, and the model no experts", where=t.where)
        count = mixture.routing.experts
        scores = self._exact_product(f"{name}.ffn_gate_inp", normed, count)
        shared = share = None
        if t.has(f"{name}.ffn_up_shexp"):
            if t.has(f"{name}.ffn_gate_inp_shexp"):
                share = self._exact_product(f"{name}.ffn_gate_inp_shexp", normed, 1)
            shared = Rows(self._inner(name, normed, "_shexp"), 0, b.hidden)
        bias = None
        if t.has(f"{name}.exp_probs_b.bias"):
            bias = t.floats(f"{name}.exp_probs_b.bias")
            if bias.size != count:
                raise ModelError(f"{bias.size} numbers for {count} experts", where=t.where)
        gate, up, down = (self._experts(f"{name}.ffn_{one}_exps") for one in ("gate", "up", "down"))
        self._check_experts(name, gate, up, down)
        output = f"{name} mixture"
        self.operations.append(
            Experts(
                f"{name}.experts", Rows(normed, 0, b.hidden), scores, output,
                replace(mixture.routing, has_bias=bias is not None), (gate, up), down, mixture.kind,
                None if bias is None else bias.reshape(-1), shared, share,
            )
        )  # fmt: skip
        return output

    def _exact_product(self, name: str, source: str, columns: int) -> Rows:
        """Write a product in float32, whatever others are in: what it gives is compared."""
        part, bias = self._with_bias(name)
        self._product(name, part, source, name, columns, bias, is_exact=True)
        return Rows(name, 0, columns)

    def _experts(self, name: str) -> ExpertMatrix:
        t, mixture = self.tensors, self.blueprint.mixture
        assert mixture is not None, "there are experts"
        parts = t.experts(name, mixture)
        if len({(one.depth, one.columns) for one in parts}) != 1:
            raise ModelError(f"`{name}`: experts have several sizes", where=t.where)
        bias = t.expert_biases(name, mixture)
        if bias is not None and bias.shape != (len(parts), parts[0].columns):
            raise ModelError(f"`{name}` has biases {list(bias.shape)}", where=t.where)
        return ExpertMatrix(tuple(Matrix((one,)) for one in parts), bias)

    def _check_experts(self, name: str, *products: ExpertMatrix) -> None:
        hidden, where = self.blueprint.hidden, self.tensors.where
        gate, up, down = ((one.depth, one.columns) for one in products)
        inner = down[0]
        if (gate, up, down) != ((hidden, inner), (hidden, inner), (inner, hidden)):
            shapes = ", ".join(f"{columns} x {depth}" for depth, columns in (gate, up, down))
            raise ModelError(
                f"the experts of layer {name} are {shapes} for rows of {hidden}", where=where
            )

    def _plain_product(self, name: str, source: str, depth: int, columns: int) -> str:
        part, bias = self._with_bias(name)
        self._product(name, part, source, name, columns, bias, depth)
        return name

    def _product(
        self, name: str, part: Part, source: str, output: str, columns: int,
        bias: Floats | None, depth: int = 0, *, is_exact: bool = False,
    ) -> None:  # fmt: skip
        depth = depth or self.blueprint.hidden
        self._check(name, part, bias, depth, columns)
        rows = Rows(source, 0, depth)
        self.operations.append(
            Product(name, rows, output, Matrix((part,)), bias, is_exact=is_exact)
        )

    def _check(
        self, name: str, part: Part, bias: Floats | None, depth: int, columns: int
    ) -> None:  # fmt: skip
        """Raise ModelError for a matrix, or what is added to its product, of another size."""
        if (part.depth, part.columns) != (depth, columns):
            raise ModelError(
                f"`{name}` is {part.columns} x {part.depth}, and {columns} x {depth} is needed",
                where=self.tensors.where,
            )
        if bias is not None and bias.size != columns:
            raise ModelError(
                f"`{name}.bias` has {bias.size} numbers, and {columns} are needed",
                where=self.tensors.where,
            )


def _halves_of_pairs(heads: int, size: int, turned: int) -> NDArray[np.int64]:
    """Return the order in which numbers that are turned side by side lie half a part apart."""
    own = np.concatenate(
        [np.arange(0, turned, 2), np.arange(1, turned, 2), np.arange(turned, size)]
    )
    order: NDArray[np.int64] = (np.arange(heads)[:, None] * size + own).reshape(-1)
    return order
