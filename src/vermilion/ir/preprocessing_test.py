"""Files that say how a model wants its pictures, against what their own libraries make of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from vermilion.errors import OptionError
from vermilion.ir.pictures import PictureOptions, read_picture
from vermilion.ir.pictures_test import Slot
from vermilion.ir.preprocessing import read_preprocessing

VIT = {
    "do_normalize": True, "do_resize": True, "image_mean": [0.5, 0.4, 0.3],
    "image_std": [0.5, 0.25, 0.2], "resample": 2, "size": {"height": 8, "width": 12},
    "image_processor_type": "ViTImageProcessor", "rescale_factor": 0.00392156862745098,
}  # fmt: skip
CLIP = {
    "crop_size": {"height": 8, "width": 8}, "do_center_crop": True, "do_normalize": True,
    "do_rescale": True, "do_resize": True, "image_mean": [0.5], "image_std": [0.25],
    "resample": 3, "size": {"shortest_edge": 10},
}  # fmt: skip
TIMM = {
    "architecture": "resnet", "pretrained_cfg": {
        "input_size": [3, 8, 8], "crop_pct": 0.8, "interpolation": "bicubic",
        "mean": [0.485, 0.456, 0.406], "std": [0.229, 0.224, 0.225],
    },
}  # fmt: skip


def write(folder: Path, content: Any, name: str = "preprocess.json") -> Path:
    (folder / name).write_text(json.dumps(content), encoding="utf-8")
    return folder / name


def picture(folder: Path, width: int, height: int) -> tuple[Path, np.ndarray]:
    pixels = np.random.default_rng(0).integers(0, 256, (height, width, 3), np.uint8)
    Image.fromarray(pixels).save(folder / "p.png")
    return folder / "p.png", pixels


def seen(folder: Path, content: Any, shape: tuple[int, ...], size: tuple[int, int]) -> np.ndarray:
    file, _ = picture(folder, *size)
    return read_picture(file, Slot(shape), read_preprocessing(write(folder, content)))[0]


def test_a_stretched_picture(tmp_path: Path) -> None:
    found = seen(tmp_path, VIT, (1, 3, 8, 12), (20, 30))
    image = Image.open(tmp_path / "p.png").resize((12, 8), Image.BILINEAR)
    wanted = (np.asarray(image) / 255 - VIT["image_mean"]) / VIT["image_std"]
    np.testing.assert_allclose(found, wanted.transpose(2, 0, 1), atol=1e-6)


@pytest.mark.parametrize("size", [(20, 30), (31, 20), (10, 10), (9, 40)])
def test_the_middle_is_cut_out(tmp_path: Path, size: tuple[int, int]) -> None:
    found = seen(tmp_path, CLIP, (1, 3, 8, 8), size)
    width, height = size
    short = min(size)
    inner = (10, int(10 * height / short)) if width == short else (int(10 * width / short), 10)
    image = Image.open(tmp_path / "p.png").resize(inner, Image.BICUBIC)
    top, left = (inner[1] - 8) // 2, (inner[0] - 8) // 2
    wanted = (np.asarray(image)[top : top + 8, left : left + 8] / 255 - 0.5) / 0.25
    np.testing.assert_allclose(found, wanted.transpose(2, 0, 1), atol=1e-6)


def test_timm_names_a_part_of_the_picture(tmp_path: Path) -> None:
    options = read_preprocessing(write(tmp_path, TIMM, "config.json").parent)
    assert (options.fit, options.edge, options.resize) == ("crop", 10, (8, 8))
    assert options.filter == "bicubic"
    alone = read_preprocessing(write(tmp_path, TIMM["pretrained_cfg"]))
    assert alone == options


def test_a_letterbox_in_bgr(tmp_path: Path) -> None:
    own = {
        "size": [8, 8], "fit": "letterbox", "fill": 114, "channels": "bgr", "factor": 1.0,
        "layout": "nhwc",
    }  # fmt: skip
    found = seen(tmp_path, own, (1, 8, 8, 3), (16, 8))
    image = np.asarray(Image.open(tmp_path / "p.png").resize((8, 4), Image.BILINEAR))
    assert (found[:2] == 114).all()
    assert (found[6:] == 114).all()
    np.testing.assert_array_equal(found[2:6], image[:, :, ::-1])


def test_a_small_picture_is_not_resized_before_it_is_cut(tmp_path: Path) -> None:
    file, pixels = picture(tmp_path, 12, 10)
    options = PictureOptions(fit="crop", edge=0, factor=1.0)
    found = read_picture(file, Slot((1, 3, 8, 8)), options)[0]
    np.testing.assert_array_equal(found, pixels[1:9, 2:10].transpose(2, 0, 1))


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ({"sizes": 8}, "no `sizes`"),
        ({"fit": "squeeze"}, "unknown fit"),
        ({**CLIP, "do_center_crop": False}, "leaves their size open"),
        ({"pretrained_cfg": {"input_size": [3, 8, 8], "crop_mode": "border"}}, "mode `border`"),
        ({"size": "large"}, "of another kind"),
        ([1], "not a JSON object"),
    ],
)
def test_what_is_not_understood_is_an_error(tmp_path: Path, content: Any, words: str) -> None:
    with pytest.raises(OptionError, match=words):
        read_preprocessing(write(tmp_path, content))


def test_what_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="holds no preprocessing file"):
        read_preprocessing(tmp_path)
    with pytest.raises(OptionError, match="there is no"):
        read_preprocessing(tmp_path / "none.json")


def test_convnext_cuts_what_it_brought_to_more(tmp_path: Path) -> None:
    own = {**VIT, "size": {"shortest_edge": 224}, "crop_pct": 0.875}
    options = read_preprocessing(write(tmp_path, own))
    assert (options.fit, options.edge, options.resize) == ("crop", 256, (224, 224))
    own["size"] = {"shortest_edge": 384}
    assert read_preprocessing(write(tmp_path, own)).fit == "stretch"
