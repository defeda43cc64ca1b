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

from vermilion.quantize.llvm_text import (
    DECLARATIONS,
    LANES,
    MASK,
    REALS,
    WORDS,
    Code,
    Phi,
    everywhere,
    masked_load,
    masked_store,
)

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

_PAIRS = f"<{2 * LANES} x bfloat>"
_HALVES = f"<{LANES} x i16>"
_NARROW = f"<{LANES} x bfloat>"


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

_PUT_HALF = f"call void @llvm.masked.store.v{LANES}i16.p0"

_MORE = f"""
declare {REALS} @llvm.x86.avx512bf16.dpbf16ps.512({REALS}, {_PAIRS}, {_PAIRS})
declare void @llvm.masked.store.v{LANES}i16.p0({_HALVES}, ptr, i32, {MASK})
"""


def kernels_text() -> str:
    """Return the module with all kernels and `round_rows`."""
    kernels = (_kernel(kernel) for kernel in KERNELS)
    return "\n".join([DECLARATIONS, _MORE, *kernels, _round_rows()])


def _kernel(kernel: Kernel) -> str:
    code = Code()
    with code.function(f"void @{kernel.name}(ptr %arguments)"):
        code.put(f"  %scratch = alloca [{kernel.vectors * kernel.pixels} x {REALS}], align 64")
        code.put(*(_argument(number, name) for number, name in enumerate(ARGUMENTS)))
        code.put(_bound("lowest"), _bound("highest"))
        code.put(f"""  %has_residual = icmp ne ptr %residual, null
  %has_sums = icmp ne ptr %sums, null
  %has_results = icmp ne ptr %results, null
  %has_narrow = icmp ne ptr %narrow, null
  %block_steps = mul i64 %tap_count, %steps
  %block_bytes = mul i64 %block_steps, {kernel.step_bytes}""")
        with code.loop("b", "%blocks"):
            code.put(f"""  %b_offset = mul i64 %b, %block_bytes
  %block_weights = getelementptr i8, ptr %weights, i64 %b_offset
  %first_vector = mul i64 %b, {kernel.vectors}""")
            if kernel.channelwise:
                code.put(f"""  %block_channels = mul i64 %first_vector, {2 * LANES}
  %block_input = getelementptr i8, ptr %input, i64 %block_channels""")
            with code.loop("t", "%pixel_count", step=kernel.pixels):
                code.put(*(_pixel(kernel, pixel) for pixel in range(kernel.pixels)))
                _sum_taps(code, kernel)
                _put_results(code, kernel)
        code.put("  ret void")
    return code.text()


def _sum_taps(code: Code, kernel: Kernel) -> None:
    """Sums of a tile, in registers from tap to tap; they end in memory, to be taken one by one."""
    sums = [(p, v) for p in range(kernel.pixels) for v in range(kernel.vectors)]
    of_tap = [Phi("%tap_weights", "ptr", "%block_weights", "%next_weights")]
    of_tap += [Phi(f"%c{p}_{v}", REALS, "zeroinitializer", f"%n{p}_{v}") for p, v in sums]
    of_step = [Phi("%step_weights", "ptr", "%tap_weights", "%next_weights")]
    of_step += [Phi(f"%m{p}_{v}", REALS, f"%c{p}_{v}", f"%n{p}_{v}") for p, v in sums]
    with code.loop("r", "%tap_count", phis=of_tap):
        code.put("  %tap_place = getelementptr i64, ptr %taps, i64 %r")
        code.put("  %tap_at = load i64, ptr %tap_place")
        for p in range(kernel.pixels):
            code.put(f"  %q{p} = getelementptr i8, ptr %p{p}, i64 %tap_at")
        with code.loop("k", "%steps", phis=of_step):
            code.put(_channelwise_step(kernel) if kernel.channelwise else _product_step(kernel))
            code.put(
                f"  %next_weights = getelementptr i8, ptr %step_weights, i64 {kernel.step_bytes}"
            )
    for n, (p, v) in enumerate(sums):
        code.put(f"""  %s{n} = getelementptr {REALS}, ptr %scratch, i64 {n}
  store {REALS} %n{p}_{v}, ptr %s{n}, align 64""")


def _argument(number: int, name: str) -> str:
    return (
        f"  %given{number} = getelementptr i64, ptr %arguments, i64 {number}\n"
        f"  %{name} = load {ARGUMENTS[name]}, ptr %given{number}"
    )


def _bound(name: str) -> str:
    return f"""  %{name}_bits = trunc i64 %{name} to i32
  %{name}_real = bitcast i32 %{name}_bits to float
{everywhere(f"{name}_all", "float", f"%{name}_real")}"""


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
{everywhere(f"x_all{p}", "i32", f"%x_one{p}")}
  %x{p} = bitcast {WORDS} %x_all{p} to {_PAIRS}""")
        lines += [
            f"  %n{p}_{v} = call {REALS} @llvm.x86.avx512bf16.dpbf16ps.512("
            f"{REALS} %m{p}_{v}, {_PAIRS} %w{v}, {_PAIRS} %x{p})"
            for v in range(kernel.vectors)
        ]
    return "\n".join(lines)


def _channelwise_step(kernel: Kernel) -> str:
    """A bfloat16 is the upper half of a float32."""
    lines = _weights(kernel, REALS)
    shifts = ", ".join(["i32 16"] * LANES)
    for p in range(kernel.pixels):
        for v in range(kernel.vectors):
            x = f"{p}_{v}"
            lines.append(f"""  %x_place{x} = getelementptr i8, ptr %q{p}, i64 {2 * LANES * v}
  %x_half{x} = load {_HALVES}, ptr %x_place{x}, align 2
  %x_low{x} = zext {_HALVES} %x_half{x} to {WORDS}
  %x_high{x} = shl {WORDS} %x_low{x}, <{shifts}>
  %x{x} = bitcast {WORDS} %x_high{x} to {REALS}
  %n{x} = call {REALS} @llvm.fma.v{LANES}f32({REALS} %x{x}, {REALS} %w{v}, {REALS} %m{x})""")
    return "\n".join(lines)


def _put_results(code: Code, kernel: Kernel) -> None:
    """Sums → results, a vector at a time: sums with bias, residual, bounds; NaN stays NaN."""
    code.put(f"""  %left = sub i64 %pixel_count, %t
  %few = icmp slt i64 %left, {kernel.pixels}
  %count = select i1 %few, i64 %left, i64 {kernel.pixels}""")
    with code.loop("j", "%count"):
        code.put(f"""  %index = add i64 %t, %j
  %known = getelementptr [{PIXEL_WORDS} x i64], ptr %pixels, i64 %index
  %known_real = getelementptr i64, ptr %known, i64 1
  %first_real = load i64, ptr %known_real
  %known_half = getelementptr i64, ptr %known, i64 2
  %first_half = load i64, ptr %known_half
  %j_first = mul i64 %j, {kernel.vectors}""")
        with code.loop("v", str(kernel.vectors)):
            code.put(_BIASED)
            with code.when("%has_sums", "put_sums"):
                code.put(f"""  %sums_place = getelementptr float, ptr %sums, i64 %real_at
  {masked_store("%biased", "%sums_place", "%mask")}""")
            with code.when("%has_residual", "add", [Phi("%all", REALS, "%biased", "%added")]):
                code.put(f"""  %residual_place = getelementptr float, ptr %residual, i64 %real_at
  %other = {masked_load("%residual_place", "%mask")}
  %added = fadd {REALS} %biased, %other""")
            code.put(_HELD)
            with code.when("%has_results", "put_results"):
                code.put(f"""  %result_place = getelementptr float, ptr %results, i64 %real_at
  {masked_store("%final", "%result_place", "%mask")}""")
            with code.when("%has_narrow", "put_narrow"):
                code.put(f"""  %half_at = add i64 %first_half, %channel
  %narrow_place = getelementptr i16, ptr %narrow, i64 %half_at
  %rounded = fptrunc {REALS} %final to {_NARROW}
  %halves = bitcast {_NARROW} %rounded to {_HALVES}
  {_PUT_HALF}({_HALVES} %halves, ptr %narrow_place, i32 2, {MASK} %mask)""")


_BIASED = f"""  %which = add i64 %first_vector, %v
  %channel = mul i64 %which, {LANES}
  %n = add i64 %j_first, %v
  %sum_place = getelementptr {REALS}, ptr %scratch, i64 %n
  %sum = load {REALS}, ptr %sum_place, align 64
  %bias_place = getelementptr float, ptr %bias, i64 %channel
  %biases = load {REALS}, ptr %bias_place, align 4
  %biased = fadd {REALS} %sum, %biases
  %mask_place = getelementptr i16, ptr %masks, i64 %which
  %mask_bits = load i16, ptr %mask_place
  %mask = bitcast i16 %mask_bits to {MASK}
  %real_at = add i64 %first_real, %channel"""

_HELD = f"""  %below = fcmp olt {REALS} %all, %lowest_all
  %floored = select {MASK} %below, {REALS} %lowest_all, {REALS} %all
  %above = fcmp ogt {REALS} %floored, %highest_all
  %final = select {MASK} %above, {REALS} %highest_all, {REALS} %floored"""


def _round_rows() -> str:
    """Rows of float32 to rows of bfloat16 that may lie further apart; strides count elements."""
    code = Code()
    with code.function(
        "void @round_rows(ptr %from, ptr %to, i64 %rows, i64 %size, i64 %from_row, i64 %to_row)"
    ):
        code.put(f"""  %whole = and i64 %size, -{LANES}
  %rest = sub i64 %size, %whole
  %rest_word = trunc i64 %rest to i32
  %above = shl i32 1, %rest_word
  %mask_word = sub i32 %above, 1
  %mask_bits = trunc i32 %mask_word to i{LANES}
  %mask = bitcast i{LANES} %mask_bits to {MASK}
  %has_whole = icmp sgt i64 %whole, 0""")
        with code.loop("r", "%rows"):
            code.put("""  %from_at = mul i64 %r, %from_row
  %from_start = getelementptr float, ptr %from, i64 %from_at
  %to_at = mul i64 %r, %to_row
  %to_start = getelementptr i16, ptr %to, i64 %to_at""")
            with code.when("%has_whole", "vectors"), code.loop("i", "%whole", step=LANES):
                code.put(f"""  %from_place = getelementptr float, ptr %from_start, i64 %i
  %values = load {REALS}, ptr %from_place, align 4
  %rounded = fptrunc {REALS} %values to {_NARROW}
  %to_place = getelementptr i16, ptr %to_start, i64 %i
  store {_NARROW} %rounded, ptr %to_place, align 2""")
            code.put(f"""  %last_from = getelementptr float, ptr %from_start, i64 %whole
  %last_values = {masked_load("%last_from", "%mask")}
  %last_rounded = fptrunc {REALS} %last_values to {_NARROW}
  %last_halves = bitcast {_NARROW} %last_rounded to {_HALVES}
  %last_to = getelementptr i16, ptr %to_start, i64 %whole
  {_PUT_HALF}({_HALVES} %last_halves, ptr %last_to, i32 2, {MASK} %mask)""")
        code.put("  ret void")
    return code.text()
