"""The worker: one IREE program on one device, opened and run on request.

Speaks the contract of `backends.provider.contract`: `provider` is IREE's address of the device.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from vermilion.backends.iree.toolchain import FUNCTION
from vermilion.backends.provider.contract import Request

PROGRAM = "program"  # the key of a request's options that names the file


class Worker:
    """The program behind the contract."""

    def __init__(self, folder: str) -> None:
        self._folder = Path(folder)
        self._function: Any = None

    def open(self, request: Mapping[str, Any]) -> dict[str, object]:
        """Open the device and load the program into it."""
        import iree.runtime as runtime

        asked = Request.of_message(request)
        self._inputs = [tensor.map(self._folder) for tensor in asked.inputs]
        self._outputs = [tensor.map(self._folder) for tensor in asked.outputs]
        context = runtime.SystemContext(
            config=runtime.Config(device=runtime.get_device(asked.provider))
        )
        program = self._folder / asked.options[PROGRAM]
        module = runtime.VmModule.mmap(context.instance, str(program))
        context.add_vm_module(module)
        self._function = getattr(context.modules, module.name)[FUNCTION]
        return {"providers": [asked.provider], "assigned": {}}

    def run(self) -> None:
        """Compute the outputs' files from the inputs' files."""
        found = self._function(*self._inputs)
        made = found if isinstance(found, tuple | list) else (found,)
        for place, array in zip(self._outputs, made, strict=True):
            place[...] = np.asarray(array.to_host())

    def close(self) -> dict[str, object]:
        """End the session: this runtime counts nothing."""
        return {"events": {}}
