"""A stand-in for the vendor's provider that misbehaves as told: the worker `fake_provider, MODE`.

A real process behind the same contract as the real worker. It computes with ONNX Runtime's CPU
provider, calls itself VitisAI, and then does what its mode says.
"""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from vermilion.backends.provider.contract import CPU, MODEL_FILE, Request

# As in `vitisai.evidence`, which loads a library of graphs: half of this process's start.
NPU = "VitisAIExecutionProvider"
OFFLOADED = (
    "Number of operators supported by VAIML: 3 (100.000%)\n"
    "Number of operators offloaded by VAIML: 3 (100.000%)\n"
)
SUPPORTED = "Number of operators supported by VAIML: 0(0.000%)\n"
# Modes in which only what is written or counted says where nodes ran.
REPORTS = {
    "a report of all on the CPU": {"all": 3, "CPU": 3},
    "a report of one on the NPU": {"all": 3, "NPU": 1, "CPU": 2},
    "a report that leaves two out": {"NPU": 1},
}
NONSENSE: Mapping[str, dict[str, object]] = {
    "text for a number": {"providers": [NPU], "assigned": {NPU: "many"}},
    "nothing for a list": {"providers": None, "assigned": None},
    "a negative number": {"providers": [NPU], "assigned": {NPU: -3}},
}
SILENT = (*REPORTS, "two of three on the CPU")
CLAIM = "[Vitis AI EP] No. of Operators : CPU 0 NPU {n}\n"


class Worker:
    def __init__(self, mode: str, folder: str) -> None:
        self.mode = mode
        self.folder = Path(folder)
        self.runs = 0

    def open(self, request: Mapping[str, Any]) -> dict[str, object]:
        self.request = Request.of_message(request)
        if self.mode == "hang while compiling":
            time.sleep(600)
        if self.mode == "access violation while compiling":
            print("AIE compile: success", flush=True)
            crash()
        operator = self.mode.partition("access violation on ")[2]
        if operator:
            import onnx

            nodes = onnx.load(self.folder / MODEL_FILE).graph.node
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
            self._write_into(folder)
        import onnxruntime as ort

        self.session = ort.InferenceSession(
            self.folder / MODEL_FILE, providers=["CPUExecutionProvider"]
        )
        if self.mode == "provider missing":
            return {"providers": [CPU], "assigned": {CPU: 3}}
        if self.mode in NONSENSE:
            return NONSENSE[self.mode]
        if self.mode not in SILENT:
            print(CLAIM.format(n=3), flush=True)
        return {"providers": [NPU, CPU], "assigned": {NPU: 3}}

    def _write_into(self, folder: Path) -> None:
        """Write what the provider writes besides its programs."""
        report = folder / "vitisai_ep_report.json"
        if self.mode in REPORTS:
            rows = [{"name": name, "nodeNum": count} for name, count in REPORTS[self.mode].items()]
            report.write_text(json.dumps({"deviceStat": rows}))
        if self.mode == "writes without end":
            os.mkfifo(report)
            (folder / "final-vaiml-pass-summary.txt").symlink_to("/dev/zero")
        if self.mode == "names that no other system takes":
            (folder / "x:y.bin").write_bytes(b"1")
        if self.mode == "paths without end":
            os.chdir(folder)
            for _ in range(25):
                os.mkdir("d" * 200)  # noqa: PTH102
                os.chdir("d" * 200)
        if self.mode == "writes without end":
            for _ in range(24):
                os.write(2, b"E: a message of the provider, and again \xff\n" * 30000)
        if self.mode == "leaves processes behind":
            subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])

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
            elif self.mode == "twice":
                mapped[...] = 2 * result
            elif self.mode == "a tenth":
                mapped[...] = result / 10
            elif self.mode == "noise of 13 %":
                noise = np.random.default_rng(0).standard_normal(result.shape)
                mapped[...] = result * (1 + 0.13 * noise)
            elif self.mode == "cuts its files short":
                mapped[...] = result
                os.truncate(self.folder / tensor.file, 0)
            elif self.mode == "nothing written later" and self.runs > 1:
                pass
            elif self.mode == "NaN later" and self.runs > 1:
                mapped[...] = result
                mapped.flat[3] = np.nan
            elif self.mode == "fails later" and self.runs > 1:
                raise RuntimeError("device lost")
            else:
                mapped[...] = result

    def close(self) -> dict[str, object]:
        if self.mode == "everything on the CPU":
            return {"events": {CPU: 3 * self.runs}}
        if self.mode == "no profile":
            return {"events": {}}
        if self.mode == "two of three on the CPU":
            return {"events": {NPU: 1, CPU: 2}}
        if self.mode == "negative events":
            return {"events": {NPU: -1}}
        if self.mode == "dies when it is closed":
            os._exit(9)
        return {"events": {NPU: self.runs}}


def crash() -> None:
    sys.stderr.write("xir_deserialize_cif\n")
    sys.stderr.flush()
    if sys.platform == "win32":
        ctypes.string_at(0)
    os.kill(os.getpid(), 11)
