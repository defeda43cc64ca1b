"""The experts of a mixture in a Hugging Face folder: a tensor each, or one of all of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from vermilion.errors import ModelError
from vermilion.llm.engine.embedding import Floats
from vermilion.llm.engine.matrices import BlockMatrix, Part
from vermilion.llm.source.mixtures import Mixture
from vermilion.llm.source.safetensors import SafeTensor
from vermilion.llm.source.stored import floats_of, halves_of, part_of

# Where the experts of a layer are, and how each calls a matrix.
_ROOTS = ("mlp.experts", "block_sparse_moe.experts", "feed_forward.experts")
_EACH = {
    "ffn_gate_exps": ("gate_proj", "w1"),
    "ffn_up_exps": ("up_proj", "w3"),
    "ffn_down_exps": ("down_proj", "w2"),
}
# One tensor for all experts: of what gates and what is gated together, and of the last product.
_BOTH = (
    "mlp.experts.gate_up_proj", "block_sparse_moe.input_linear.weight",
    "feed_forward.experts.gate_up_proj",
)  # fmt: skip
_LAST = (
    "mlp.experts.down_proj", "block_sparse_moe.output_linear.weight",
    "feed_forward.experts.down_proj",
)  # fmt: skip
_MXFP4_BLOCK = 32


@dataclass(frozen=True)
class FolderExperts:
    """The experts of a layer, by the tensors of a folder.

    `part` returns a matrix that is there by itself; `asked` takes the names of what is read.
    """

    layer: str
    tensors: Mapping[str, SafeTensor]
    where: str
    part: Callable[[str], Part | None]
    asked: set[str]

    def parts(self, own: str, mixture: Mixture) -> tuple[Part, ...]:
        """Return a matrix of every expert.

        Raises: ModelError for those that are missing or of another shape.
        """
        count = mixture.routing.experts
        for root in _ROOTS:
            for name in _EACH[own]:
                base = f"{self.layer}.{root}"
                if self.part(f"{base}.0.{name}") is not None:
                    return tuple(self._one(f"{base}.{n}.{name}") for n in range(count))
        for name in _LAST if own == "ffn_down_exps" else _BOTH:
            parts = list(self._stacked(f"{self.layer}.{name}", mixture))
            if not parts:
                continue
            if own == "ffn_down_exps":
                return tuple(parts)
            side = int(own == "ffn_up_exps")
            interleaved = mixture.is_interleaved
            return tuple(halves_of(one, is_interleaved=interleaved)[side] for one in parts)
        raise ModelError(
            f"there are no experts in `{self.layer}`",
            where=self.where,
            hint="download the folder's files again",
        )

    def _one(self, base: str) -> Part:
        found = self.part(base)
        if found is None:
            raise ModelError(
                f"there is no tensor `{base}.weight`",
                where=self.where,
                hint="download the folder's files again",
            )
        return found

    def _stacked(self, name: str, mixture: Mixture) -> Iterator[Part]:
        """Yield the matrices of a tensor of all experts; none where there is no such tensor."""
        blocks, scales = (self.tensors.get(f"{name}_{kind}") for kind in ("blocks", "scales"))
        tensor = self.tensors.get(name)
        where = f"{self.where}, tensor `{name}`"
        count = mixture.routing.experts
        if blocks is not None and scales is not None:
            self.asked.update((f"{name}_blocks", f"{name}_scales"))
            yield from _microscaled(blocks, scales, count, f"{where[:-1]}_blocks`")
        elif tensor is not None:
            self.asked.add(name)
            if len(tensor.shape) != 3 or tensor.shape[0] != count:
                raise _misshapen(tensor.shape, count, where)
            rows = tensor.rows
            for number in range(count):
                own = rows[number]
                yield (
                    part_of(tensor.type, own, where, is_turned=True)
                    if mixture.is_interleaved
                    else part_of(tensor.type, own, where)
                )

    def biases(self, own: str, mixture: Mixture) -> Floats | None:
        """Return what is added to the products of all experts, if anything: (experts, columns)."""
        base = _LAST[0] if own == "ffn_down_exps" else _BOTH[0]
        name = f"{self.layer}.{base}_bias"
        tensor = self.tensors.get(name)
        if tensor is None:
            return None
        self.asked.add(name)
        found = floats_of(tensor.type, tensor.rows, f"{self.where}, tensor `{name}`", 2)
        if own == "ffn_down_exps":
            return found
        side = int(own == "ffn_up_exps")
        if mixture.is_interleaved:
            return np.ascontiguousarray(found[:, side::2])
        half = found.shape[1] // 2
        return np.ascontiguousarray(found[:, side * half : (side + 1) * half])


def _microscaled(
    blocks: SafeTensor, scales: SafeTensor, count: int, where: str
) -> Iterator[BlockMatrix]:
    """Yield matrices in MXFP4: 32 codes of a row in 16 bytes, the low half first, and exponents."""
    codes, exponents = blocks.shape, scales.shape
    is_sound = (
        len(codes) == 4
        and codes[0] == count
        and codes[3] == _MXFP4_BLOCK // 2
        and exponents == codes[:3]
        and blocks.type == scales.type == "U8"
    )
    if not is_sound:
        raise ModelError(
            f"blocks {list(codes)} with scales {list(exponents)} for {count} experts",
            where=where,
            hint="download the folder's files again",
        )
    shaped: NDArray[np.uint8] = blocks.data.reshape(codes)
    powers = scales.data.reshape(exponents)
    depth = codes[2] * _MXFP4_BLOCK
    for number in range(count):
        yield BlockMatrix(
            depth, 4, _MXFP4_BLOCK, shaped[number], powers[number], None, is_microscaled=True
        )


def _misshapen(shape: tuple[int, ...], count: int, where: str) -> ModelError:
    return ModelError(
        f"a tensor {list(shape)} for {count} experts",
        where=where,
        hint="download the folder's files again",
    )
