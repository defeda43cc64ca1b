from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from vermilion.errors import OptionError
from vermilion.ir.pictures import PictureOptions, picture_size, read_picture

FLOAT = np.dtype(np.float32)


@dataclass(frozen=True)
class Slot:
    shape: tuple[int | None, ...] | None
    dtype: np.dtype[Any] = FLOAT
    name: str = "x"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    random = np.random.default_rng(3)
    path = tmp_path / "noise.png"
    Image.fromarray(random.integers(0, 256, (11, 13, 3), np.uint8)).save(path)
    return path


@pytest.mark.parametrize(
    ("shape", "options"),
    [
        ((None, 3, 6, 5), PictureOptions()),
        (
            (1, 3, None, None),
            PictureOptions((0.485, 0.456, 0.406), (0.2, 0.3, 0.4), "nchw", (7, 4)),
        ),
        ((None, 6, 5, 3), PictureOptions((0.5,), (0.25,), "nhwc")),
        ((1, 1, 6, 5), PictureOptions()),
    ],
)
def test_a_picture_is_resized_scaled_and_ordered(
    shape: tuple[int | None, ...], options: PictureOptions, file: Path
) -> None:
    found = read_picture(file, Slot(shape), options)
    is_first = options.layout == "nchw"
    size = options.resize or ((6, 5) if is_first else (shape[1], shape[2]))
    mode = "L" if shape[1] == 1 else "RGB"
    with Image.open(file) as opened:
        picture = opened.convert(mode).resize((size[1], size[0]), Image.BILINEAR)
    pixels = np.asarray(picture, np.float32).reshape(*size, -1) / np.float32(255)
    scaled = (pixels - np.float32(options.mean)) / np.float32(options.std)
    np.testing.assert_array_equal(found[0], scaled.transpose(2, 0, 1) if is_first else scaled)


@pytest.mark.parametrize(
    ("slot", "options", "message"),
    [
        (Slot(None), {}, "takes no images: it is float32\n"),
        (Slot((1, 3, 4)), {}, r"takes no images: it is float32\[1,3,4\]"),
        (Slot((1, 3, 4, 4), np.dtype(np.int64)), {}, r"takes no images: it is int64"),
        (Slot((1, 4, 4, 3)), {}, "has 4 channels in layout `nchw`"),
        (Slot((None, 3, None, 4)), {}, r"leaves the size of images dynamic: float32\[\?,3,\?,4\]"),
    ],
)
def test_inputs_that_take_no_pictures(slot: Slot, options: Any, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        picture_size(slot, PictureOptions(**options))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"layout": "hwcn"}, "unknown layout"),
        ({"mean": (1.0, 2.0)}, "has 2 values and takes 1 or 3"),
        ({"std": (0.0,)}, "`std` is 0.0"),
        ({"mean": (float("nan"),)}, "`mean` is nan"),
        ({"resize": (0, 8)}, "`resize` is 0"),
        ({"resize": (8, 10**9)}, "`resize` is 1000000000"),
        ({"edge": -1}, "`edge` is -1"),
        ({"factor": float("inf")}, "`factor` is inf"),
    ],
)
def test_options_that_make_no_sense(options: Any, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        PictureOptions(**options)


def test_files_that_are_no_pictures_are_named(tmp_path: Path, file: Path) -> None:
    (tmp_path / "broken.jpg").write_bytes(b"no picture")
    with pytest.raises(OptionError, match=r"`broken\.jpg` is not an image that can be read"):
        read_picture(tmp_path / "broken.jpg", Slot((1, 3, 4, 4)), PictureOptions())
    with pytest.raises(OptionError, match="3 values and `x` takes 1 channel"):
        read_picture(file, Slot((1, 1, 4, 4)), PictureOptions(mean=(0.1, 0.2, 0.3)))


def test_no_library_of_graphs_is_loaded() -> None:
    code = (
        "import sys, vermilion.ir.pictures as p\n"
        "print([n for n in ('onnx', 'onnx_ir', 'onnxruntime', 'sympy', 'PIL') if n in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
