import numpy as np
import pytest

from vermilion.ir.numbers import data_type_words, number_format
from vermilion.ir.passes.contract_test import parse, weight

INT8, UINT8, INT16 = np.zeros((), np.int8), np.zeros((), np.uint8), np.zeros((), np.int16)
QDQ = """(float[2,4] x, float s, {kind} z, int8[4,4] q, float t, int8 o) => (float[2,4] y) {{
    xq = {domain}QuantizeLinear(x, s, z)
    xf = {domain}DequantizeLinear(xq, s, z)
    w = {domain}DequantizeLinear(q, t, o)
    {body}
}}"""


def quantized(zero, activation=0.5, weights=0.25, body="y = MatMul(xf, w)", domain="", **more):
    kind = {"int8": "int8", "uint8": "uint8", "int16": "int16"}[zero.dtype.name]
    text = QDQ.format(kind=kind, body=body, domain=domain)
    return parse(
        text,
        s=np.float32(activation),
        z=zero,
        q=np.ones((4, 4), np.int8),
        t=np.float32(weights),
        o=INT8,
        domains=', "com.microsoft": 1',
        **more,
    )


@pytest.mark.parametrize(
    ("model", "name", "words"),
    [
        (quantized(INT8), "xint8", "int8 quantized"),
        (quantized(UINT8 + np.uint8(128)), "xint8", "int8 quantized"),
        (quantized(INT8, activation=0.3), "a8w8", "int8 quantized"),
        (quantized(INT8, weights=0.3), "a8w8", "int8 quantized"),
        (quantized(INT16), "a16w8", "int16 quantized"),
        (quantized(INT16, activation=0.3, domain="com.microsoft."), "a16w8", "int16 quantized"),
        (
            quantized(
                INT8, body="u = MatMul(xf, w) v = Transpose(u) n = MatMul(u, v) y = MatMul(n, u)"
            ),
            "xint8",
            "float32 and int8 quantized",
        ),
    ],
)
def test_quantized_formats(model, name, words) -> None:
    assert number_format(model) == name
    assert data_type_words(model) == words


@pytest.mark.parametrize(
    ("dtype", "kind", "name", "words"),
    [
        (np.float32, "float", "fp32", "float32"),
        (np.float16, "float16", "fp16", "float16"),
        (np.float64, "double", "fp64", "float64"),
    ],
)
def test_float_formats_follow_the_weights(dtype, kind, name, words) -> None:
    text = f"({kind}[2,4] x, {kind}[4,4] w) => ({kind}[2,4] y) {{ y = MatMul(x, w) }}"
    model = parse(text, w=weight(4, 4, dtype=dtype))
    assert (number_format(model), data_type_words(model)) == (name, words)
    model = parse(f"({kind}[2] x) => ({kind}[2] y) {{ y = Abs(x) }}")
    assert number_format(model) == name


def test_most_weights_decide() -> None:
    model = parse(
        "(float[1,4] x, float16[4,4] w, float[4] b) => (float[1,4] y) "
        "{ f = Cast<to = 1>(w) m = MatMul(x, f) y = Add(m, b) }",
        w=weight(4, 4, dtype=np.float16),
        b=weight(4),
    )
    assert number_format(model) == "fp16"


def test_bfloat16() -> None:
    model = parse("(bfloat16[2] x) => (bfloat16[2] y) { y = Abs(x) }")
    assert (number_format(model), data_type_words(model)) == ("bf16", "bfloat16")


def test_integer_operators() -> None:
    model = parse(
        "(uint8[2,4] x, int8[4,4] w) => (int32[2,4] y) { y = MatMulInteger(x, w) }",
        w=np.ones((4, 4), np.int8),
    )
    assert (number_format(model), data_type_words(model)) == ("int8", "int8 quantized")


def test_weights_alone_do_not_make_a_format() -> None:
    model = parse(
        "(float[2,4] x, int8[4,4] q, float s) => (float[2,4] y) "
        "{ w = DequantizeLinear(q, s) y = MatMul(x, w) }",
        q=np.ones((4, 4), np.int8),
        s=np.float32(0.5),
    )
    assert number_format(model) == "fp32"


def test_a_quantizer_without_zero_point_is_uint8() -> None:
    model = parse(
        "(float[2] x, float s) => (float[2] y) "
        "{ q = QuantizeLinear(x, s) y = DequantizeLinear(q, s) }",
        s=np.float32(0.5),
    )
    assert number_format(model) == "xint8"


def test_models_without_numbers() -> None:
    assert number_format(parse("(int64[2] x) => (int64[2] y) { y = Abs(x) }")) == "fp32"
