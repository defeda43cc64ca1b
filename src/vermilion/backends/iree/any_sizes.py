"""A program whose sizes are known when it runs, in a worker."""

from __future__ import annotations

import math
import os
import threading
import weakref
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from vermilion.backends.base import Array, Tensors
from vermilion.backends.iree.signature import Signature
from vermilion.backends.iree.worker import INPUTS_FILE, OUTPUTS_FILE
from vermilion.backends.provider.child import no_room
from vermilion.backends.provider.contract import Request
from vermilion.errors import DeviceError
from vermilion.forks import renew_after_fork
from vermilion.process.arrays import read_values, write_values
from vermilion.process.child import LOG_FILE, Child, ChildError


class AnySizes:
    """An `Executable`: one run at a time."""

    def __init__(
        self,
        worker: tuple[str, ...],
        request: Request,
        signature: Signature,
        folder: Path,
        stays: ExitStack,
        *,
        runs_on: str,
        open_limit_s: float,
        run_limit_s: float,
    ) -> None:
        """Start the worker on `folder`, and wait until it has the program.

        Raises: ChildError; DeviceError where there is no room.
        """
        self._signature, self._folder, self._limit_s = signature, folder, run_limit_s
        self._runs_on, self._who = runs_on, f"IREE on {request.provider}"
        self._lock = threading.Lock()
        self._child = Child(
            (*worker, str(folder)), folder / LOG_FILE, who=self._who, scratch=folder, native=True
        )
        stays.callback(self._child.stop)
        self._child.ask("open", {"request": asdict(request)}, limit_s=open_limit_s, stage="opening")
        self._end = weakref.finalize(self, _end, stays.pop_all(), os.getpid())
        renew_after_fork(self)

    @property
    def runs_on(self) -> str:
        """Say where it runs."""
        return self._runs_on

    def run(self, inputs: Tensors) -> dict[str, Array]:
        """Compute every output.

        Raises: OtherSizesError where the program is not right at these sizes; DeviceError,
        ChildError.
        """
        given = {t.name: np.asarray(inputs[t.name], t.dtype) for t in self._signature.inputs}
        for tensor in self._signature.inputs:
            shape = given[tensor.name].shape
            if not tensor.fits(shape):
                raise DeviceError(
                    f"`{tensor.name}` has the shape {list(shape)}, and the program takes "
                    f"{[n if n is not None else '?' for n in tensor.shape]}",
                    where=self._who,
                )
        if self._signature.sizes is not None:
            shapes = [given[tensor.name].shape for tensor in self._signature.inputs]
            self._signature.sizes.check(list(given), shapes)
        with self._lock:
            try:
                rows = write_values(given, self._folder / INPUTS_FILE)
            except OSError as error:
                raise no_room(error, self._folder) from error
            said = self._child.ask(
                "run_sizes", {"inputs": rows}, limit_s=self._limit_s, stage="running"
            )
            return self._read(said)

    def stop(self) -> None:
        """End the worker."""
        self._end()

    def after_fork(self) -> None:
        """Renew the lock in a forked process, where a run is refused: whoever held it is gone."""
        self._lock = threading.Lock()

    def _read(self, said: dict[str, Any]) -> dict[str, Array]:
        wanted = self._signature.outputs
        try:
            found = read_values(said["outputs"], self._folder / OUTPUTS_FILE)
            arrays = [found[str(at)] for at in range(len(wanted))]
        except (ValueError, KeyError, TypeError, OSError) as error:
            words = f"the process broke while running: it answers nonsense: {error}"
            raise ChildError("crashed", words, who=self._who, stage="running", log="") from error
        outputs = {}
        for tensor, array in zip(wanted, arrays, strict=True):
            if not tensor.fits(array.shape) or array.nbytes != _bytes(tensor.dtype, array.shape):
                raise DeviceError(
                    f"the program gives `{tensor.name}` the shape {list(array.shape)}",
                    where=self._who,
                )
            outputs[tensor.name] = array.view(tensor.dtype)
        return outputs


def _bytes(dtype: str, shape: tuple[int, ...]) -> int:
    return math.prod(shape) * np.dtype(dtype).itemsize


def _end(stays: ExitStack, opened_in: int) -> None:
    # A forked process has a copy of this, and the worker is not its to end.
    if os.getpid() == opened_in:
        stays.close()
