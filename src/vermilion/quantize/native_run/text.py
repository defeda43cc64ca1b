"""The kernels in LLVM's language: sizes are arguments, so that a network needs two or three.

Channels lie last and a picture's border is in memory, so that at each tap of a convolution a run
of neighbours is contiguous: a convolution is a matrix product that reads its left side in place.

    for each block of channels, for each tile of pixels:
        sums[pixel][vector] = 0
        for each tap, for each pair of the run:
            sums[pixel][vector] += pair at the pixel × pairs of weights, one a channel
        results = bounded(sums + bias + residual)
"""

from __future__ import annotations

from dataclasses import dataclass

LANES = 16
"""Channels of a vector: float32 numbers in a 512-bit register."""

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

_REAL = f"<{LANES} x float>"
_PAIRS = f"<{2 * LANES} x bfloat>"
_WORDS = f"<{LANES} x i32>"
_HALVES = f"<{LANES} x i16>"
_MASK = f"<{LANES} x i1>"


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
        return self.vectors * LANES * 4


# 24 sums, 4 weights and a pair fill the 32 registers; a pixel has a pointer, of which 8 fit.
WIDE = Kernel("product_of_64", 4, 6)
MIDDLE = Kernel("product_of_32", 2, 8)
NARROW = Kernel("product_of_16", 1, 8)
CHANNELWISE = Kernel("channelwise", 2, 6, channelwise=True)
KERNELS = (WIDE, MIDDLE, NARROW, CHANNELWISE)

_GET_REAL = f"call {_REAL} @llvm.masked.load.v{LANES}f32.p0"
_PUT_REAL = f"call void @llvm.masked.store.v{LANES}f32.p0"
_PUT_HALF = f"call void @llvm.masked.store.v{LANES}i16.p0"

_DECLARATIONS = f"""
declare {_REAL} @llvm.x86.avx512bf16.dpbf16ps.512({_REAL}, {_PAIRS}, {_PAIRS})
declare {_REAL} @llvm.fma.v{LANES}f32({_REAL}, {_REAL}, {_REAL})
declare {_REAL} @llvm.masked.load.v{LANES}f32.p0(ptr, i32, {_MASK}, {_REAL})
declare void @llvm.masked.store.v{LANES}f32.p0({_REAL}, ptr, i32, {_MASK})
declare void @llvm.masked.store.v{LANES}i16.p0({_HALVES}, ptr, i32, {_MASK})
"""


def kernels_text() -> str:
    """Give the module with all kernels and `round_rows`."""
    return "\n".join([_DECLARATIONS, *(_kernel(kernel) for kernel in KERNELS), _ROUND_ROWS])


def _kernel(kernel: Kernel) -> str:
    sums = [(p, v) for p in range(kernel.pixels) for v in range(kernel.vectors)]
    channelwise = f"""
  %block_channels = mul i64 %first_vector, {2 * LANES}
  %block_input = getelementptr i8, ptr %input, i64 %block_channels"""
    lines = [
        f"define void @{kernel.name}(ptr %arguments) {{\nentry:",
        f"  %scratch = alloca [{len(sums)} x {_REAL}], align 64",
        *(_argument(number, name) for number, name in enumerate(ARGUMENTS)),
        _bound("lowest"),
        _bound("highest"),
        f"""  %has_residual = icmp ne ptr %residual, null
  %has_sums = icmp ne ptr %sums, null
  %has_results = icmp ne ptr %results, null
  %has_narrow = icmp ne ptr %narrow, null
  %block_steps = mul i64 %tap_count, %steps
  %block_bytes = mul i64 %block_steps, {kernel.step_bytes}
  br label %block
block:
  %b = phi i64 [0, %entry], [%b_next, %block_end]
  %b_offset = mul i64 %b, %block_bytes
  %block_weights = getelementptr i8, ptr %weights, i64 %b_offset
  %first_vector = mul i64 %b, {kernel.vectors}""",
        channelwise if kernel.channelwise else "",
        "  br label %tile\ntile:\n  %t = phi i64 [0, %block], [%t_next, %tile_end]",
        *(_pixel(kernel, pixel) for pixel in range(kernel.pixels)),
        "  br label %tap\ntap:\n  %r = phi i64 [0, %tile], [%r_next, %tap_end]",
        "  %tap_weights = phi ptr [%block_weights, %tile], [%next_weights, %tap_end]",
        *(f"  %c{p}_{v} = phi {_REAL} [zeroinitializer, %tile], [%n{p}_{v}, %tap_end]"
          for p, v in sums),
        "  %tap_place = getelementptr i64, ptr %taps, i64 %r\n  %tap_at = load i64, ptr %tap_place",
        *(f"  %q{p} = getelementptr i8, ptr %p{p}, i64 %tap_at" for p in range(kernel.pixels)),
        "  br label %step\nstep:\n  %k = phi i64 [0, %tap], [%k_next, %step]",
        "  %step_weights = phi ptr [%tap_weights, %tap], [%next_weights, %step]",
        *(f"  %m{p}_{v} = phi {_REAL} [%c{p}_{v}, %tap], [%n{p}_{v}, %step]" for p, v in sums),
        _channelwise_step(kernel) if kernel.channelwise else _product_step(kernel),
        f"""  %next_weights = getelementptr i8, ptr %step_weights, i64 {kernel.step_bytes}
  %k_next = add i64 %k, 1
  %k_more = icmp slt i64 %k_next, %steps
  br i1 %k_more, label %step, label %tap_end
tap_end:
  %r_next = add i64 %r, 1
  %r_more = icmp slt i64 %r_next, %tap_count
  br i1 %r_more, label %tap, label %summed
summed:""",
        *(f"  %s{n} = getelementptr {_REAL}, ptr %scratch, i64 {n}\n"
          f"  store {_REAL} %n{p}_{v}, ptr %s{n}, align 64" for n, (p, v) in enumerate(sums)),
        _results(kernel),
    ]  # fmt: skip
    return "\n".join(lines)


def _argument(number: int, name: str) -> str:
    return (
        f"  %given{number} = getelementptr i64, ptr %arguments, i64 {number}\n"
        f"  %{name} = load {ARGUMENTS[name]}, ptr %given{number}"
    )


def _bound(name: str) -> str:
    return f"""  %{name}_bits = trunc i64 %{name} to i32
  %{name}_real = bitcast i32 %{name}_bits to float
  %{name}_first = insertelement {_REAL} poison, float %{name}_real, i64 0
  %{name}_all = shufflevector {_REAL} %{name}_first, {_REAL} poison, {_WORDS} zeroinitializer"""


def _pixel(kernel: Kernel, pixel: int) -> str:
    base = "%block_input" if kernel.channelwise else "%input"
    return f"""  %index{pixel} = add i64 %t, {pixel}
  %place{pixel} = getelementptr [{PIXEL_WORDS} x i64], ptr %pixels, i64 %index{pixel}
  %reads{pixel} = load i64, ptr %place{pixel}
  %p{pixel} = getelementptr i8, ptr {base}, i64 %reads{pixel}"""


def _weights(kernel: Kernel, kind: str) -> list[str]:
    return [
        f"  %w_place{v} = getelementptr i8, ptr %step_weights, i64 {4 * LANES * v}\n"
        f"  %w{v} = load {kind}, ptr %w_place{v}, align 64"
        for v in range(kernel.vectors)
    ]


def _product_step(kernel: Kernel) -> str:
    lines = _weights(kernel, _PAIRS)
    for p in range(kernel.pixels):
        lines.append(f"""  %x_place{p} = getelementptr i32, ptr %q{p}, i64 %k
  %x_one{p} = load i32, ptr %x_place{p}, align 2
  %x_first{p} = insertelement {_WORDS} poison, i32 %x_one{p}, i64 0
  %x_all{p} = shufflevector {_WORDS} %x_first{p}, {_WORDS} poison, {_WORDS} zeroinitializer
  %x{p} = bitcast {_WORDS} %x_all{p} to {_PAIRS}""")
        lines += [
            f"  %n{p}_{v} = call {_REAL} @llvm.x86.avx512bf16.dpbf16ps.512("
            f"{_REAL} %m{p}_{v}, {_PAIRS} %w{v}, {_PAIRS} %x{p})"
            for v in range(kernel.vectors)
        ]
    return "\n".join(lines)


def _channelwise_step(kernel: Kernel) -> str:
    """A bfloat16 is the upper half of a float32."""
    lines = _weights(kernel, _REAL)
    shifts = ", ".join(["i32 16"] * LANES)
    for p in range(kernel.pixels):
        for v in range(kernel.vectors):
            x = f"{p}_{v}"
            lines.append(f"""  %x_place{x} = getelementptr i8, ptr %q{p}, i64 {2 * LANES * v}
  %x_half{x} = load {_HALVES}, ptr %x_place{x}, align 2
  %x_low{x} = zext {_HALVES} %x_half{x} to {_WORDS}
  %x_high{x} = shl {_WORDS} %x_low{x}, <{shifts}>
  %x{x} = bitcast {_WORDS} %x_high{x} to {_REAL}
  %n{x} = call {_REAL} @llvm.fma.v{LANES}f32({_REAL} %x{x}, {_REAL} %w{v}, {_REAL} %m{x})""")
    return "\n".join(lines)


def _results(kernel: Kernel) -> str:
    """Sums → results, a vector at a time: sums with bias, residual, bounds; NaN stays NaN."""
    return f"""  %left = sub i64 %pixel_count, %t
  %few = icmp slt i64 %left, {kernel.pixels}
  %count = select i1 %few, i64 %left, i64 {kernel.pixels}
  br label %pixel
pixel:
  %j = phi i64 [0, %summed], [%j_next, %pixel_end]
  %index = add i64 %t, %j
  %known = getelementptr [{PIXEL_WORDS} x i64], ptr %pixels, i64 %index
  %known_real = getelementptr i64, ptr %known, i64 1
  %first_real = load i64, ptr %known_real
  %known_half = getelementptr i64, ptr %known, i64 2
  %first_half = load i64, ptr %known_half
  %j_first = mul i64 %j, {kernel.vectors}
  br label %vector
vector:
  %v = phi i64 [0, %pixel], [%v_next, %vector_end]
  %which = add i64 %first_vector, %v
  %channel = mul i64 %which, {LANES}
  %n = add i64 %j_first, %v
  %sum_place = getelementptr {_REAL}, ptr %scratch, i64 %n
  %sum = load {_REAL}, ptr %sum_place, align 64
  %bias_place = getelementptr float, ptr %bias, i64 %channel
  %biases = load {_REAL}, ptr %bias_place, align 4
  %biased = fadd {_REAL} %sum, %biases
  %mask_place = getelementptr i16, ptr %masks, i64 %which
  %mask_bits = load i16, ptr %mask_place
  %mask = bitcast i16 %mask_bits to {_MASK}
  %real_at = add i64 %first_real, %channel
  br i1 %has_sums, label %put_sums, label %after_sums
put_sums:
  %sums_place = getelementptr float, ptr %sums, i64 %real_at
  {_PUT_REAL}({_REAL} %biased, ptr %sums_place, i32 4, {_MASK} %mask)
  br label %after_sums
after_sums:
  br i1 %has_residual, label %get_residual, label %after_residual
get_residual:
  %residual_place = getelementptr float, ptr %residual, i64 %real_at
  %other = {_GET_REAL}(ptr %residual_place,
      i32 4, {_MASK} %mask, {_REAL} zeroinitializer)
  %added = fadd {_REAL} %biased, %other
  br label %after_residual
after_residual:
  %all = phi {_REAL} [%biased, %after_sums], [%added, %get_residual]
  %below = fcmp olt {_REAL} %all, %lowest_all
  %floored = select {_MASK} %below, {_REAL} %lowest_all, {_REAL} %all
  %above = fcmp ogt {_REAL} %floored, %highest_all
  %final = select {_MASK} %above, {_REAL} %highest_all, {_REAL} %floored
  br i1 %has_results, label %put_results, label %after_results
put_results:
  %result_place = getelementptr float, ptr %results, i64 %real_at
  {_PUT_REAL}({_REAL} %final, ptr %result_place, i32 4, {_MASK} %mask)
  br label %after_results
after_results:
  br i1 %has_narrow, label %put_narrow, label %vector_end
put_narrow:
  %half_at = add i64 %first_half, %channel
  %narrow_place = getelementptr i16, ptr %narrow, i64 %half_at
  %rounded = fptrunc {_REAL} %final to <{LANES} x bfloat>
  %halves = bitcast <{LANES} x bfloat> %rounded to {_HALVES}
  {_PUT_HALF}({_HALVES} %halves, ptr %narrow_place, i32 2, {_MASK} %mask)
  br label %vector_end
vector_end:
  %v_next = add i64 %v, 1
  %v_more = icmp slt i64 %v_next, {kernel.vectors}
  br i1 %v_more, label %vector, label %pixel_end
pixel_end:
  %j_next = add i64 %j, 1
  %j_more = icmp slt i64 %j_next, %count
  br i1 %j_more, label %pixel, label %tile_end
tile_end:
  %t_next = add i64 %t, {kernel.pixels}
  %t_more = icmp slt i64 %t_next, %pixel_count
  br i1 %t_more, label %tile, label %block_end
block_end:
  %b_next = add i64 %b, 1
  %b_more = icmp slt i64 %b_next, %blocks
  br i1 %b_more, label %block, label %exit
exit:
  ret void
}}"""


# Rows of float32 to rows of bfloat16 that may lie further apart; strides count elements.
_ROUND_ROWS = f"""
define void @round_rows(ptr %from, ptr %to, i64 %rows, i64 %size, i64 %from_row, i64 %to_row) {{
entry:
  %whole = and i64 %size, -{LANES}
  %rest = sub i64 %size, %whole
  %rest_word = trunc i64 %rest to i32
  %above = shl i32 1, %rest_word
  %mask_word = sub i32 %above, 1
  %mask_bits = trunc i32 %mask_word to i{LANES}
  %mask = bitcast i{LANES} %mask_bits to {_MASK}
  %has_whole = icmp sgt i64 %whole, 0
  br label %row
row:
  %r = phi i64 [0, %entry], [%r_next, %tail]
  %from_at = mul i64 %r, %from_row
  %from_start = getelementptr float, ptr %from, i64 %from_at
  %to_at = mul i64 %r, %to_row
  %to_start = getelementptr i16, ptr %to, i64 %to_at
  br i1 %has_whole, label %vector, label %tail
vector:
  %i = phi i64 [0, %row], [%i_next, %vector]
  %from_place = getelementptr float, ptr %from_start, i64 %i
  %values = load {_REAL}, ptr %from_place, align 4
  %rounded = fptrunc {_REAL} %values to <{LANES} x bfloat>
  %to_place = getelementptr i16, ptr %to_start, i64 %i
  store <{LANES} x bfloat> %rounded, ptr %to_place, align 2
  %i_next = add i64 %i, {LANES}
  %more = icmp slt i64 %i_next, %whole
  br i1 %more, label %vector, label %tail
tail:
  %last_from = getelementptr float, ptr %from_start, i64 %whole
  %last_values = {_GET_REAL}(ptr %last_from,
      i32 4, {_MASK} %mask, {_REAL} zeroinitializer)
  %last_rounded = fptrunc {_REAL} %last_values to <{LANES} x bfloat>
  %last_halves = bitcast <{LANES} x bfloat> %last_rounded to {_HALVES}
  %last_to = getelementptr i16, ptr %to_start, i64 %whole
  {_PUT_HALF}({_HALVES} %last_halves, ptr %last_to, i32 2, {_MASK} %mask)
  %r_next = add i64 %r, 1
  %r_more = icmp slt i64 %r_next, %rows
  br i1 %r_more, label %row, label %exit
exit:
  ret void
}}
"""
