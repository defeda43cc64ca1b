"""The public names are a list: what is not on it may change today."""

from __future__ import annotations

import subprocess
import sys

import vermilion


def test_the_list_is_sorted_short_and_true() -> None:
    assert vermilion.__all__ == sorted(vermilion.__all__)
    assert len(vermilion.__all__) <= 12
    for name in vermilion.__all__:
        assert getattr(vermilion, name) is not None


def test_the_names_are_these() -> None:
    assert vermilion.__all__ == [
        "Compiled",
        "InferenceSession",
        "Session",
        "VermilionError",
        "__version__",
        "compile_model",
        "export_model",
        "inspect_model",
        "quantize_file",
    ]


def test_importing_loads_nothing_heavy() -> None:
    code = (
        "import sys, vermilion; "
        "heavy = {'numpy', 'onnx', 'onnxruntime', 'onnx_ir', 'torch'} & set(sys.modules); "
        "sys.exit(f'loaded: {heavy}' if heavy else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
