"""The answering side of `libamdhip64.so`: calls are taken from a pipe, answers given to another.

What is asked of the device is in `emulated_hip`.
"""

from __future__ import annotations

import os
import struct
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from vermilion.amdgpu.memory_image import Memory
from vermilion.backends.iree.hip_library import (
    ARGUMENTS,
    CALLS,
    MEMORY,
    PEEK,
    POKE,
    REPLIES,
    RETURN,
    STARTED,
    write_library,
)
from vermilion.errors import UnsupportedError, VermilionError

Words = tuple[int, ...]
OK, OUT_OF_MEMORY, LAUNCH_FAILURE, NOT_SUPPORTED = 0, 2, 719, 801  # hipError_t
_STOP = -2
_CALL = f"<q{ARGUMENTS}Q"
_ORDER = "<QQQ"
_LONGEST_NAME = 1024
TEXT_BYTES = 4096
_WORD = (1 << 64) - 1


class HipServer:
    """Serves one worker, in a thread of its own.

    `failed` is the first error of ours: the worker knows only that something failed.
    """

    def __init__(
        self, symbols: Sequence[str], linker: Sequence[str], folder: Path, memory_bytes: int
    ) -> None:
        """Make the library, its pipes and the memory in `folder`.

        A function `hipX` is answered by the method `_X`, and accepted where there is none.

        Raises: UnsupportedError where the library cannot be made; OSError where there is no room.
        """
        self.failed: VermilionError | None = None
        self._symbols = tuple(symbols)
        self._handles = 0x1000
        self._texts = 0
        self._memory = Memory(memory_bytes, folder / MEMORY)
        write_library(folder, symbols, memory_bytes, linker)
        for name in (CALLS, REPLIES):
            os.mkfifo(folder / name)
        # Open for both directions: opening one end would wait for the other.
        self._calls = os.open(folder / CALLS, os.O_RDWR | os.O_CLOEXEC)
        self._replies = os.open(folder / REPLIES, os.O_RDWR | os.O_CLOEXEC)
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the device. The worker that asks it is ended before."""
        os.write(self._calls, struct.pack(_CALL, _STOP, *[0] * ARGUMENTS))
        self._thread.join()
        os.close(self._calls)
        os.close(self._replies)

    def _serve(self) -> None:
        while True:
            number, *words = struct.unpack(_CALL, self._received(struct.calcsize(_CALL)))
            if number == _STOP:
                return
            if number == STARTED:
                self._memory.base = words[0]
                self._texts = self._memory.allocate(TEXT_BYTES)
                self._order(RETURN, 0)
            else:
                self._order(RETURN, self._answer(self._symbols[number], tuple(words)))

    def _answer(self, name: str, words: Words) -> int:
        method: Callable[[Words], int] = getattr(self, f"_{name.removeprefix('hip')}", _accepted)
        try:
            return method(words)
        except VermilionError as error:
            self.failed = self.failed or error
        except Exception as error:  # whoever asks must be answered
            said = f"the emulated {name} failed: {type(error).__name__}: {error}"
            self.failed = self.failed or UnsupportedError(said)
        return LAUNCH_FAILURE

    # The worker's memory, and the device's.

    def _received(self, length: int) -> bytes:
        data = bytearray()
        while len(data) < length:
            data += os.read(self._calls, length - len(data))
        return bytes(data)

    def _order(self, what: int, address: int, length: int = 0) -> None:
        os.write(self._replies, struct.pack(_ORDER, what, address & _WORD, length))

    def _peek(self, place: int, length: int) -> bytes:
        """Return bytes from the device's memory, or else from the worker's."""
        if self._memory.holds(place, length):
            start = place - self._memory.base
            return self._memory.bytes[start : start + length].tobytes()
        self._order(PEEK, place, length)
        return self._received(length)

    def _poke(self, place: int, data: bytes) -> int:
        """Write bytes into the device's memory, or else the worker's; nowhere for a place of 0."""
        if not place or not data:
            return OK
        if self._memory.holds(place, len(data)):
            start = place - self._memory.base
            self._memory.bytes[start : start + len(data)] = memoryview(data)
            return OK
        self._order(POKE, place, len(data))
        left = memoryview(data)
        while left:
            left = left[os.write(self._replies, left) :]
        return OK

    def _poke32(self, place: int, value: int) -> int:
        return self._poke(place, struct.pack("<I", value & 0xFFFFFFFF))

    def _poke64(self, place: int, value: int) -> int:
        return self._poke(place, struct.pack("<Q", value))

    def _peek64(self, place: int) -> int:
        return int(struct.unpack("<Q", self._peek(place, 8))[0])

    def _handle(self) -> int:
        self._handles += 16
        return self._handles

    def _text(self, place: int) -> str:
        """Return a text that ends with a zero, read a little at a time: memory may end after it."""
        found = bytearray()
        while len(found) < _LONGEST_NAME and b"\0" not in found:
            found += self._peek(place + len(found), 16 - (place + len(found)) % 16)
        return found.partition(b"\0")[0].decode()


def _accepted(words: Words) -> int:
    return OK
