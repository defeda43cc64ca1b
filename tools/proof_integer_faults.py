"""Faults in integer arithmetic, on the way to GPUs and in providers, for `mutate_proof.py`."""
# ruff: noqa: E501 - a row is a line of the compiler, and that line changed

from __future__ import annotations

from proof_fault import CODE, EMIT, IR, IREE, LOWER, Fault, in_file

_INT8, _EXACT = ("int8",), ("exact",)

FAULTS: tuple[Fault, ...] = (
    # Quantized -----------------------------------------------------------------------------------
    *in_file(LOWER + "affine.py", _INT8, [
        ("rounding", "requantization rounds down", "q_conv",
         "return apply(\"round\", clamped(", "return apply(\"floor\", clamped("),
        ("scale", "multiplied by the next scale, not divided", "q_conv",
         "plain.scaled(1.0 / number(float(single)))", "plain.scaled(number(float(single)))"),
        ("bound", "upper bound of a Clip forgotten", "q_matmul",
         "highest = max(min(high, limits[1]), limits[0])", "highest = limits[1]"),
        ("bound", "Relu before quantization forgotten", "q_conv",
         "lowest = min(max(low, limits[0]), limits[1])", "lowest = limits[0]"),
        ("scale", "product of two scales is the first", "q_sum",
         "one.factor * other.factor)", "one.factor)"),
        ("scale", "bound off by one step", "q_matmul",
         "float(np.rint(np.float32(x) / single)) if", "float(np.rint(np.float32(x) / single)) + 1 if"),
    ]),
    *in_file(LOWER + "quantized.py", _INT8, [
        ("zero", "zero point added to the sums", "q_conv",
         "initial = -grid.zero * first", "initial = grid.zero * first"),
        ("zero", "sums' correction one zero point off", "q_linear_conv",
         "initial = -grid.zero * first", "initial = -(grid.zero + 1) * first"),
        ("zero", "zero point of an operand added", "q_sum",
         "whole = apply(\"sub\", whole, self.build.parameter(grid.zero, \"int\"))",
         "whole = apply(\"add\", whole, self.build.parameter(grid.zero, \"int\"))"),
        ("zero", "zero point of the result left out", "q_matmul",
         "apply(\"add\", whole, self.build.parameter(grid.zero, \"int\")) if grid.zero else whole",
         "whole"),
        ("scale", "scale of the first channel for all", "q_conv",
         "factor = np.float64(grid.scale) * scale.reshape(-1).astype(np.float64)",
         "factor = np.float64(grid.scale) * scale.reshape(-1)[:1].astype(np.float64)"),
        ("bias", "integer bias left out", "q_conv",
         "on_grid = integers.reshape(-1) * whole.astype(np.int64)",
         "on_grid = 0 * integers.reshape(-1) * whole.astype(np.int64)"),
        ("operand", "sub is add", "q_sum",
         "number(-1.0)) if node.op_type == \"Sub\"", "number(1.0)) if node.op_type == \"Sub\""),
    ]),
    *in_file(LOWER + "integers.py", _INT8, [
        ("zero", "two grids that differ in their zero points taken for one", "q_regrid",
         "if maker is None or grid is None or grid_of(maker) != grid:",
         "if maker is None or grid is None or grid_of(maker).scale != grid.scale:"),
        ("scale", "bias without the factor of the sums", "q_linear_conv",
         "\"DequantizeLinear\", [bias, factor], bias", "\"DequantizeLinear\", [bias, one], bias"),
        ("zero", "unsigned copy 127 higher", "q_signed",
         "scale, zero = self.grid(Grid(made.scale, made.zero + 128, \"u8\"))",
         "scale, zero = self.grid(Grid(made.scale, made.zero + 127, \"u8\"))"),
    ]),
    *in_file(LOWER + "integer_product.py", _INT8, [
        ("border", "border of zeros, not of zero points", "q_conv",
         "byte=integer.grid.zero)", "byte=0)"),
        ("bias", "depthwise sums begin one too high", "q_depthwise",
         "initial = integer.initial.astype(kind)", "initial = (integer.initial + 1).astype(kind)"),
        ("scale", "sums of a product start without their factor", "q_matmul",
         "form = Affine((Term(Operand(0), integer.factor),), integer.constant)",
         "form = Affine((Term(Operand(0), np.float64(1.0001) * integer.factor),), integer.constant)"),
    ]),
    *in_file(EMIT + "product.py", _INT8, [
        ("offset", "every vector begins at the first one's sums", "q_conv",
         "f.load(tile.sum_type, f.arguments[3], at, align=4)",
         "f.load(tile.sum_type, f.arguments[3], 0, align=4)"),
        ("tail", "last group of an integer run dropped", "q_matmul",
         "(*sides, whole, prefetch", "(*sides, max(1, whole - 1), prefetch"),
    ]),
    *in_file(EMIT + "register_tile.py", _INT8, [
        ("mask", "even bytes lose their highest bit", "q_conv",
         "splat_integer(0x00FF, pairs, \"i16\")", "splat_integer(0x007F, pairs, \"i16\")"),
        ("offset", "odd bytes shifted by seven", "q_matmul",
         "splat_integer(8, pairs, \"i16\")", "splat_integer(7, pairs, \"i16\")"),
    ], target="x86-64-v3"),
    *in_file(LOWER + "wide_product.py", _INT8, [
        ("constant", "upper bytes times 255", "q_sixteen", "Constant(256, \"long\")", "Constant(255, \"long\")"),
        ("zero", "zero point of 16 bits left out", "q_sixteen",
         "initial = on_grid - (grid.zero + _OFFSETS[grid.storage]) * sums", "initial = on_grid + 0 * sums"),
    ]),
    *in_file(LOWER + "dynamic_quantize.py", _INT8, [
        ("rounding", "codes found in the run are rounded down", "q_dynamic",
         "whole = Convert(apply(\"round\", apply(\"div\"", "whole = Convert(apply(\"floor\", apply(\"div\""),
        ("scale", "steps of the run a 256th of the range", "q_dynamic", "_LEVELS = 255", "_LEVELS = 256"),
        ("bound", "range of the run without zero", "q_dynamic",
         "low = apply(\"min\", Constant(0.0), Operand(0))", "low = Operand(0)"),
        ("zero", "zero point of the run rounded down", "q_dynamic_conv",
         "return Convert(apply(\"round\", bounded), \"int\")", "return Convert(apply(\"floor\", bounded), \"int\")"),
    ]),
    *in_file(LOWER + "integer_operators.py", _INT8, [
        ("zero", "zero point of the run with the other sign", "q_dynamic",
         "less = apply(\"sub\", Constant(0, \"int\"), apply(\"mul\", _A, _B))", "less = apply(\"mul\", _A, _B)"),
        ("zero", "correction of the rows without the depth", "q_dynamic",
         "rest = apply(\"sub\", apply(\"mul\", _A, _B), _C)", "rest = apply(\"sub\", _B, _C)"),
        ("offset", "unsigned weights 127 lower", "q_dynamic_conv", "(wide - 128).astype", "(wide - 127).astype"),
    ]),
    *in_file(LOWER + "integer_matmul.py", _INT8, [
        ("zero", "sums of columns of unsigned numbers as they are", "q_dynamic",
         "if view.storage == \"s8\":\n                return sums", "if True:\n                return sums"),
    ]),
    *in_file(LOWER + "integer_convolution.py", _INT8, [
        ("zero", "a window of one tap fewer", "q_dynamic_conv",
         "math.prod(taps.shape[1:]),", "math.prod(taps.shape[1:]) - 1,"),
    ]),
    *in_file(EMIT + "fill.py", _INT8, [
        ("border", "a border of the run is one too high", "q_dynamic_conv",
         "f.load(\"i8\", pointers[1], align=1)", "f.load(\"i8\", pointers[1], 1, align=1)"),
    ]),
    *in_file(EMIT + "pack.py", _INT8, [
        ("offset", "unsigned columns packed 127 lower", "q_dynamic",
         "splat_integer(128, self.lanes)", "splat_integer(127, self.lanes)"),
        ("tail", "a last quad of two rows twice", "q_dynamic",
         "rows.append(f.select(is_there, row, zero))", "rows.append(row)"),
    ]),
    *in_file(LOWER + "dequantized.py", _INT8, [
        ("zero", "weights' zero points left out", "q_weights",
         "wide = wide - along(tensors[2].astype(np.int64), integers.ndim, axis)", "pass"),
    ]),
    # Exact integers ------------------------------------------------------------------------------
    *in_file(EMIT + "operations.py", _EXACT, [
        ("rounding", "division of unsigned numbers", "whole", "f.binary(\"sdiv\", a[0], divisor)", "f.binary(\"udiv\", a[0], divisor)"),
        ("operand", "remainder of unsigned numbers", "whole", "f.binary(\"srem\", a[0], divisor)", "f.binary(\"urem\", a[0], divisor)"),
    ]),
    *in_file(IR + "elementwise.py", _EXACT, [
        ("rounding", "remainder keeps the dividend's sign", "whole",
         "return _select(is_off, apply(\"add\", rest, a[1]), rest)", "return rest"),
        ("operand", "where's sides exchanged", "whole",
         "return Apply(\"select\", (a[0], a[1], a[2]), a[1].kind)",
         "return Apply(\"select\", (a[0], a[2], a[1]), a[1].kind)"),
    ]),
    *in_file(LOWER + "elementwise.py", _EXACT, [
        ("bound", "small integers wrap at 64", "casts", "{\"s8\": 0x80, \"s16\": 0x8000}", "{\"s8\": 0x40, \"s16\": 0x8000}"),
    ]),
    *in_file(EMIT + "arithmetic.py", _EXACT, [
        ("operand", "less or equal is less", "whole", "(\"ole\", \"sle\")", "(\"ole\", \"slt\")"),
        ("rounding", "floats to integers without a sign", "casts",
         "(\"float\", \"long\"): \"fptosi\",", "(\"float\", \"long\"): \"fptoui\","),
    ]),
    *in_file(LOWER + "scan.py", _EXACT, [
        ("operand", "least for greatest", "whole", "\"max\" if node.op_type == \"ArgMax\" else \"min\"", "\"min\""),
        ("offset", "of equal ones the last", "ties", "bool(integer(node, \"select_last_index\", 0))", "True"),
    ]),
    *in_file(EMIT + "scan.py", _EXACT, [
        ("tap", "last step of a running sum not written", "whole",
         "with f.loop(0, self.size) as k:", "with f.loop(0, self.size - 1) as k:"),
    ]),
    *in_file(EMIT + "gather.py", _EXACT, [
        ("stride", "rows gathered by elements", "whole",
         "f.multiply(place, stride * item)", "f.multiply(place, stride)"),
    ]),
    *in_file(EMIT + "rows.py", _EXACT, [
        ("tail", "tail of a row not computed", "whole",
         "f.compare(\"ne\", rest, constant(\"i64\", 0))",
         "f.compare(\"sgt\", rest, constant(\"i64\", 100))"),
    ]),
    *in_file(CODE + "program.py", _EXACT, [
        ("operand", "second input is the first again", "whole",
         "Address(\"input\", 0, i) for", "Address(\"input\", 0, max(0, i - 1)) for"),
    ]),
)  # fmt: skip

GPU_FAULTS: tuple[Fault, ...] = (
    *in_file(IREE + "rewrites.py", ("gpu-fp32",), [
        ("stale", "slices of two tensors taken for one", "gpu_strided", "key = (value, steps)", "key = (None, steps)"),
        ("stride", "every pixel instead of every second", "gpu_strided", "\"steps\": list(steps),", "\"steps\": [1 for _ in steps],"),
    ]),
    *in_file(IREE + "rewrites.py", ("gpu-fp32",), [
        ("pad", "softmax padded with zeros", "gpu_softmax", "np.asarray(-np.inf, _TYPES", "np.asarray(0.0, _TYPES"),
        ("offset", "softmax padded in front", "gpu_softmax",
         "[*[0] * (2 * rank - 1), wide - length]", "[*[0] * (rank - 1), wide - length, *[0] * rank]"),
    ]),
    *in_file(IREE + "half.py", ("gpu-fp16",), [
        ("scale", "weights a hundredth too large", "gpu_half",
         "\"fp16\", 0).astype(np.float16)", "\"fp16\", 0).astype(np.float16) * np.float16(1.02)"),
        ("rounding", "weights with four bits", "gpu_half",
         "round_to(value.const_value.numpy(), \"fp16\", 0)", "(np.round(value.const_value.numpy() * 8) / 8)"),
        ("offset", "weights of the next row", "gpu_half",
         "\"fp16\", 0).astype(np.float16)", "\"fp16\", 0).astype(np.float16)[::-1]"),
    ]),
)  # fmt: skip

_FAKE, _FAKE_GPU = "tests/fake_provider.py", "tests/fake_gpu_provider.py"
_LAST = "            else:\n                mapped[...] = result\n"
_GPU_LAST = "made = result.astype(np.float16) if self.is_half else result"


def _wrong(kind: str, name: str, line: str, model: str = "provider") -> Fault:
    new = f"            else:\n                mapped[...] = result\n                {line}\n"
    return Fault(name, _FAKE, _LAST, new, kind, model, ("provider",))


def _wrong_gpu(kind: str, name: str, formula: str) -> Fault:
    return Fault(
        name, _FAKE_GPU, _GPU_LAST, f"made = {formula}", kind, "gpu_provider", ("provider",)
    )


PROVIDER_FAULTS: tuple[Fault, ...] = (
    _wrong("scale", "the NPU's outputs twice as large", "mapped[...] *= 2"),
    _wrong("scale", "the NPU's outputs a hundredth larger", "mapped[...] *= 1.02"),
    _wrong("noise", "noise of 5 %",
           "mapped[...] += 0.05 * mapped.std() * np.random.default_rng(0).standard_normal(mapped.shape)"),
    _wrong("offset", "one value of thousand another", "mapped.flat[7] += 1.0"),
    _wrong("stale", "outputs of the run before",
           "kept = getattr(self, 'kept', result); self.kept = result; mapped[...] = kept * (kept is not result)"),
    _wrong("offset", "entries of the batch exchanged", "mapped[...] = result[::-1]"),
    _wrong("stale", "last entry repeats the first", "mapped[-1] = result[0]"),
    _wrong("layout", "channels exchanged", "mapped[:, [0, 1]] = result[:, [1, 0]]"),
    _wrong("tail", "last channel zero", "mapped[:, -1] = 0"),
    _wrong("rounding", "numbers of five bits", "mapped[...] = np.round(result * 4) / 4"),
    _wrong("offset", "an integer off by one", "mapped.flat[3] += 1", "provider_integers"),
    _wrong("offset", "all integers off by one", "mapped[...] += 1", "provider_integers"),
    _wrong_gpu("scale", "the GPU's outputs twice as large", "2 * result"),
    _wrong_gpu("scale", "the GPU's outputs a thousandth larger", "result * np.float32(1.001)"),
    _wrong_gpu("stale", "one row of the GPU's outputs is another's", "result[[0, 1, 2, 2]]"),
    _wrong_gpu("noise", "noise of 1 %",
               "result + 0.01 * result.std() * np.random.default_rng(0).standard_normal(result.shape)"),
)  # fmt: skip
