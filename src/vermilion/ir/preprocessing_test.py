"""Files that say how a model wants its pictures, against what their own libraries make of them."""

from __future__ import annotations

import json
import re
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


def read_or_error(file: Path) -> PictureOptions | OptionError:
    try:
        return read_preprocessing(file)
    except OptionError as error:
        return error


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


# What a file says, and what its error says: the key, and under `hint:` what it takes.
REFUSED = [
    ({"sizes": 8}, "no `sizes`", "`size`"),
    ({"fit": "squeeze"}, "`fit` is 'squeeze'", "`letterbox`"),
    ({"size": "large"}, "`size` is 'large'", "numbers from 1 to 16,384"),
    ({"size": [8, 8, 8]}, r"`size` is \[8, 8, 8\]", "height"),
    ({"fill": 256}, "`fill` is 256", "from 0 to 255"),
    ({"mean": [0.5, 0.5]}, r"`mean` is \[0.5, 0.5\]", "1 number or 3"),
    ([1], "holds no object", "docs/quantize.md"),
    ({**CLIP, "do_center_crop": False}, "leaves their size open", "`fit`"),
    ({**VIT, "do_normalize": "false"}, "`do_normalize` is 'false'", "true or false"),
    ({n: v for n, v in VIT.items() if n != "image_mean"}, "no `image_mean`", "1 number or 3"),
    ({n: v for n, v in VIT.items() if n != "image_std"}, "no `image_std`", "1 number or 3"),
    ({n: v for n, v in VIT.items() if n != "resample"}, "no `resample`", r"3 \(bicubic\)"),
    ({n: v for n, v in VIT.items() if n != "size"}, "no `size`", "height"),
    ({**VIT, "image_mean": None}, "`image_mean` is null", "1 number or 3"),
    ({**VIT, "resample": -1}, "`resample` is -1", r"5 \(hamming\)"),
    ({**VIT, "resample": 6}, "`resample` is 6", r"5 \(hamming\)"),
    ({**VIT, "resample": True}, "`resample` is true", r"5 \(hamming\)"),
    ({**VIT, "do_pad": True}, "`do_pad` is not done", "`size`"),
    ({**VIT, "size": {"longest_edge": 8}}, "`size` is an object", "height"),
    ({**VIT, "do_center_crop": True, "crop_size": 6}, "stretches pictures to", "`fit`"),
    ({**VIT, "crop_pct": 0.9}, "`size` is an object", "shortest_edge"),
    ({**CLIP, "size": {"shortest_edge": [8]}}, r"`size` is \[8\]", "whole numbers from 1"),
    ({"pretrained_cfg": {"input_size": [3, 8, 8], "crop_mode": "border"}}, "`border`", "`size`"),
    ({"pretrained_cfg": {"input_size": [3, 8, 9]}}, "to 8 × 9", "`size`"),
    ({"input_size": [3, 8, 8], "interpolation": "cubic"}, "is 'cubic'", "`bicubic`"),
    ({"input_size": [3, 8, 8], "crop_mode": "middle"}, "is 'middle'", "`squash`"),
    ({"input_size": 224}, "`input_size` is 224", "channels"),
    ({"crop_pct": 0.9}, "no `input_size`", "channels"),
]  # fmt: skip


@pytest.mark.parametrize(("content", "words", "hint"), REFUSED)
def test_what_is_not_understood_is_an_error(
    tmp_path: Path, content: Any, words: str, hint: str
) -> None:
    file = write(tmp_path, content)
    with pytest.raises(OptionError, match=words) as caught:
        read_preprocessing(file)
    assert caught.value.where == str(file)
    assert re.search(hint, caught.value.hint)


DEEP = "[" * 900 + "]" * 900
NUMBERS = ["0", "-1", "NaN", "Infinity", "-Infinity", "1e300", "1e-300", "1e999", "9" * 400]
NUMBERS += ["true", '"1"', "[]", "[[1]]", "[NaN, 1, 1]", "[1, -1]", "{}", DEEP, "[1, 1, 1, 1]"]
# Where some of them make sense.
SENSE = {
    "edge": {"0"}, "fill": {"0"}, "mean": {"0", "-1", "1e-300"}, "do_normalize": {"true"},
    "image_mean": {"0", "-1", "1e-300"}, "do_center_crop": {"true"}, "resample": {"0"},
}  # fmt: skip
BASES = {
    "own": ({"size": 8, "fit": "crop"}, ["size", "edge", "fill", "factor", "mean", "std", "fit"]),
    "transformers": (
        {**CLIP, "crop_pct": 0.9, "size": {"shortest_edge": 8}},
        ["size", "crop_size", "rescale_factor", "image_mean", "image_std", "crop_pct", "resample"],
    ),
    "flags": (VIT, ["do_normalize", "do_center_crop", "do_resize", "do_rescale", "size"]),
    "timm": (TIMM["pretrained_cfg"], ["input_size", "crop_pct", "mean", "std", "interpolation"]),
}


@pytest.mark.parametrize(
    ("form", "key"), [(form, key) for form, (_, keys) in BASES.items() for key in keys]
)
def test_numbers_are_checked_at_the_door(tmp_path: Path, form: str, key: str) -> None:
    base, _ = BASES[form]
    for number in NUMBERS:
        rest = json.dumps({n: v for n, v in base.items() if n != key})
        file = tmp_path / "preprocess.json"
        file.write_text(f'{rest[:-1]}, "{key}": {number}}}', encoding="utf-8")
        options = read_or_error(file)
        if isinstance(options, OptionError):
            assert key in options.message, number
            assert options.where == str(file)
            assert options.hint
            continue
        assert number in SENSE.get(key, {"true"} if key.startswith("do_") else set())
        small, _ = picture(tmp_path, 20, 30)
        assert np.isfinite(read_picture(small, Slot((1, 3, 8, 12)), options)).all()


# In the words of older versions of transformers, by their class.
OLDER = {
    "ConvNext": (
        {"crop_pct": None, "do_normalize": True, "do_resize": True, "size": 224, "resample": 3,
         "feature_extractor_type": "ConvNextFeatureExtractor", "image_mean": [0.485, 0.456, 0.406],
         "image_std": [0.229, 0.224, 0.225]},
        PictureOptions((0.485, 0.456, 0.406), (0.229, 0.224, 0.225), resize=(224, 224), fit="crop",
                       edge=256, filter="bicubic"),
    ),
    "MobileViT": (
        {"crop_size": 256, "do_center_crop": True, "do_flip_channel_order": True, "size": 288,
         "do_resize": True, "feature_extractor_type": "MobileViTFeatureExtractor", "resample": 2},
        PictureOptions(channels="bgr", resize=(256, 256), fit="crop", edge=288),
    ),
    "CLIP": (
        {"crop_size": 224, "do_center_crop": True, "do_normalize": True, "do_resize": True,
         "feature_extractor_type": "CLIPFeatureExtractor", "image_mean": [0.48, 0.46, 0.41],
         "image_std": [0.27, 0.26, 0.28], "resample": 3, "size": 224},
        PictureOptions((0.48, 0.46, 0.41), (0.27, 0.26, 0.28), resize=(224, 224), fit="crop",
                       edge=224, filter="bicubic"),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", OLDER)
def test_older_files(name: str, tmp_path: Path) -> None:
    content, wanted = OLDER[name]
    assert read_preprocessing(write(tmp_path, content)) == wanted


@pytest.mark.parametrize("text", ["[" * 100_000, '{"a":' * 100_000, '{"size": 1e', "\xff", ""])
def test_files_that_are_no_json(tmp_path: Path, text: str) -> None:
    (tmp_path / "preprocess.json").write_bytes(text.encode("latin-1"))
    with pytest.raises(OptionError, match="this is no JSON"):
        read_preprocessing(tmp_path)


def test_the_largest_numbers_stay_finite(tmp_path: Path) -> None:
    file, _ = picture(tmp_path, 9, 9)
    options = PictureOptions(mean=(-1e12,), std=(1e-12,), factor=1e12)
    assert np.isfinite(read_picture(file, Slot((1, 3, 4, 4)), options)).all()


def test_narrow_pictures(tmp_path: Path) -> None:
    file, _ = picture(tmp_path, 3, 4000)
    boxed = PictureOptions(fit="letterbox", fill=7, factor=1.0)
    found = read_picture(file, Slot((1, 3, 8, 8)), boxed)[0]
    assert (found == 7).sum() == 3 * 7 * 8
    with pytest.raises(OptionError, match=r"`p\.png` is too large"):
        read_picture(file, Slot((1, 3, 8, 8)), PictureOptions(fit="crop", edge=400))


def test_what_timm_does_where_nothing_is_said(tmp_path: Path) -> None:
    options = read_preprocessing(write(tmp_path, {"input_size": [3, 28, 28], "crop_pct": None}))
    assert (options.edge, options.filter) == (32, "bicubic")
    assert options.mean == (0.485, 0.456, 0.406)
    assert options.std == (0.229, 0.224, 0.225)


def test_what_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="holds no preprocessing file"):
        read_preprocessing(tmp_path)
    with pytest.raises(OptionError, match="there is no"):
        read_preprocessing(tmp_path / "none.json")


def test_convnext_cuts_what_it_brought_to_more(tmp_path: Path) -> None:
    own = {**VIT, "size": {"shortest_edge": 224}, "crop_pct": 0.875}
    options = read_preprocessing(write(tmp_path, own))
    assert (options.fit, options.edge, options.resize) == ("crop", 256, (224, 224))
    # As older versions of transformers wrote it.
    assert read_preprocessing(write(tmp_path, {**own, "size": 224})) == options
    own["size"] = {"shortest_edge": 384}
    assert read_preprocessing(write(tmp_path, own)).fit == "stretch"
