"""A stand-in for AMD's MIGraphX provider: the worker `fake_gpu_provider, MODE`.

A real process behind the same contract as the real worker. It computes with ONNX Runtime's CPU
provider, and keeps "programs" as the real one does: named after the model's file name and its
shapes, and neither after weights nor after precision. What lies there under that name is run.
"""

from __future__ import annotations

import hashlib
import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from vermilion.backends.provider.contract import CPU, Request

ARCHITECTURE = "gfx1100"


class Worker:
    def __init__(self, mode: str, folder: str) -> None:
        self.mode = mode
        self.folder = Path(folder)
        self.runs = 0

    def open(self, request: Mapping[str, Any]) -> dict[str, object]:
        import onnxruntime as ort

        self.request = Request.of_message(request)
        options = self.request.options
        self.cache = Path(options.get("cache_dir") or options["migraphx_model_cache_dir"])
        self.is_half = "1" in (options.get("fp16_enable"), options.get("migraphx_fp16_enable"))
        if self.mode == "hang":
            time.sleep(600)
        if self.mode == "crash":
            sys.stderr.write("hipErrorOutOfMemory\n")
            sys.stderr.flush()
            os.abort()
        entries = self.request.session_entries
        on_cpu = 1 if self.mode == "a node on the CPU" else 0
        if on_cpu and entries.get("session.disable_cpu_ep_fallback") == "1":
            raise RuntimeError("This session contains graph nodes that are assigned to the CPU")
        program = self._program()
        self.session = ort.InferenceSession(program, providers=[CPU])
        if entries.get("ep.context_enable") == "1":
            self._write_context(Path(entries["ep.context_file_path"]), program)
        if self.mode == "the CPU alone":
            return {"providers": [CPU], "assigned": {CPU: 2}}
        given = 0 if self.mode == "no node" else 2 - on_cpu
        assigned = {self.request.provider: given, CPU: on_cpu}
        return {"providers": [self.request.provider, CPU], "assigned": assigned}

    def _program(self) -> Path:
        model = onnx.load(self.folder / self.request.model)
        contexts = [node for node in model.graph.node if node.op_type == "EPContext"]
        if contexts:
            said = {a.name: a.s.decode() for a in contexts[0].attribute}
            return self.cache / said["ep_cache_context"]
        shapes = [list(t.shape) for t in self.request.inputs]
        name = hashlib.sha256(f"{self.request.model} {shapes}".encode()).hexdigest()[:16]
        program = self.cache / f"{name}.mxr"
        if not program.is_file():
            onnx.save(model, program)
        return program

    def _write_context(self, file: Path, program: Path) -> None:
        made_for = "gfx942:sramecc+:xnack-" if self.mode == "another GPU" else ARCHITECTURE
        where = "../../elsewhere.mxr" if self.mode == "outside" else program.name
        node = onnx.helper.make_node(
            "EPContext",
            [t.name for t in self.request.inputs],
            [t.name for t in self.request.outputs],
            domain="com.microsoft",
            embed_mode=0,
            ep_cache_context=where,
            hardware_architecture=made_for,
            ep_sdk_version="2.14.0",
        )
        graph = onnx.helper.make_graph([node], "context", [], [])
        onnx.save(onnx.helper.make_model(graph), file)

    def run(self) -> None:
        self.runs += 1
        inputs = {t.name: t.map(self.folder) for t in self.request.inputs}
        names = [t.name for t in self.request.outputs]
        for tensor, result in zip(
            self.request.outputs, self.session.run(names, inputs), strict=True
        ):
            made = result.astype(np.float16) if self.is_half else result
            tensor.map(self.folder)[...] = -made if self.mode == "wrong" else made

    def close(self) -> dict[str, object]:
        if self.mode == "events on the CPU":
            return {"events": {CPU: 2 * self.runs}}
        return {"events": {self.request.provider: self.runs}}
