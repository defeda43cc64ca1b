"""A stand-in for the vendor's provider that misbehaves as told: the worker `fake_provider, MODE`.

A real process behind the same contract as the real worker. It computes with ONNX Runtime's CPU
provider, calls itself VitisAI, and then does what its mode says.
"""

from __future__ import annotations

import ctypes
import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from vermilion.backends.provider.contract import CPU, MODEL_FILE, Request
from vermilion.backends.vitisai.evidence import NPU

OFFLOADED = (
    "Number of operators supported by VAIML: 3 (100.000%)\n"
    "Number of operators offloaded by VAIML: 3 (100.000%)\n"
)
SUPPORTED = "Number of operators supported by VAIML: 0(0.000%)\n"
CLAIM = "[Vitis AI EP] No. of Operators : CPU 0 NPU {n}\n"


class Worker:
    def __init__(self, mode: str, folder: str) -> None:
        self.mode = mode
        self.folder = Path(folder)
        self.runs = 0

    def open(self, request: Mapping[str, Any]) -> dict[str, object]:
        import onnxruntime as ort

        self.request = Request.of_message(request)
        if self.mode == "hang while compiling":
            time.sleep(600)
        if self.mode == "access violation while compiling":
            print("AIE compile: success", flush=True)
            crash()
        operator = self.mode.partition("access violation on ")[2]
        nodes = onnx.load(self.folder / MODEL_FILE).graph.node if operator else []
        if any(node.op_type == operator for node in nodes):
            crash()
        if self.mode == "exception":
            raise RuntimeError("Flexible L1 placement failure in layer 105")
        cache = self.request.options.get("cache_dir")
        if cache:
            folder = Path(cache) / self.request.options["cache_key"]
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "context.json").write_text("{}")
            deep = folder / "vaiml_par_0" / "0" / "deep" / "er"
            deep.mkdir(parents=True, exist_ok=True)
            (deep / "program.bin").write_bytes(b"aie")
            if self.mode == "a plan that nothing supports":
                (folder / "final-vaiml-pass-summary.txt").write_text(OFFLOADED)
                (folder / "preliminary-vaiml-pass-summary.txt").write_text(SUPPORTED)
        self.session = ort.InferenceSession(
            self.folder / MODEL_FILE, providers=["CPUExecutionProvider"]
        )
        if self.mode == "provider missing":
            return {"providers": [CPU], "assigned": {CPU: 3}}
        print(CLAIM.format(n=3), flush=True)
        return {"providers": [NPU, CPU], "assigned": {NPU: 3}}

    def run(self) -> None:
        self.runs += 1
        if self.mode == "hang while running":
            time.sleep(600)
        if self.mode == "access violation while running":
            crash()
        inputs = {t.name: t.map(self.folder) for t in self.request.inputs}
        names = [t.name for t in self.request.outputs]
        results = self.session.run(names, inputs)
        for tensor, result in zip(self.request.outputs, results, strict=True):
            mapped = tensor.map(self.folder)
            if self.mode == "one entry unwritten":
                mapped[:1] = result[:1]
            elif self.mode == "one entry wrong":
                mapped[...] = result
                mapped[-1] = result[-1][::-1]
            elif self.mode == "NaN":
                mapped[...] = result
                mapped.flat[3] = np.nan
            elif self.mode == "wrong":
                mapped[...] = -result
            elif self.mode == "nothing written":
                pass
            else:
                mapped[...] = result

    def close(self) -> dict[str, object]:
        if self.mode == "everything on the CPU":
            return {"events": {CPU: 3 * self.runs}}
        if self.mode == "no profile":
            return {"events": {}}
        return {"events": {NPU: self.runs}}


def crash() -> None:
    sys.stderr.write("xir_deserialize_cif\n")
    sys.stderr.flush()
    if sys.platform == "win32":
        ctypes.string_at(0)
    os.kill(os.getpid(), 11)
