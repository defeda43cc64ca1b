"""What the quantizer's benches have in common: models, their data, and other quantizers.

A function of data draws one sample from `rng`. Of the options it reads `photos`, a folder, `font`,
a TrueType file, and `evaluating`: calibration sees the even photographs, evaluation the odd ones.
What a line of text says is left in `options.text`.

Other quantizers give what is timed, imports are not. All get the same simplified file and the same
samples, and write `result.onnx` beside it. They run in environments of their own, which have no
more of this package than its files.
"""

from __future__ import annotations

import argparse
import json
import logging
import re
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import onnx_ir as ir

ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "tests")]

Sample = dict[str, np.ndarray]
Run = Callable[[Path, Sequence[Sample]], dict[str, Any]]
Draw = Callable[[np.random.Generator, argparse.Namespace], np.ndarray]

CALIBRATION_SEED = 1234
EVALUATION_SEED = 9999


def noise(rng: np.random.Generator, options: argparse.Namespace) -> np.ndarray:
    """Return an image of normal noise."""
    return rng.standard_normal((1, 3, 224, 224)).astype(np.float32)


def text_line(rng: np.random.Generator, options: argparse.Namespace) -> np.ndarray:
    """Return a line of text, 48 × 320, as PP-OCR's recognition is fed."""
    return _ocr_input(_draw_text(rng, options, (320, 48), lines=1), 0.5, 0.5)


def text_label(rng: np.random.Generator, options: argparse.Namespace) -> np.ndarray:
    """Return a line of text, upright or not, 48 × 192, as PP-OCR's direction classifier is fed."""
    image = _draw_text(rng, options, (192, 48), lines=1)
    return _ocr_input(image[::-1, ::-1] if rng.integers(2) else image, 0.5, 0.5)


def text_page(rng: np.random.Generator, options: argparse.Namespace) -> np.ndarray:
    """Return a page of text, 320 × 320, as PP-OCR's detection is fed."""
    image = _draw_text(rng, options, (320, 320), lines=int(rng.integers(3, 8)))
    return _ocr_input(image, np.array([0.485, 0.456, 0.406]), np.array([0.229, 0.224, 0.225]))


def picture(rng: np.random.Generator, options: argparse.Namespace) -> np.ndarray:
    """Return a crop as YOLOv8 is fed: 320 × 320, red first, from 0 to 1."""
    from PIL import Image

    crop = Image.fromarray(_photo(rng, options).astype(np.uint8)).resize((320, 320), Image.BILINEAR)
    return (np.asarray(crop, np.float32) / 255.0).transpose(2, 0, 1)[None].copy()


def photo(rng: np.random.Generator, options: argparse.Namespace) -> np.ndarray:
    """Return a crop as open_nsfw is fed: blue first, means taken off, channels last."""
    image = _photo(rng, options)[:, :, ::-1] - np.array([104.0, 117.0, 123.0])
    return image.astype(np.float32)[None]


def _photo(rng: np.random.Generator, options: argparse.Namespace) -> np.ndarray:
    from PIL import Image

    files = sorted(p for p in Path(options.photos).iterdir()) if options.photos else []
    # Calibration sees the even photographs, evaluation the odd ones.
    files = files[options.evaluating :: 2]
    if not files:
        small = Image.fromarray(rng.integers(0, 256, (9, 9, 3), dtype=np.uint8))
        return np.asarray(small.resize((224, 224), Image.BICUBIC), np.float64)
    image = _opened(files[int(rng.integers(len(files)))])
    side = int(rng.integers(min(224, *image.size), min(image.size) + 1))
    left, top = (int(rng.integers(0, length - side + 1)) for length in image.size)
    crop = image.crop((left, top, left + side, top + side)).resize((224, 224), Image.BILINEAR)
    return np.asarray(crop, np.float64)


@cache
def _opened(file: Path) -> Any:
    from PIL import Image

    return Image.open(file).convert("RGB")


def _draw_text(
    rng: np.random.Generator, options: argparse.Namespace, size: tuple[int, int], lines: int
) -> np.ndarray:
    from PIL import Image, ImageDraw, ImageFont

    width, height = size
    paper = tuple(int(v) for v in rng.integers(170, 256, 3))
    ink = tuple(int(v) for v in rng.integers(0, 90, 3))
    image = Image.new("RGB", size, paper)
    pitch = height // lines
    for line in range(lines):
        words = [str(word) for word in rng.choice(_words(), 4)]
        points = int(rng.integers(pitch // 2, max(pitch // 2 + 1, (3 * pitch) // 4)))
        font = ImageFont.truetype(options.font, min(points, 36)) if options.font else None
        while len(words) > 1 and _length(" ".join(words), font, points) > width - 8:
            words.pop()  # what is not to be seen cannot be read
        text = options.text = " ".join(words)
        if font is not None:
            ImageDraw.Draw(image).text((4, line * pitch + 2), text, fill=ink, font=font)
            continue
        # The built-in font has one size: drawn small, then enlarged.
        strip = Image.new("L", (6 * len(text) + 4, 12))
        ImageDraw.Draw(strip).text((2, 0), text, fill=255, font=ImageFont.load_default())
        strip = strip.resize((int(strip.width * points / 12), points), Image.BICUBIC)
        image.paste(ink, (4, line * pitch + 2), strip)
    dirt = rng.normal(0.0, 4.0, (height, width, 3))
    return np.clip(np.asarray(image, np.float64) + dirt, 0, 255)


@cache
def _words() -> list[str]:
    """Return words that mean something: a reader of text was trained on such."""
    from pydoc_data.topics import topics

    return sorted(set(re.findall(r"\b[A-Za-z]{3,9}\b", " ".join(topics.values()))))


def _length(text: str, font: Any, points: int) -> float:
    """Return the pixels that a line takes."""
    return font.getlength(text) if font is not None else (6 * len(text) + 4) * points / 12


def _ocr_input(image: np.ndarray, mean: Any, deviation: Any) -> np.ndarray:
    return ((image / 255.0 - mean) / deviation).transpose(2, 0, 1).astype(np.float32)[None]


@dataclass(frozen=True)
class Case:
    """A model and the data that it is made for."""

    package_model: str  # as the tests name it, or DISTRIBUTION/FILE; empty: built here
    input_name: str
    shape: tuple[int, ...]
    draw: Draw
    last_node: str = ""  # cut the model after this tensor


CASES = {
    "r50": Case("", "input", (1, 3, 224, 224), noise),
    "det": Case("ocr-det", "x", (1, 3, 320, 320), text_page),
    "rec": Case("ocr-rec", "x", (1, 3, 48, 320), text_line),
    "cls": Case("ocr-cls", "x", (1, 3, 48, 192), text_label),
    "nsfw": Case("nsfw", "input:0", (1, 224, 224, 3), photo, last_node="AveragePool"),
    "nudenet": Case("nudenet/320n.onnx", "images", (1, 3, 320, 320), picture),
}


def prepared(case: Case) -> ir.Model:
    """Return the simplified float model with static shapes."""
    import onnx_ir as ir

    import models
    from model_wheels import package_file
    from vermilion.ir.passes.pipeline import simplify

    if not case.package_model:
        return simplify(models.resnet50()).model
    package, _, file = case.package_model.partition("/")
    loaded = ir.load(package_file(package, file)) if file else models.package_model(package)
    model = simplify(loaded, dims={case.input_name: case.shape}).model
    if case.last_node:
        node = next(n for n in reversed(list(model.graph)) if n.op_type == case.last_node)
        model.graph.outputs.clear()
        model.graph.outputs.append(node.outputs[0])
        from onnx_ir.passes import common

        common.RemoveUnusedNodesPass()(model)
    return model


def drawn(case: Case, seed: int, count: int, options: argparse.Namespace) -> Iterator[Sample]:
    """Yield `count` samples."""
    options.evaluating = int(seed == EVALUATION_SEED)
    rng = np.random.default_rng(seed)
    for _ in range(count):
        yield {case.input_name: case.draw(rng, options)}


def onnxruntime(words: str) -> Run:
    """`quantize_static` with its defaults, `per_channel`, or a method such as `Percentile`."""
    from onnxruntime.quantization import CalibrationMethod, QuantFormat, quantize_static

    methods = {
        name: getattr(CalibrationMethod, name) for name in words.split("+") if name[:1].isupper()
    }

    def run(folder: Path, samples: Sequence[Sample]) -> dict[str, Any]:
        quantize_static(
            folder / "float.onnx",
            folder / "result.onnx",
            _reader(samples),
            quant_format=QuantFormat.QDQ,
            per_channel="per_channel" in words,
            **({"calibrate_method": next(iter(methods.values()))} if methods else {}),
        )
        return {}

    return run


def quark(words: str) -> Run:
    """One of the presets of AMD Quark for ONNX."""
    from quark.onnx import ModelQuantizer  # type: ignore[import-not-found]
    from quark.onnx.quantization.config import Config, get_default_config

    def run(folder: Path, samples: Sequence[Sample]) -> dict[str, Any]:
        config = Config(global_quant_config=get_default_config(words))
        names = str(folder / "float.onnx"), str(folder / "result.onnx")
        ModelQuantizer(config).quantize_model(*names, _reader(samples))
        return {}

    return run


def nncf(words: str) -> Run:
    """`nncf.quantize` with its defaults, or a preset: `mixed`."""
    import nncf as library  # type: ignore[import-not-found]
    import onnx

    settings = {"preset": library.QuantizationPreset(words)} if words else {}
    library.set_log_level(logging.ERROR)

    def run(folder: Path, samples: Sequence[Sample]) -> dict[str, Any]:
        model = onnx.load(folder / "float.onnx")
        done = library.quantize(
            model, library.Dataset(list(samples)), subset_size=len(samples), **settings
        )
        onnx.save(done, folder / "result.onnx")
        return {}

    return run


def neural_compressor(words: str) -> Run:
    """`quantization.fit` of Intel Neural Compressor 2 with its defaults."""
    from neural_compressor import (  # type: ignore[import-not-found]
        PostTrainingQuantConfig,
        quantization,
    )

    class Loader:
        """The samples one by one; there are no labels."""

        batch_size = 1

        def __init__(self, samples: Sequence[Sample]) -> None:
            self.samples = samples

        def __iter__(self) -> Iterator[tuple[np.ndarray, int]]:
            for sample in self.samples:
                yield next(iter(sample.values())), 0

    def run(folder: Path, samples: Sequence[Sample]) -> dict[str, Any]:
        config = PostTrainingQuantConfig(calibration_sampling_size=[len(samples)])
        done = quantization.fit(
            str(folder / "float.onnx"), config, calib_dataloader=Loader(samples)
        )
        done.save(str(folder / "result.onnx"))
        return {}

    return run


def session_options(engine: str, exact: bool = True) -> Any:
    """Return the options to open a result with: Quark's files may hold operators of its own.

    Sums are exact: without VNNI, ONNX Runtime adds pairs of products of uint8 and int8 in 16 bits,
    which cuts off the larger ones, and a measurement would be of the processor. It fails so over a
    weight that two nodes read: there, without `exact`, what is written in float runs in float.
    What products read in 16 bits or in float stays so.
    """
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.add_session_config_entry("session.x64quantprecision", str(int(exact)))
    options.add_session_config_entry("session.qdq_matmulnbits_accuracy_level", "1")
    if not exact:
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_BASIC
    if engine.startswith("quark"):
        from quark.onnx import get_library_path

        options.register_custom_ops_library(get_library_path("cpu"))
    return options


def _reader(samples: Sequence[Sample]) -> Any:
    from onnxruntime.quantization import CalibrationDataReader

    class Reader(CalibrationDataReader):  # type: ignore[misc]
        """The samples, one by one."""

        def __init__(self) -> None:
            self.left = iter(samples)

        def get_next(self) -> Sample | None:
            return next(self.left, None)

    return Reader()


PEERS: dict[str, Callable[[str], Run]] = {
    "onnxruntime": onnxruntime,
    "quark": quark,
    "nncf": nncf,
    "neural_compressor": neural_compressor,
}


def in_ways(
    script: str,
    about: str,
    kind: str,
    ways: Iterable[str],
    measure: Callable[[argparse.Namespace], dict[str, Any]],
    measured: Sequence[str],
    settings: Mapping[str, int | str],
    turns: int = 5,
) -> None:
    """Measure each way on the float model of each case, in processes that take turns.

    This is the whole of a script: `kind` is what a way is called, in its option and its records,
    `settings` are further options with their defaults, given to each process. `measure` gives a
    record in this process.
    """
    parser = argparse.ArgumentParser(
        description=about, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", default="r50,rec")
    parser.add_argument("--turns", type=int, default=turns)
    parser.add_argument("--json", type=Path)
    for name in (kind, "folder"):
        parser.add_argument(f"--{name}", help=argparse.SUPPRESS)
    for name, value in settings.items():
        parser.add_argument(f"--{name}", type=type(value), default=value)
    options = parser.parse_args()
    if getattr(options, kind):
        sys.stdout.write(json.dumps(measure(options)) + "\n")
        return
    import onnx_ir as ir

    from vermilion.bench.harness import head, in_turns, rows, save_json

    given = [word for name in settings for word in (f"--{name}", str(getattr(options, name)))]
    found = []
    for model in options.models.split(","):
        with tempfile.TemporaryDirectory() as folder:
            ir.save(prepared(CASES[model]), Path(folder) / "float.onnx")
            words = [*given, "--models", model, "--folder", folder]
            commands = [[*words, f"--{kind}", way] for way in ways]
            found += in_turns(script, commands, options.turns)
    for line in (head(("model", kind), measured), *rows(found, ("model", kind), measured)):
        print(line)
    if options.json:
        save_json(options.json, {"results": found})
