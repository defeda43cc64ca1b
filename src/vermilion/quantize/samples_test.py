from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from PIL import Image

from vermilion.errors import OptionError
from vermilion.quantize.samples import open_samples


def model_of(inputs: str) -> ir.Model:
    text = f'<ir_version: 8, opset_import: ["" : 17]> g ({inputs}) => (float y) {{ y = Sin(z) }}'
    return ir.from_proto(onnx.parser.parse_model(text.replace("y = Sin(z)", "y = Size(x)")))


PICTURES = model_of("float[1,3,4,6] x")
LAST = model_of("float[n,4,6,3] x")
PAIR = model_of("float[1,2] x, int64[1,3] ids")

RNG = np.random.default_rng(0)


def batch(count: int) -> np.ndarray:
    return RNG.standard_normal((count, 3, 4, 6)).astype(np.float32)


def picture(path: Path, size: tuple[int, int] = (6, 4), mode: str = "RGB") -> np.ndarray:
    channels = (3,) if mode == "RGB" else ()
    pixels = RNG.integers(0, 256, (size[1], size[0], *channels), dtype=np.uint8)
    Image.fromarray(pixels).save(path)
    return pixels


def test_pictures_are_scaled_and_normalized_in_both_layouts(tmp_path: Path) -> None:
    pixels = picture(tmp_path / "a.png")
    mean, std = (0.5, 0.4, 0.3), (0.2, 0.25, 0.5)
    first = next(iter(open_samples(tmp_path, PICTURES, mean=mean, std=std)))["x"]
    last = next(iter(open_samples(tmp_path, LAST, mean=mean, std=std, layout="nhwc")))["x"]
    expected = (pixels / 255 - np.array(mean)) / np.array(std)
    np.testing.assert_allclose(last, expected[None], rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(first, last.transpose(0, 3, 1, 2))
    assert first.dtype == np.float32


def test_pictures_are_resized_sorted_and_limited(tmp_path: Path) -> None:
    for name in ("b.jpg", "a.png", "c.png"):
        picture(tmp_path / name, size=(20, 10))
    (tmp_path / "notes.txt").write_text("not a picture")
    samples = open_samples(tmp_path, PICTURES, limit=2)
    assert [path.name for path in samples.files] == ["a.png", "b.jpg", "c.png"]
    assert [sample["x"].shape for sample in samples] == [(1, 3, 4, 6)] * 2


def test_samples_can_be_read_twice(tmp_path: Path) -> None:
    picture(tmp_path / "a.png")
    samples = open_samples(tmp_path, PICTURES)
    np.testing.assert_array_equal(*(next(iter(samples))["x"] for _ in range(2)))


def test_grey_model_gets_one_channel(tmp_path: Path) -> None:
    picture(tmp_path / "a.png")
    model = model_of("float[1,1,4,6] x")
    assert next(iter(open_samples(tmp_path, model)))["x"].shape == (1, 1, 4, 6)


def test_size_left_open_by_the_model_is_asked_for(tmp_path: Path) -> None:
    picture(tmp_path / "a.png")
    model = model_of("float[1,3,h,w] x")
    with pytest.raises(OptionError, match="leaves the size"):
        open_samples(tmp_path, model)
    sample = next(iter(open_samples(tmp_path, model, resize=(8, 5))))
    assert sample["x"].shape == (1, 3, 8, 5)


@pytest.mark.parametrize("as_one_file", [True, False])
def test_arrays_of_one_input(tmp_path: Path, as_one_file: bool) -> None:
    data = batch(3)
    if as_one_file:
        source = tmp_path / "all.npy"
        np.save(source, data)
    else:
        source = tmp_path
        for number, array in enumerate(data):  # without their batch axis
            np.save(tmp_path / f"{number}.npy", array)
    got = [sample["x"] for sample in open_samples(source, PICTURES)]
    np.testing.assert_array_equal(np.concatenate(got), data)
    assert got[0].shape == (1, 3, 4, 6)


def test_npz_with_a_sample_axis_or_along_the_batch(tmp_path: Path) -> None:
    x, ids = RNG.standard_normal((5, 1, 2)).astype(np.float32), np.arange(15).reshape(5, 3)
    np.savez(tmp_path / "all.npz", x=x, ids=ids)
    got = list(open_samples(tmp_path / "all.npz", PAIR, limit=4))
    assert len(got) == 4
    np.testing.assert_array_equal(got[3]["x"], x[3])
    np.testing.assert_array_equal(got[3]["ids"], ids[3:4])


def test_npz_of_a_folder_is_one_sample_each(tmp_path: Path) -> None:
    for number in range(2):
        np.savez(
            tmp_path / f"{number}.npz",
            x=np.full((1, 2), number, np.float32),
            ids=np.zeros((1, 3), np.int64),
        )
    assert [float(s["x"][0, 0]) for s in open_samples(tmp_path, PAIR)] == [0.0, 1.0]


def test_only_array_of_an_npz_needs_no_name(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", batch(2))
    assert len(list(open_samples(tmp_path, PICTURES))) == 2


def test_random_is_repeatable_and_legal() -> None:
    first, again = (list(open_samples("random", PAIR, limit=3)) for _ in range(2))
    assert len(first) == 3
    for a, b in zip(first, again, strict=True):
        np.testing.assert_array_equal(a["x"], b["x"])
    assert first[0]["x"].dtype == np.float32
    assert set(np.unique(first[0]["ids"])) <= {0, 1}
    assert not np.array_equal(first[0]["x"], first[1]["x"])


def test_random_needs_sizes() -> None:
    with pytest.raises(OptionError, match="dynamic dimensions"):
        open_samples("random", model_of("float[n,3,h,w] x"))


def pickled_npy(folder: Path) -> Path:
    np.save(folder / "a.npy", np.array([{"a": 1}], dtype=object), allow_pickle=True)
    return folder


def pickled_npz(folder: Path) -> Path:
    np.savez(folder / "a.npz", x=np.array([{"a": 1}], dtype=object))
    return folder


def bare_pickle(folder: Path) -> Path:
    (folder / "a.npz").write_bytes(b"\x80\x04}\x94.")
    return folder


def broken_npy(folder: Path) -> Path:
    np.save(folder / "a.npy", batch(1))
    (folder / "a.npy").write_bytes((folder / "a.npy").read_bytes()[:150])
    return folder


def broken_npz(folder: Path) -> Path:
    (folder / "a.npz").write_bytes(b"PK\x03\x04 nothing else")
    return folder


def broken_picture(folder: Path) -> Path:
    (folder / "a.png").write_bytes(b"\x89PNG nothing else")
    return folder


def wrong_shape(folder: Path) -> Path:
    np.save(folder / "a.npy", np.zeros((2, 3, 4, 7), np.float32))
    return folder


def wrong_name(folder: Path) -> Path:
    np.savez(folder / "a.npz", y=np.zeros(1), z=np.zeros(1))
    return folder


def empty_folder(folder: Path) -> Path:
    return folder


def both_kinds(folder: Path) -> Path:
    picture(folder / "a.png")
    np.save(folder / "a.npy", batch(1))
    return folder


def nowhere(folder: Path) -> Path:
    return folder / "nowhere"


def text_file(folder: Path) -> Path:
    (folder / "a.txt").write_text("1 2 3")
    return folder / "a.txt"


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (pickled_npy, "pickle"),
        (pickled_npz, "pickle"),
        (bare_pickle, "pickle"),
        (broken_npy, "cannot be read"),
        (broken_npz, "cannot be read"),
        (broken_picture, "not an image"),
        (wrong_shape, r"got float32\[2,3,4,7\] and expected float32\[1,3,4,6\]"),
        (wrong_name, "no array for input `x`"),
        (empty_folder, "holds no calibration data"),
        (both_kinds, "both images and arrays"),
        (nowhere, "does not exist"),
        (text_file, "not a kind of file"),
    ],
)
def test_sources_that_are_refused(tmp_path: Path, build: object, words: str) -> None:
    with pytest.raises(OptionError, match=words):
        list(open_samples(build(tmp_path), PICTURES))  # type: ignore[operator]


def test_different_counts_are_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=np.zeros((4, 2), np.float32), ids=np.zeros((5, 3), np.int64))
    with pytest.raises(OptionError, match="`x` 4, `ids` 5"):
        list(open_samples(tmp_path, PAIR))


def test_one_array_for_two_inputs_is_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.zeros((1, 2), np.float32))
    with pytest.raises(OptionError, match="2 inputs: `x`, `ids`"):
        list(open_samples(tmp_path, PAIR))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"layout": "chw"}, "unknown layout `chw`"),
        ({"mean": (0.1, 0.2)}, "`mean` has 2 values"),
        ({"std": (0.0,)}, "`std` is 0.0"),
        ({"limit": 0}, "at least 1"),
        ({"layout": "nhwc"}, "6 channels in layout `nhwc`"),
    ],
)
def test_options_that_are_refused(tmp_path: Path, options: dict[str, object], words: str) -> None:
    picture(tmp_path / "a.png")
    with pytest.raises(OptionError, match=words):
        open_samples(tmp_path, PICTURES, **options)  # type: ignore[arg-type]


def test_missing_pillow_says_the_install_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    picture(tmp_path / "a.png")
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(OptionError, match="Pillow") as caught:
        open_samples(tmp_path, PICTURES)
    assert "pip install 'vermilion[images]'" in caught.value.hint
