"""Tensors of KServe's API: JSON and bytes, and what does not fit."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from vermilion.serve.refusals import WrongRequestError
from vermilion.serve.tensors import Tensor, classes_of, read_tensors, write_bytes, write_list

NUMBERS = Tensor("x", "tensor(float)", ("n", 2))
WHOLE = Tensor("x", "tensor(uint8)", (None,))
TEXTS = Tensor("x", "tensor(string)", None)
HALF = Tensor("x", "tensor(bfloat16)", ("n",))


def read(tensor: Tensor, binary: bytes = b"", **row: Any) -> Any:
    given = {"name": "x", "datatype": tensor.datatype, **row}
    return read_tensors([given], memoryview(binary), {"x": tensor})["x"]


def test_lists_are_nested_or_not() -> None:
    for data in ([1, 2.5, 3, 4], [[1, 2.5], [3, 4]]):
        found = read(NUMBERS, shape=[2, 2], data=data)
        assert found.dtype == np.float32
        assert found.tolist() == [[1, 2.5], [3, 4]]
    assert read(TEXTS, shape=[1, 2], data=[["a", "ü"]]).tolist() == [["a", "ü"]]
    assert read(NUMBERS, shape=[0, 2], data=[]).shape == (0, 2)
    assert np.isinf(read(NUMBERS, shape=[1, 2], data=[1e300, 0])).tolist() == [[True, False]]


def test_bytes_lie_behind_one_another() -> None:
    second = Tensor("y", "tensor(string)", ("n",))
    texts = b"\x01\0\0\0a\x02\0\0\0\xc3\xbc"
    numbers = np.array([[1, 2]], np.float32).tobytes()
    rows = [
        {"name": "y", "datatype": "BYTES", "shape": [2],
         "parameters": {"binary_data_size": len(texts)}},
        {"name": "x", "datatype": "FP32", "shape": [1, 2],
         "parameters": {"binary_data_size": len(numbers)}},
    ]  # fmt: skip
    found = read_tensors(rows, memoryview(texts + numbers), {"x": NUMBERS, "y": second})
    assert found["y"].tolist() == ["a", "ü"]
    assert found["x"].tolist() == [[1, 2]]
    half = np.array([1.5, -2], ml_dtypes.bfloat16)
    size = {"binary_data_size": 4}
    assert read(HALF, half.tobytes(), shape=[2], parameters=size).tolist() == [1.5, -2]


@pytest.mark.parametrize(
    ("tensor", "row", "words"),
    [
        (NUMBERS, {"shape": [2, 2], "data": [1, 2, 3]}, "3 elements"),
        (NUMBERS, {"shape": [1, 3], "data": [1, 2, 3]}, "wants n×2"),
        (NUMBERS, {"shape": [2], "data": [1, 2]}, "wants n×2"),
        (NUMBERS, {"shape": [1, 2], "data": ["a", "b"]}, "not all numbers"),
        (NUMBERS, {"shape": [1, 2], "data": [[1], [2, 3]]}, "several lengths"),
        (NUMBERS, {"shape": [1, 2], "data": [None, 1]}, "not all numbers"),
        (NUMBERS, {"shape": [1, 2], "data": [10**400, 1]}, r"not all numbers|several"),
        (NUMBERS, {"shape": [1, 2]}, "needs `data`"),
        (NUMBERS, {"shape": [1, -2], "data": []}, "needs a `shape`"),
        (NUMBERS, {"shape": "2", "data": []}, "needs a `shape`"),
        (NUMBERS, {"shape": [1, 2], "datatype": "FP64", "data": [1, 2]}, "wants FP32"),
        (NUMBERS, {"shape": [1, 2], "parameters": {"binary_data_size": 8}}, "not all there"),
        (NUMBERS, {"shape": [1, 2], "parameters": {"binary_data_size": True}}, "number of bytes"),
        (NUMBERS, {"shape": [1, 2], "parameters": []}, "no object"),
        (NUMBERS, {"shape": [1, 2], "parameters": {"shared_memory_region": "/etc"}}, "shared"),
        (WHOLE, {"shape": [1], "data": [256]}, "no UINT8"),
        (WHOLE, {"shape": [1], "data": [1.5]}, "not all numbers"),
        (TEXTS, {"shape": [1], "data": [1]}, "not all strings"),
        (TEXTS, {"shape": [1], "data": ["a\ud800"]}, "lone surrogate"),
        (TEXTS, {"shape": [1] * 65, "data": ["a"]}, "too large"),
        (TEXTS, {"shape": [1 << 62, 1 << 62, 0], "data": []}, "too large"),
        (TEXTS, {"shape": [10**30], "data": []}, "too large"),
        (NUMBERS, {"shape": [0, 1 << 39], "data": []}, "too large"),
    ],
)
def test_what_does_not_fit_is_told(tensor: Tensor, row: dict[str, Any], words: str) -> None:
    with pytest.raises(WrongRequestError, match=words):
        read(tensor, **row)


def test_inputs_that_there_are_not() -> None:
    for given, words in (
        ({}, "list of objects"),
        ([], "`x` is missing"),
        ([{"name": "z"}], "no input `z`"),
        ([{"name": 3}], "no input"),
    ):
        with pytest.raises(WrongRequestError, match=words):
            read_tensors(given, memoryview(b""), {"x": NUMBERS})
    with pytest.raises(WrongRequestError, match="belong to no input"):
        read(NUMBERS, b"123", shape=[1, 2], data=[1, 2])
    for data in (b"\x09\0\0\0a", b"\x01\0", b"\x01\0\0\0\xff"):
        with pytest.raises(WrongRequestError, match=r"within an element|no UTF-8"):
            read(TEXTS, data, shape=[1], parameters={"binary_data_size": len(data)})


def test_what_is_written() -> None:
    texts = np.array(["a", "ü"], object)
    assert write_bytes(texts, TEXTS) == b"\x01\0\0\0a\x02\0\0\0\xc3\xbc"
    assert write_list(np.array([1.5], ml_dtypes.bfloat16), HALF) == [1.5]
    assert write_bytes(np.array([[1, 2]], np.float32), NUMBERS) == b"\0\0\x80?\0\0\0@"
    found = classes_of(np.array([[0.5, 3, 1], [9, 0, -1]], np.float32), 2)
    assert found.tolist() == [["3.000000:1", "1.000000:2"], ["9.000000:0", "0.000000:1"]]
    assert classes_of(np.array([1, 2]), 5).tolist() == ["2.000000:1", "1.000000:0"]


@pytest.mark.parametrize(
    ("array", "wanted"),
    [
        (np.zeros((0, 3), np.float32), (0, 2)),
        (np.zeros((0, 3, 4), np.float32), (0, 2)),
        (np.zeros((3, 0), np.float32), (3, 0)),
        (np.zeros(0, np.float32), (0,)),
        (np.array(3.0, np.float32), ["3.000000:0"]),
        (np.array([False, True]), ["1.000000:1", "0.000000:0"]),
        (np.array([1.5, 2.5], ml_dtypes.bfloat16), ["2.500000:1", "1.500000:0"]),
        (np.array([2**60, 2**60 + 1, -5]), [f"{float(2**60):f}:1", f"{float(2**60):f}:0"]),
        (np.array([0, 255, 7], np.uint8), ["255.000000:1", "7.000000:2"]),
        (np.array([np.nan, 1, np.inf]), ["inf:2", "1.000000:1"]),
    ],
)
def test_largest_numbers_of_any_array(array: Any, wanted: Any) -> None:
    found = classes_of(array, 2)
    if isinstance(wanted, tuple):
        assert found.shape == wanted
    else:
        assert found.tolist() == wanted


def test_what_json_has_no_words_for() -> None:
    plain = Tensor("y", "tensor(float)", None)
    assert write_list(np.array([np.nan, 1], np.float32), plain) == [None, 1.0]
    assert write_list(np.array([np.nan], ml_dtypes.bfloat16), HALF) == [None]
    for wrong in (np.inf, -np.inf):
        with pytest.raises(WrongRequestError, match="`y` has infinities") as raised:
            write_list(np.array([1, wrong, np.nan], np.float32), plain)
        assert "binary_data" in raised.value.hint
    texts = np.array([b"a\xff", "b"], object)
    assert write_list(texts, TEXTS) == ["a\N{REPLACEMENT CHARACTER}", "b"]
