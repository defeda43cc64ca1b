"""The child: one IREE program on one device, opened and run on order.

Speaks the contract of `backends.process.contract`: `provider` is IREE's address of the device.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np

from vermilion.backends.iree.toolchain import FUNCTION
from vermilion.backends.process.contract import Request
from vermilion.backends.process.worker import (
    leave_interrupts_to_parent,
    private_stdout,
    reply,
    serve,
)

PROGRAM = "program"  # the key of a request's options that names the file


def main() -> None:
    """Serve the folder that the first argument names."""
    leave_interrupts_to_parent()
    folder = Path(sys.argv[1])
    replies = private_stdout(folder)
    try:
        serve(IreeSession(Request.read(folder), folder), replies)
    except Exception as error:  # the runtime's exceptions share no base but Exception
        reply(replies, "failed", reason=f"{type(error).__name__}: {_words(error)}")


class IreeSession:
    """The program behind the contract."""

    def __init__(self, request: Request, folder: Path) -> None:
        self._request = request
        self._folder = folder
        self._inputs = [tensor.map(folder) for tensor in request.inputs]
        self._outputs = [tensor.map(folder) for tensor in request.outputs]
        self._function: Any = None

    def open(self) -> dict[str, object]:
        """Open the device and load the program into it."""
        import iree.runtime as runtime

        context = runtime.SystemContext(
            config=runtime.Config(device=runtime.get_device(self._request.provider))
        )
        program = self._folder / self._request.options[PROGRAM]
        module = runtime.VmModule.mmap(context.instance, str(program))
        context.add_vm_module(module)
        self._function = getattr(context.modules, module.name)[FUNCTION]
        return {"providers": [self._request.provider], "assigned": {}}

    def run(self) -> None:
        """Compute the outputs' files from the inputs' files."""
        found = self._function(*self._inputs)
        made = found if isinstance(found, tuple | list) else (found,)
        for place, array in zip(self._outputs, made, strict=True):
            place[...] = np.asarray(array.to_host())

    def close(self) -> dict[str, int]:
        """End the session: this runtime counts nothing."""
        return {}


def _words(error: Exception) -> str:
    return " ".join(str(error).split())[:500]
