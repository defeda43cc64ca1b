"""ConvInteger: images and rows of pixels, groups, borders and zero points, exact against numpy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from float_graphs import run_native
from native_text import read, refusals
from quantized_graphs import conv
from vermilion.codegen.lower.integer_matmul_test import NAMES, codes

Array = NDArray[Any]


@dataclass(frozen=True)
class Case:
    """One ConvInteger; zero points are constants where their name stands in `constants`."""

    channels: tuple[int, int]
    size: tuple[int, ...] = (6, 7)
    kernel: int = 3
    stride: int = 1
    pads: tuple[int, int, int, int] = (1, 1, 1, 1)
    group: int = 1
    kinds: tuple[Any, Any] = (np.uint8, np.int8)
    each: bool = False  # a zero point for each channel
    zeros: str = "st"
    constants: str = "t"
    batch: int = 1
    dilation: int = 1


CASES = (
    Case((3, 20)),
    Case((3, 20), kinds=(np.uint8, np.uint8), constants="st"),
    Case((16, 37), kinds=(np.int8, np.int8), pads=(2, 0, 1, 1), stride=2),
    Case((16, 37), kinds=(np.uint8, np.uint8), each=True, batch=2),
    Case((16, 16), kinds=(np.uint8, np.uint8), constants=""),
    Case((16, 18), kinds=(np.uint8, np.uint8), each=True, constants="", batch=3, group=2),
    Case((24, 24), group=24, kinds=(np.uint8, np.uint8), each=True),
    Case((24, 24), group=24, kinds=(np.int8, np.uint8), constants=""),
    Case((24, 24), group=24, zeros=""),
    Case((24, 24), group=24, kernel=17, size=(20, 21), pads=(8, 8, 8, 8)),
    Case((8, 12), group=4, kinds=(np.uint8, np.uint8)),
    Case((16, 32), group=2, kinds=(np.uint8, np.uint8), batch=2),
    Case((16, 32), kernel=1, pads=(0, 0, 0, 0), kinds=(np.uint8, np.uint8)),
    Case((6, 9), kernel=3, dilation=2, pads=(2, 2, 2, 2), zeros="s"),
    Case((5, 33), size=(19,), kinds=(np.int8, np.uint8), batch=2, stride=2),
    Case((32, 32), size=(19,), group=32),
)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_convolution_is_exact(case: Case, target: str) -> None:
    inputs, outputs = case.channels
    is_line = len(case.size) == 1
    kernel = (case.kernel,) * len(case.size)
    x = codes(case.kinds[0], case.batch, inputs, *case.size)
    w = codes(case.kinds[1], outputs, inputs // case.group, *kernel, seed=1)
    zeros = {
        "s": codes(case.kinds[0], seed=2),
        "t": codes(case.kinds[1], *((outputs,) if case.each else ()), seed=3),
    }
    zeros = {name: zero for name, zero in zeros.items() if name in case.zeros}
    far = zeros.get("t", np.zeros((), np.int8)).astype(np.int64)
    rest = x.astype(np.int64) - zeros.get("s", np.zeros((), np.int8)).astype(np.int64)
    taps = w.astype(np.int64) - far.reshape(-1, *(1,) * (w.ndim - 1))
    pads = case.pads
    if is_line:
        rest, taps, pads = rest[:, :, None], taps[:, :, None], (0, pads[1], 0, pads[3])
    total = conv(rest, taps, case.stride, pads, case.group, case.dilation)
    wanted = (total[:, :, 0] if is_line else total).astype(np.int32)
    given = {"x": x, "w": w, **zeros}
    declared = ", ".join(f"{NAMES[v.dtype]}{list(v.shape) or ''} {k}" for k, v in given.items())
    names = ["x", "w", *(["s" if "s" in zeros else ""] if zeros else [])]
    names += ["t"] if "t" in zeros else []
    attributes = f"strides = {[case.stride] * len(kernel)}, group = {case.group}"
    attributes += f", pads = {list(pads[1::2] if is_line else pads)}"
    attributes += f", dilations = {[case.dilation] * len(kernel)}"
    text = f"({declared}) => (int32{list(wanted.shape)} y) {{"
    text += f" y = ConvInteger <{attributes}> ({', '.join(names)}) }}"
    constants = {name: one for name, one in given.items() if name in case.constants + "w"}
    model = read(text, 13, **constants)
    assert not refusals(model)
    fed = {name: one for name, one in given.items() if name not in constants}
    got = run_native(model, fed, target, "fp32", 2)["y"]
    np.testing.assert_array_equal(got, wanted)
