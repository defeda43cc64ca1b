"""The worker: one IREE program on one device, opened and run on request.

Speaks the contract of `backends.provider.contract`: `provider` is IREE's address of the device.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from vermilion.backends.iree.parameters import SCOPE, mapped_weights
from vermilion.backends.iree.toolchain import FUNCTION
from vermilion.backends.provider.contract import Request
from vermilion.process.arrays import Row, read_values, write_values

PROGRAM = "program"  # the key of a request's options that names the file
WEIGHTS = "weights"  # and of the one that says where the program's weights lie
INPUTS_FILE, OUTPUTS_FILE = "inputs.raw", "outputs.raw"  # of runs whose sizes are not known before


class Worker:
    """The program behind the contract."""

    def __init__(self, folder: str) -> None:
        self._folder = Path(folder)
        self._function: Any = None

    def open(self, request: Mapping[str, Any]) -> dict[str, object]:
        """Open the device and load the program into it."""
        asked = Request.of_message(request)
        os.environ.update(asked.environment)  # before the library reads it
        import iree.runtime as runtime

        self._inputs = [tensor.map(self._folder) for tensor in asked.inputs]
        self._outputs = [tensor.map(self._folder) for tensor in asked.outputs]
        context = runtime.SystemContext(
            config=runtime.Config(device=runtime.get_device(asked.provider))
        )
        program = self._folder / asked.options[PROGRAM]
        module = runtime.VmModule.mmap(context.instance, str(program))
        context.add_vm_modules((*self._lent(context.instance, asked), module))
        self._function = getattr(context.modules, module.name)[FUNCTION]
        return {"providers": [asked.provider], "assigned": {}}

    def run(self) -> None:
        """Compute the outputs' files from the inputs' files."""
        found = self._function(*self._inputs)
        made = found if isinstance(found, tuple | list) else (found,)
        for place, array in zip(self._outputs, made, strict=True):
            place[...] = np.asarray(array.to_host())

    def run_sizes(self, inputs: Mapping[str, Row]) -> dict[str, object]:
        """Compute from inputs of any sizes; return where the outputs lie, in order."""
        given = read_values(dict(inputs), self._folder / INPUTS_FILE)
        found = self._function(*given.values())
        made = found if isinstance(found, tuple | list) else (found,)
        arrays = {str(at): np.asarray(array.to_host()) for at, array in enumerate(made)}
        return {"outputs": write_values(arrays, self._folder / OUTPUTS_FILE)}

    def _lent(self, instance: Any, asked: Request) -> tuple[Any, ...]:
        """Return the module that has the program's weights, none where it has them itself."""
        import iree.runtime as runtime

        lent = list(mapped_weights(asked.options.get(WEIGHTS, "{}"), self._folder))
        if not lent:
            return ()
        index = runtime.ParameterIndex()
        for key, data in lent:
            index.add_buffer(key, data)
        provider = index.create_provider(scope=SCOPE)
        return (runtime.create_io_parameters_module(instance, provider),)

    def close(self) -> dict[str, object]:
        """End the session: this runtime counts nothing."""
        return {"events": {}}
