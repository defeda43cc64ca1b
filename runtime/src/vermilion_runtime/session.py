"""A compiled model, ready to run: the names of ONNX Runtime's session."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from vermilion_runtime.errors import OptionError
from vermilion_runtime.library import (
    MAX_RANK,
    SKIP_WEIGHTS_DIGEST,
    TRUST_CODE,
    OpenOptions,
    Port,
    SessionOptions,
    Tensor,
    library_file,
    load,
    raise_for,
)

Array = np.ndarray[Any, Any]
_Shape = ctypes.c_int64 * MAX_RANK

# ONNX's numbers of types, their names in ONNX Runtime, and numpy's. bfloat16 is none of numpy's
# own: its bits are given and taken as 16-bit numbers, unless `ml_dtypes` is there.
_TYPES: dict[int, tuple[str, str]] = {
    1: ("tensor(float)", "float32"),
    2: ("tensor(uint8)", "uint8"),
    3: ("tensor(int8)", "int8"),
    4: ("tensor(uint16)", "uint16"),
    5: ("tensor(int16)", "int16"),
    6: ("tensor(int32)", "int32"),
    7: ("tensor(int64)", "int64"),
    9: ("tensor(bool)", "bool"),
    10: ("tensor(float16)", "float16"),
    16: ("tensor(bfloat16)", "bfloat16"),
}
_BFLOAT16 = 16


@dataclass(frozen=True)
class NodeArg:
    """An input or output, with the fields of ONNX Runtime's `NodeArg`."""

    name: str
    type: str
    shape: list[int | str | None]


@dataclass(frozen=True)
class _Port:
    about: NodeArg
    number: int
    dtype: np.dtype[Any]
    has_rank: bool  # whether the model says how many dimensions there are


class Session:
    """An open model. Safe to call from several threads, whose runs take turns."""

    def __init__(
        self,
        model: str | os.PathLike[str] | bytes,
        *,
        threads: int = 0,
        verify: bool = True,
        part: str | None = None,
        trust_code: bool = False,
    ) -> None:
        """Open a `.rai` file, a folder, or the bytes of a file.

        `verify` compares weights with their digest. `part` opens one part alone. Machine code that
        was not made by this user on this machine is refused; `trust_code` runs it as it is.
        """
        self._library = load(str(library_file()))
        self._model, self._session = ctypes.c_void_p(), ctypes.c_void_p()
        flags = TRUST_CODE * trust_code + SKIP_WEIGHTS_DIGEST * (not verify)
        named = part.encode() if part is not None else None
        options = OpenOptions(ctypes.sizeof(OpenOptions), flags, named)
        made = (ctypes.byref(options), ctypes.byref(self._model))
        if isinstance(model, bytes):
            self._held = model  # the library does not copy it
            status = self._library.vermilion_open_memory(self._held, len(model), *made)
        else:
            status = self._library.vermilion_open(os.fsencode(model), *made)
        raise_for(self._library, status)
        wanted = SessionOptions(ctypes.sizeof(SessionOptions), threads)
        raise_for(
            self._library,
            self._library.vermilion_session_new(
                self._model, ctypes.byref(wanted), ctypes.byref(self._session)
            ),
        )
        self._inputs, self._outputs = (self._ports(kind) for kind in ("input", "output"))
        self._fixed = _fixed_shapes(self._outputs)

    def run(self, output_names: Sequence[str] | None, inputs: Mapping[str, object]) -> list[Array]:
        """Compute the outputs that are named, all where none is, in that order.

        Raises: VermilionError of the kind that says who can fix it.
        """
        known = [port.about.name for port in self._outputs]
        names = list(output_names) if output_names else known
        for name in names:
            if name not in known:
                raise OptionError(f"the model has no output `{name}`", hint=f"it has {known}")
        held = [self._held_input(inputs, port) for port in self._inputs]
        unknown = sorted(set(inputs) - {port.about.name for port in self._inputs})
        if unknown:
            raise OptionError(f"the model has no input `{unknown[0]}`")
        given = (Tensor * max(1, len(held)))(
            *(_tensor(array, port) for array, port in zip(held, self._inputs, strict=True))
        )
        taken = (Tensor * max(1, len(known)))()
        counts = (len(held), len(known))
        session = self._opened()
        shapes = self._fixed
        if shapes is None:
            status = self._library.vermilion_shapes(session, given, counts[0], taken, counts[1])
            raise_for(self._library, status)
            shapes = [tuple(tensor.shape[: tensor.rank]) for tensor in taken[: counts[1]]]
        results = [
            np.empty(shape, port.dtype) for shape, port in zip(shapes, self._outputs, strict=True)
        ]
        for tensor, array in zip(taken, results, strict=False):
            tensor.data, tensor.bytes = _address(array), array.nbytes
        raise_for(
            self._library,
            self._library.vermilion_run(session, given, counts[0], taken, counts[1], None),
        )
        return [results[known.index(name)] for name in names]

    def get_inputs(self) -> list[NodeArg]:
        """Return the inputs' names, types and shapes."""
        return [port.about for port in self._inputs]

    def get_outputs(self) -> list[NodeArg]:
        """Return the outputs' names, types and shapes."""
        return [port.about for port in self._outputs]

    @property
    def target(self) -> str:
        """What the model was compiled for."""
        return str(self._library.vermilion_model_target(self._model).decode())

    @property
    def threads(self) -> int:
        """How many threads run it at most."""
        return int(self._library.vermilion_session_workers(self._session))

    def close(self) -> None:
        """Let go of the model; nobody may be running it."""
        session, self._session = self._session, ctypes.c_void_p()
        model, self._model = self._model, ctypes.c_void_p()
        self._library.vermilion_session_free(session)
        self._library.vermilion_model_free(model)

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __del__(self) -> None:
        if hasattr(self, "_model"):
            self.close()

    def _opened(self) -> ctypes.c_void_p:
        if not self._session:
            raise OptionError("the session is closed")
        return self._session

    def _ports(self, kind: str) -> list[_Port]:
        count = getattr(self._library, f"vermilion_{kind}_count")(self._model)
        ask = getattr(self._library, f"vermilion_{kind}")
        return [_port(ask(self._model, number).contents) for number in range(count)]

    def _held_input(self, inputs: Mapping[str, object], port: _Port) -> Array:
        about = port.about
        if about.name not in inputs:
            raise OptionError(
                f"input `{about.name}` is missing", hint=f"it is {about.type} of {about.shape}"
            )
        array = np.asarray(inputs[about.name], order="C")
        if array.dtype != port.dtype:
            raise OptionError(
                f"input `{about.name}` is {array.dtype}, the model wants {port.dtype}",
                hint=f"convert it: `{about.name}.astype('{port.dtype}')`",
            )
        if array.ndim > MAX_RANK:
            raise OptionError(f"input `{about.name}` has {array.ndim} dimensions")
        return array


def _port(port: Port) -> _Port:
    name, number = port.name.decode(), int(port.type)
    shape: list[int | str | None] = []
    for at in range(max(0, port.rank)):
        size, label = int(port.shape[at]), port.names[at]
        shape.append(size if size >= 0 else label.decode() if label else None)
    about = NodeArg(name, _TYPES[number][0], shape)
    return _Port(about, number, _dtype(number), port.rank >= 0)


def _fixed_shapes(ports: Sequence[_Port]) -> list[tuple[int, ...]] | None:
    """Return the shapes of outputs that are the same in every run, None where one is not."""
    found = [tuple(size for size in port.about.shape if isinstance(size, int)) for port in ports]
    known = all(
        len(shape) == len(port.about.shape) and port.has_rank
        for shape, port in zip(found, ports, strict=True)
    )
    return found if known else None


def _address(array: Array) -> int:
    """Return where an array lies; asking `ctypes` takes a microsecond."""
    address: int = array.__array_interface__["data"][0]
    return address


def _dtype(number: int) -> np.dtype[Any]:
    if number != _BFLOAT16:
        return np.dtype(_TYPES[number][1])
    try:
        import ml_dtypes
    except ImportError:
        return np.dtype(np.uint16)
    found: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)
    return found


def _tensor(array: Array, port: _Port) -> Tensor:
    return Tensor(_address(array), array.nbytes, port.number, array.ndim, _Shape(*array.shape))
