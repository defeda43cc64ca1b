"""The number formats in which products are computed, as rows of a table."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from vermilion.codegen.isa import Isa
from vermilion.codegen.tensor import Storage

NumericName = Literal["f32", "bf16", "bf16_wide", "u8s8", "u8s8_wide"]


@dataclass(frozen=True)
class Numeric:
    """How a product multiplies and accumulates.

    `group` consecutive values of the reduction are multiplied and summed in each 32-bit lane, by
    `parts` instructions, each with a vector of weights of its own.
    """

    name: NumericName
    group: int
    activation: Storage
    weight: Storage
    weight_type: str  # numpy's name of a packed weight
    accumulator: str  # LLVM element type
    parts: int = 1

    @property
    def activation_bytes(self) -> int:
        """Bytes of one activation."""
        return {"f32": 4, "bf16": 2}.get(self.activation, 1)

    def has_odd_value(self, run: int) -> bool:
        """Say whether the last pair of floats of a run is half a pair; integers are read whole."""
        return self.accumulator == "float" and run % self.group == 1

    def to_weights(self, weights: NDArray[np.generic]) -> NDArray[np.generic]:
        """Round weights to what is packed."""
        if self.weight == "bf16":
            return weights.astype(ml_dtypes.bfloat16).view(np.uint16)
        return weights.astype(self.weight_type)


NUMERICS: dict[NumericName, Numeric] = {
    n.name: n
    for n in (
        Numeric("f32", 1, "f32", "f32", "float32", "float"),
        # vdpbf16ps: pairs of bfloat16, products and sums in float32.
        Numeric("bf16", 2, "bf16", "bf16", "uint16", "float"),
        # float32 times bfloat16, of which a lane has two: widened by a shift and a mask.
        Numeric("bf16_wide", 2, "f32", "bf16", "uint16", "float", parts=2),
        # vpdpbusd: quads of u8×s8, exact in int32.
        Numeric("u8s8", 4, "u8", "s8", "int8", "i32"),
        # vpmaddwd on values widened to 16 bits, exact in int32: for processors without VNNI, whose
        # own 8-bit multiply-add saturates. Of four values, first the even ones, then the odd.
        Numeric("u8s8_wide", 4, "u8", "s16", "int16", "i32", parts=2),
    )
}


def numeric_for(storage: Storage, isa: Isa) -> Numeric | None:
    """Return how products over activations of a storage type are computed, None if they are not."""
    if storage == "f32":
        return NUMERICS["f32"]
    if storage == "bf16":
        return NUMERICS["bf16"] if isa.has_bf16 else None
    if storage == "u8":
        return integer_numeric(isa)
    return None


def integer_numeric(isa: Isa) -> Numeric:
    """Return how products of 8-bit integers are computed, which they are everywhere."""
    return NUMERICS["u8s8" if isa.has_vnni else "u8s8_wide"]


def multiplied_storage(storage: Storage, isa: Isa) -> Storage:
    """Return the type in which a product reads floats: float32 where it has no other."""
    return "f32" if numeric_for(storage, isa) is None else storage


def stored_weights(weights: NDArray[np.generic], storage: Storage) -> NDArray[np.generic]:
    """Return constant weights with the bits that they have beside activations of this storage.

    Beside bfloat16 they are rounded to it on every processor: to one with products of bfloat16 they
    must be, and another gives the same numbers.
    """
    if storage != "bf16":
        return weights
    return weights.astype(ml_dtypes.bfloat16).astype(np.float32)
