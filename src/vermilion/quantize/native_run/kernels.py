"""The kernels of a network that is calibrated: sizes are arguments, so that a few serve all of it.

Channels lie last and an image's border is in memory, so that at each tap of a convolution a run
of neighbours is contiguous: a convolution is a matrix product that reads its left side in place.

    for each block of channels, for each tile of pixels:
        sums[pixel][vector] = 0
        for each tap, for each pair of the run:
            sums[pixel][vector] += pair at the pixel × pairs of weights, one a channel
        results = bounded(sums + bias + residual)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from vermilion.codegen.emit.arithmetic import Arithmetic
from vermilion.codegen.emit.builder import Function, Module, Slot
from vermilion.codegen.emit.packed_weights import pack_weights
from vermilion.codegen.emit.register_tile import RegisterTile, Side
from vermilion.codegen.emit.rows import for_vectors
from vermilion.codegen.emit.values import Value
from vermilion.codegen.numeric import NUMERICS
from vermilion.quantize.native_code import LANES, compiled, new_module, wide_isa

PIXEL_WORDS = 3
"""What is known of a pixel: byte where it reads, element where it writes float32, and bfloat16."""

ARGUMENTS: dict[str, str] = {
    "input": "ptr",  # bfloat16, with its border
    "weights": "ptr",  # as `pack` lays them
    "bias": "ptr",  # float32, one a lane
    "masks": "ptr",  # 16 bits a vector: which lanes are channels
    "taps": "ptr",  # bytes from the pixel's first one
    "pixels": "ptr",
    "pixel_count": "i64",
    "tap_count": "i64",
    "steps": "i64",  # of a run
    "blocks": "i64",
    "residual": "ptr",  # float32, or null
    "sums": "ptr",  # where the sums with bias go alone, or null
    "results": "ptr",  # float32, or null
    "narrow": "ptr",  # the results as bfloat16, or null
    "lowest": "i64",  # bits of a float32
    "highest": "i64",
}
"""64 bits each, in this order."""

_OPTIONAL = {"residual", "sums", "results", "narrow"}
_VECTOR_BYTES = 4 * LANES
_PIXEL_BYTES = 8 * PIXEL_WORDS


@dataclass(frozen=True)
class Kernel:
    """A kernel that keeps `vectors` × `pixels` vectors of sums in registers.

    A product reads pairs and multiplies them with pairs of every channel. `channelwise`, each
    channel reads itself alone: one number, multiplied in float32.
    """

    name: str
    vectors: int
    pixels: int
    channelwise: bool = False

    @property
    def step_bytes(self) -> int:
        """Size of the weights that one step reads: pairs of bfloat16, or float32."""
        return self.vectors * _VECTOR_BYTES


# 24 sums, 4 weights and a pair fill the 32 registers; a pixel has a pointer, of which 8 fit.
PRODUCTS = {
    vectors: Kernel(f"product_of_{vectors * LANES}", vectors, pixels)
    for vectors, pixels in ((4, 6), (3, 8), (2, 8), (1, 8))
}
"""By vectors of channels; a network's blocks have as many as the first, and its last one fewer."""

CHANNELWISE = Kernel("channelwise", 2, 6, channelwise=True)

_BLOCK_VECTORS = max(PRODUCTS)


class _KernelWriter:
    """Writes one kernel."""

    def __init__(self, module: Module, kernel: Kernel) -> None:
        self.kernel = kernel
        self.f = f = Function(module, kernel.name, [("arguments", "ptr")], internal=False)
        self.arithmetic = Arithmetic(f, LANES)
        self.of = {name: self._argument(name) for name in ARGUMENTS if name not in _OPTIONAL}
        self.lowest, self.highest = (
            self.arithmetic.splat(
                f.convert("bitcast", f.convert("trunc", self.of[name], "i32"), "float")
            )
            for name in ("lowest", "highest")
        )
        self.sums = f.scratch(kernel.vectors * kernel.pixels * _VECTOR_BYTES)

    def _argument(self, name: str) -> Value:
        place = 8 * list(ARGUMENTS).index(name)
        return self.f.load(ARGUMENTS[name], self.f.arguments[0], place, align=8)

    def write(self) -> Function:
        """Write the loops over blocks of channels and tiles of pixels."""
        f, of, kernel = self.f, self.of, self.kernel
        run_bytes = f.multiply(of["steps"], kernel.step_bytes)
        with f.loop(0, of["blocks"]) as block:
            weights = f.multiply(f.multiply(block, of["tap_count"]), run_bytes)
            weights = f.at(of["weights"], weights)
            first_vector = f.multiply(block, kernel.vectors)
            with f.loop(0, of["pixel_count"], kernel.pixels) as first:
                places = f.at(of["pixels"], f.multiply(first, _PIXEL_BYTES))
                offsets = [f.load("i64", places, _PIXEL_BYTES * p) for p in range(kernel.pixels)]
                if kernel.channelwise:
                    channels = f.multiply(first_vector, 2 * LANES)
                    sums = self._channelwise(f.at(of["input"], channels), offsets, weights)
                else:
                    sums = self._product(offsets, weights, run_bytes)
                for number, slot in enumerate(slot for row in sums for slot in row):
                    f.store(slot.get(), self.sums, number * _VECTOR_BYTES, align=64)
                count = f.minimum(f.subtract(of["pixel_count"], first), kernel.pixels)
                self._put_results(places, count, first_vector)
        f.finish()
        return f

    def _product(self, offsets: list[Value], weights: Value, run_bytes: Value) -> list[list[Slot]]:
        f, of, kernel = self.f, self.of, self.kernel
        tile = RegisterTile(f, wide_isa(), "bf16", kernel.pixels, kernel.vectors)
        with f.loop(0, of["tap_count"]) as tap:
            left = f.at(of["input"], f.load("i64", of["taps"], f.multiply(tap, 8)))
            right = f.at(weights, f.multiply(tap, run_bytes))
            tile.multiply_steps(
                Side(left, offsets=offsets), Side(right, kernel.step_bytes), of["steps"]
            )
        return tile.accumulators

    def _channelwise(self, source: Value, offsets: list[Value], weights: Value) -> list[list[Slot]]:
        f, arithmetic, kernel = self.f, self.arithmetic, self.kernel
        zero = arithmetic.math.number(0.0)
        sums = [[f.slot(zero) for _ in range(kernel.vectors)] for _ in offsets]
        with f.loop(0, self.of["tap_count"]) as tap:
            here = f.at(source, f.load("i64", self.of["taps"], f.multiply(tap, 8)))
            own = f.at(weights, f.multiply(tap, kernel.step_bytes))
            factors = [
                arithmetic.load("f32", f.at(own, _VECTOR_BYTES * v)) for v in range(kernel.vectors)
            ]
            for offset, slots in zip(offsets, sums, strict=True):
                pixel = f.at(here, offset)
                for v, (slot, factor) in enumerate(zip(slots, factors, strict=True)):
                    x = arithmetic.load("bf16", f.at(pixel, 2 * LANES * v))
                    slot.set(arithmetic.math.fma(x, factor, slot.get()))
        return sums

    def _put_results(self, places: Value, count: Value, first_vector: Value) -> None:
        """Sums → results, a vector at a time."""
        f, of, vectors = self.f, self.of, self.kernel.vectors
        with f.loop(0, count) as pixel:
            place = f.at(places, f.multiply(pixel, _PIXEL_BYTES))
            first_real, first_half = (f.load("i64", place, 8 * word) for word in (1, 2))
            with f.loop(0, vectors) as v:
                which = f.add(first_vector, v)
                channel = f.multiply(which, LANES)
                number = f.add(f.multiply(pixel, vectors), v)
                total = f.at(self.sums, f.multiply(number, _VECTOR_BYTES))
                bits = f.load(f"i{LANES}", of["masks"], f.multiply(which, LANES // 8))
                self._put_vector(
                    self.arithmetic.math.add(
                        self.arithmetic.load("f32", total),
                        self.arithmetic.load("f32", f.at(of["bias"], f.multiply(channel, 4))),
                    ),
                    f.multiply(f.add(first_real, channel), 4),
                    f.multiply(f.add(first_half, channel), 2),
                    f.convert("bitcast", bits, f"<{LANES} x i1>"),
                )

    def _put_vector(self, biased: Value, real: Value, half: Value, mask: Value) -> None:
        """Sums with bias; then residual and bounds: NaN stays NaN."""
        f, arithmetic = self.f, self.arithmetic
        with self._where("sums") as sums:
            arithmetic.store("f32", biased, f.at(sums, real), mask=mask)
        total = f.slot(biased)
        with self._where("residual") as residual:
            other = arithmetic.load("f32", f.at(residual, real), mask=mask)
            total.set(arithmetic.math.add(biased, other))
        bounded = arithmetic.math.maximum(self.lowest, total.get())
        bounded = arithmetic.math.minimum(self.highest, bounded)
        with self._where("results") as results:
            arithmetic.store("f32", bounded, f.at(results, real), mask=mask)
        with self._where("narrow") as narrow:
            arithmetic.store("bf16", bounded, f.at(narrow, half), mask=mask)

    @contextmanager
    def _where(self, name: str) -> Iterator[Value]:
        """Yield an argument where it is not null.

        It is read anew each time: of what it knows beforehand, LLVM would make a loop for every
        case (measured: the time to compile is 1.5 times as long).
        """
        pointer = self._argument(name)
        with self.f.when(self.f.compare("ne", pointer, Value("ptr", "null"))):
            yield pointer


def _round_rows(module: Module) -> Function:
    """Rows of float32 to rows of bfloat16 that may lie further apart; strides count elements."""
    parameters = [("source", "ptr"), ("target", "ptr"), ("rows", "i64"), ("size", "i64")]
    parameters += [("source_row", "i64"), ("target_row", "i64")]
    f = Function(module, "round_rows", parameters, internal=False)
    source, target, rows, size, source_row, target_row = f.arguments
    arithmetic = Arithmetic(f, LANES)
    with f.loop(0, rows) as row:
        there = f.at(source, f.multiply(f.multiply(row, source_row), 4))
        here = f.at(target, f.multiply(f.multiply(row, target_row), 2))

        def convert(at: Value, mask: Value | None, number: int) -> None:
            values = arithmetic.load("f32", f.at(there, f.multiply(at, 4)), mask=mask)
            arithmetic.store("bf16", values, f.at(here, f.multiply(at, 2)), mask=mask)

        for_vectors(f, arithmetic, size, convert)
    f.finish()
    return f


@cache
def functions() -> dict[str, Callable[..., None]]:
    """Return the kernels by name; the first time they are compiled."""
    module = new_module()
    kernels = (*PRODUCTS.values(), CHANNELWISE)
    return compiled(*(_KernelWriter(module, one).write() for one in kernels), _round_rows(module))


def round_rows(source: NDArray[np.float32], target: NDArray[np.uint16]) -> None:
    """Round rows to bfloat16, half to even; (R, n) each, where rows may lie apart."""
    rows, size = source.shape
    functions()["round_rows"](
        source.ctypes.data,
        target.ctypes.data,
        rows,
        size,
        source.strides[0] // source.itemsize,
        target.strides[0] // target.itemsize,
    )


@dataclass(frozen=True)
class Panel:
    """Weights of some blocks of channels, with the kernel that reads them."""

    kernel: Kernel
    first_vector: int
    blocks: int
    packed: NDArray[np.generic]


def pack(weights: NDArray[np.float32]) -> list[Panel]:
    """Return what together multiplies with weights (O, taps, run): whole blocks, then the rest."""
    channels, taps, run = weights.shape
    halves = np.empty((channels * taps, run), np.uint16)
    round_rows(np.ascontiguousarray(weights).reshape(channels * taps, run), halves)
    packed = pack_weights(
        halves.reshape(channels, taps, 1, run), NUMERICS["bf16"], _BLOCK_VECTORS, LANES
    )
    blocks, rest = divmod(-(-channels // LANES), _BLOCK_VECTORS)
    whole = blocks * _BLOCK_VECTORS
    end = len(packed) * whole // (whole + rest)
    panels = [Panel(PRODUCTS[_BLOCK_VECTORS], 0, blocks, packed[:end])] if blocks else []
    return panels + ([Panel(PRODUCTS[rest], whole, 1, packed[end:])] if rest else [])


def pack_channelwise(weights: NDArray[np.float32]) -> list[Panel]:
    """Return the same for weights that each channel has for itself, (C, taps, 1), in float32."""
    wide = CHANNELWISE.vectors * LANES
    blocks = -(-len(weights) // wide)
    filled = np.zeros((blocks * wide, weights.shape[1], 1, 1), np.float32)
    filled[: len(weights), :, 0] = weights
    packed = pack_weights(filled, NUMERICS["f32"], CHANNELWISE.vectors, LANES)
    return [Panel(CHANNELWISE, 0, blocks, packed)]
