"""A written decoder, tried: the C library's logits against our engine's, bit for bit.

Bounded ones, which are a hyperbolic tangent, to a few units in the last place.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vermilion.clib.library import library
from vermilion.cores import usable_cores
from vermilion.errors import ArtifactError, DeviceError
from vermilion.hardware.cpu import detect_cpu
from vermilion.llm.ahead.write import TargetDecoder
from vermilion.llm.engine.decoder import FEW_ROWS, NativeDecoder
from vermilion.llm.engine.open_native import isa_for

# How many tokens are read at a time: by the program for many, by that for few, one by one.
_READS = (FEW_ROWS + 5, 3, 1, 1)

# Bounded logits are a hyperbolic tangent: the C library's is rounded right, numpy's is off by a few
# units in the last place.
_TANH = 2.0**-21


@dataclass(frozen=True)
class Reader:
    """What reads tokens into one sequence, and the sequence, as C has it."""

    read: Callable[[Sequence[int]], NDArray[np.float32]]
    cache: Any


class FileCache(ctypes.Structure):
    """`vermilion_cache` of `vermilion.h`."""

    _fields_ = (
        ("size", ctypes.c_size_t),
        ("data", ctypes.c_void_p),
        ("bytes", ctypes.c_size_t),
        ("capacity", ctypes.c_int64),
        ("length", ctypes.c_int64),
        ("is_long", ctypes.c_int32),
        ("parts", ctypes.c_void_p),
    )


class LinkedCache(ctypes.Structure):
    """`NAME_cache` of a library's header."""

    _fields_ = FileCache._fields_[1:-1]


@contextmanager
def linked_reads(file: Path, name: str, vocabulary: int, capacity: int) -> Iterator[Reader]:
    """Open a shared library of a decoder; yield a reader of one sequence.

    Raises: DeviceError with what the library said.
    """
    own = ctypes.CDLL(str(file))
    error = getattr(own, f"{name}_error")
    error.restype = ctypes.c_char_p
    bytes_of = getattr(own, f"{name}_cache_bytes")
    bytes_of.restype, bytes_of.argtypes = ctypes.c_size_t, [ctypes.c_void_p, ctypes.c_int64]
    prefill = getattr(own, f"{name}_prefill")
    prefill.argtypes = [ctypes.c_void_p] * 3 + [ctypes.c_size_t, ctypes.c_void_p, ctypes.c_void_p]
    close = getattr(own, f"{name}_close")
    close.argtypes, close.restype = [ctypes.c_void_p], None
    model = ctypes.c_void_p()

    def must(code: int) -> None:
        if code:
            raise DeviceError(error().decode(), where=str(file))

    must(getattr(own, f"{name}_open")(ctypes.byref(model), 0))
    try:
        size = bytes_of(model, capacity)
        memory, address = _memory(size)
        cache = LinkedCache(data=address, bytes=size, capacity=capacity)

        def read(tokens: Sequence[int]) -> NDArray[np.float32]:
            logits, given = np.empty(vocabulary, np.float32), np.array(tokens, np.int64)
            must(
                prefill(
                    model, ctypes.byref(cache), given.ctypes.data, len(given), logits.ctypes.data,
                    None,
                )
            )  # fmt: skip
            return logits

        yield Reader(read, cache)
    finally:
        close(model)
        del memory
        handle = own._handle
        ctypes.CDLL(None).dlclose(ctypes.c_void_p(handle))


@contextmanager
def file_reads(file: Path, capacity: int) -> Iterator[Reader]:
    """Open a `.rai` of a decoder with the C library; yield a reader of one sequence.

    Raises: DeviceError with what the library said.
    """
    own = c_library()
    decoder = ctypes.c_void_p()

    def must(status: int | None) -> None:
        if status:
            text = own.vermilion_status_text(status).decode()
            own.vermilion_status_free(status)
            raise DeviceError(text, where=str(file))

    must(own.vermilion_decoder_open(str(file).encode(), None, ctypes.byref(decoder)))
    try:
        size = own.vermilion_cache_bytes(decoder, capacity)
        memory, address = _memory(size)
        cache = FileCache(ctypes.sizeof(FileCache), address, size, capacity)
        vocabulary = own.vermilion_decoder_vocabulary(decoder)

        def read(tokens: Sequence[int]) -> NDArray[np.float32]:
            logits, given = np.empty(vocabulary, np.float32), np.array(tokens, np.int64)
            must(
                own.vermilion_decoder_read(
                    decoder, ctypes.byref(cache), given.ctypes.data, len(given),
                    logits.ctypes.data, None,
                )
            )  # fmt: skip
            return logits

        yield Reader(read, cache)
    finally:
        own.vermilion_decoder_free(decoder)
        del memory


def c_library() -> Any:
    """Return the C library with the types of its functions for language models."""
    own, pointer, size = ctypes.CDLL(str(library())), ctypes.c_void_p, ctypes.c_size_t
    for name, result, arguments in (
        ("vermilion_decoder_open", pointer, [ctypes.c_char_p, pointer, pointer]),
        ("vermilion_decoder_open_memory", pointer, [ctypes.c_char_p, size, pointer, pointer]),
        ("vermilion_decoder_free", None, [pointer]),
        ("vermilion_cache_bytes", size, [pointer, ctypes.c_int64]),
        ("vermilion_decoder_vocabulary", ctypes.c_int64, [pointer]),
        ("vermilion_decoder_read", pointer, [*[pointer] * 3, size, pointer, pointer]),
        ("vermilion_status_text", ctypes.c_char_p, [pointer]),
        ("vermilion_status_free", None, [pointer]),
    ):
        function = getattr(own, name)
        function.restype, function.argtypes = result, arguments
    return own


def _memory(size: int) -> tuple[NDArray[np.uint8], int]:
    """Return memory aligned to 64 whose bytes are no numbers, and its address."""
    memory = np.full(size + 64, 0xFF, np.uint8)
    return memory, memory.ctypes.data + -memory.ctypes.data % 64


def runs_here(made: Sequence[TargetDecoder]) -> TargetDecoder | None:
    """Return what this processor chooses of several, None where it is none of their targets."""
    here = detect_cpu().features
    return next((one for one in made if one.target.features <= here), None)


def tried(made: TargetDecoder, context: int, reader: Reader) -> int:
    """Compare logits with our engine's; return how many reads had the same bits.

    Raises: ArtifactError where bits differ.
    """
    decoder = NativeDecoder(made.image, context, isa_for(made.target), usable_cores())
    capacity, random, done = capacity_of(context), np.random.default_rng(0), 0
    state = decoder.start(1, capacity)
    try:
        for count in _READS:
            if state.length + count > capacity:
                break
            tokens = random.integers(0, decoder.tokens, count)
            own = state.forward(tokens[None])[0]
            found = reader.read(tokens.tolist())
            far = np.abs(found - own).max() > made.image.facts.logits_bound * _TANH
            if far or (not made.image.facts.logits_bound and found.tobytes() != own.tobytes()):
                raise ArtifactError(
                    "the C library gave other logits than our engine",
                    where=f"tokens {state.length - count} to {state.length}",
                    hint="report it, with the model and the command",
                )
            done += 1
    finally:
        decoder.close()
    return done


def capacity_of(context: int) -> int:
    """Return how many tokens the trial has room for."""
    return min(context, sum(_READS))
