"""Other quantizers, as `quantize_bench.py` calls them: each gives what is timed, imports are not.

All get the same simplified file and the same samples, and write `result.onnx` beside it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

Sample = dict[str, np.ndarray]
Run = Callable[[Path, Sequence[Sample]], dict[str, Any]]


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


def session_options(engine: str) -> Any:
    """Return the options to open a result with: Quark's files may hold operators of its own."""
    import onnxruntime as ort

    options = ort.SessionOptions()
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
