"""An operator's code on real numbers: weights packed, activations in the operator's format."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from vermilion.codegen.emit.product import pack_weights
from vermilion.codegen.isa import isa_of
from vermilion.codegen.numeric import NUMERICS, NumericName
from vermilion.hardware.targets.find import find_target
from vermilion.llm.plugins.identity import Identity, Number, parse_number
from vermilion.llm.plugins.kernels import Kernels, empty, roomy
from vermilion.llm.plugins.program import Packing, Product, product_program
from vermilion.quantize.blocks import round_to

Float32 = NDArray[np.float32]

_ZERO_POINT = 128


@dataclass(frozen=True)
class PackedWeights:
    """A layer's weights in an operator's order; int8 also has where its sums begin, and scales."""

    panels: NDArray[Any]
    initial: NDArray[np.int32] | None = None
    column_scale: Float32 | None = None


class LoadedOperator:
    """A product that is ready to run, for any weights of its shape."""

    def __init__(self, identity: Identity, data: bytes) -> None:
        """Load the object code.

        Raises: DeviceError for a chip that this machine is not; ArtifactError for code that is
        not this operator's.
        """
        self.identity = identity
        self._number = number_of(identity)
        program = product_program(
            size_of(identity), self._number, isa_of(find_target(identity.target))
        )
        self._packing = program.packing
        (self._step,) = program.steps
        self._kernels = Kernels(identity, data, (self._step.function,))

    def pack(self, weights: Float32) -> PackedWeights:
        """Return a layer's weights (N, K) as the code reads them."""
        numeric = NUMERICS[_numeric(self._packing)]
        if self._number == "int8":
            return self._pack_integers(weights)
        rounded = round_to(weights, self._number, axis=1)
        return PackedWeights(self._panels(rounded, numeric.name))

    def multiply(self, activations: Float32, weights: PackedWeights) -> Float32:
        """Return activations (rows, K) times the weights: (rows, N)."""
        rows = self.identity.rows
        count = activations.shape[0]
        assert count <= rows, f"{count} rows in an operator for {rows}"
        padded = np.zeros((rows, activations.shape[1]), np.float32)
        padded[:count] = activations
        if self._number == "int8":
            inputs = self._integers(padded, weights)
        else:
            values = round_to(padded, self._number, axis=1)
            is_short = NUMERICS[_numeric(self._packing)].activation == "bf16"
            left = values.astype(ml_dtypes.bfloat16) if is_short else values
            inputs = {"left": left}
        result: Float32 = empty((rows, self.identity.shape["N"]), np.float32)
        held = {name: roomy(array) for name, array in inputs.items()}
        held |= {"panels": weights.panels, "result": result}
        arguments = [held[view.buffer.name] for view in self._step.arguments]
        self._kernels.call(self._step.function, arguments, self._step.spec.units)
        return result[:count]

    def _panels(self, weights: NDArray[Any], numeric: NumericName) -> NDArray[Any]:
        columns, depth = weights.shape
        made = pack_weights(
            np.ascontiguousarray(weights).reshape(columns, 1, 1, depth),
            NUMERICS[numeric], self._packing.vectors, self._packing.lanes,
        )  # fmt: skip
        return roomy(made)

    def _pack_integers(self, weights: Float32) -> PackedWeights:
        """Round each column to 8 bits by its largest weight."""
        largest = np.abs(weights).max(axis=1)
        scale = np.where(largest > 0, largest / 127, 1).astype(np.float32)
        integers = np.rint(weights / scale[:, None]).astype(np.int32)
        initial = (-_ZERO_POINT * integers.sum(axis=1)).astype(np.int32)
        return PackedWeights(self._panels(integers, _numeric(self._packing)), initial, scale)

    def _integers(self, values: Float32, weights: PackedWeights) -> dict[str, NDArray[Any]]:
        """Round each token to 8 bits by its largest value."""
        largest = np.abs(values).max(axis=1)
        scale = np.where(largest > 0, largest / 127, 1).astype(np.float32)
        left = (np.rint(values / scale[:, None]) + _ZERO_POINT).astype(np.uint8)
        assert weights.initial is not None, "packed by this operator"
        assert weights.column_scale is not None, "packed by this operator"
        return {
            "left": left,
            "initial": weights.initial,
            "column_scale": weights.column_scale,
            "row_scale": scale,
        }


def number_of(identity: Identity) -> Number:
    """Return the number format of a prompt's product."""
    return parse_number(identity.number)


def size_of(identity: Identity) -> Product:
    """Return the sizes of a product."""
    return Product(identity.rows, identity.shape["K"], identity.shape["N"])


def _numeric(packing: Packing) -> NumericName:
    return next(name for name in NUMERICS if name == packing.numeric)
