"""A HIP runtime without a GPU: memory in a file, kernels executed by our interpreter.

IREE's driver, in a process of its own, loads `libamdhip64.so` and calls it by name; that library
asks the process in which this runs (`hip_library`).

Source: names and arguments from HIP's API reference; which of them are needed, from the symbols
that IREE looks up.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from vermilion.amdgpu.assembly import Kernel, read_assembly
from vermilion.amdgpu.code_object import local_places, read_code_object, size_of_elf
from vermilion.amdgpu.interpret import Budget, run_dispatch
from vermilion.amdgpu.waits import check_waits
from vermilion.backends.iree.hip_library import SPAWN
from vermilion.backends.iree.hip_server import (
    NOT_SUPPORTED,
    OK,
    OUT_OF_MEMORY,
    TEXT_BYTES,
    HipServer,
    Words,
)
from vermilion.errors import UnsupportedError

# Attributes of a device that are not zero, by their number in hipDeviceAttribute_t: the sizes of a
# workgroup, and the memory that it shares.
_ATTRIBUTES = {26: 1024, 27: 1024, 28: 1024, 74: 1 << 16}
_OF_FUNCTIONS = 1 << 16  # any attribute of a function: threads and shared memory that it may have
# Of `extra` in hipModuleLaunchKernel.
_BUFFER_POINTER, _BUFFER_SIZE, _END = 1, 2, 3

SYMBOLS = (
    *("hipCtxSetCurrent", "hipCtxGetCurrent", "hipCtxPushCurrent", "hipCtxPopCurrent"),
    *("hipDeviceCanAccessPeer", "hipDeviceEnablePeerAccess", "hipDeviceGet"),
    *("hipDeviceGetAttribute", "hipDeviceGetName", "hipDeviceGetUuid"),
    *("hipDevicePrimaryCtxRelease", "hipDevicePrimaryCtxRetain", "hipEventCreate"),
    *("hipEventCreateWithFlags", "hipEventDestroy", "hipEventElapsedTime", "hipEventQuery"),
    *("hipEventRecord", "hipEventSynchronize", "hipFree", "hipFreeAsync"),
    *("hipFuncGetAttribute", "hipFuncSetAttribute", "hipGetDeviceCount", "hipGetLastError"),
    *("hipGraphAddEmptyNode", "hipGraphAddEventRecordNode", "hipGraphAddKernelNode"),
    *("hipGraphAddMemsetNode", "hipGraphCreate", "hipGraphDestroy", "hipGraphExecDestroy"),
    *("hipGraphInstantiate", "hipGraphLaunch", "hipHostFree", "hipHostGetDevicePointer"),
    *("hipHostMalloc", "hipHostRegister", "hipHostUnregister", "hipInit", "hipLaunchHostFunc"),
    *("hipLaunchKernel", "hipMalloc", "hipMallocFromPoolAsync", "hipMallocManaged"),
    *("hipMallocAsync", "hipMemcpy", "hipMemcpyAsync", "hipMemcpyHtoDAsync"),
    *("hipMemPoolCreate", "hipMemPoolDestroy", "hipMemPoolGetAttribute"),
    *("hipMemPoolSetAttribute", "hipMemPoolTrimTo", "hipMemPrefetchAsync", "hipMemset"),
    *("hipMemsetAsync", "hipMemsetD8Async", "hipMemsetD16Async", "hipMemsetD32Async"),
    *("hipModuleGetFunction", "hipModuleGetGlobal", "hipModuleLaunchKernel"),
    *("hipModuleLoadData", "hipModuleLoadDataEx", "hipModuleUnload", "hipSetDevice"),
    *("hipStreamCreateWithFlags", "hipStreamDestroy", "hipStreamSynchronize"),
    *("hipStreamWaitEvent", "hipGetErrorName", "hipGetErrorString"),
)


@dataclass(frozen=True)
class _Function:
    kernel: Kernel
    symbols: Mapping[str, int]


@dataclass(frozen=True)
class _Copy:
    """Memory of the host's as it was, and where the device has it."""

    place: int
    data: bytes


class EmulatedHip(HipServer):
    """One device, asked by a worker in which IREE's driver runs."""

    def __init__(
        self,
        assemblies: Mapping[bytes, str],
        linker: Sequence[str],
        folder: Path,
        budget: Budget,
        memory_bytes: int,
    ) -> None:
        """Take the assembly of each code object that may be loaded, by its bytes.

        Raises: UnsupportedError where the library cannot be made; OSError where there is no room.
        """
        self.budget = budget
        self.dispatches = 0
        self._assemblies, self._linker, self._folder = dict(assemblies), linker, folder
        self._modules: dict[int, dict[str, _Function]] = {}
        self._functions: dict[int, _Function] = {}
        self._copies: dict[int, _Copy] = {}  # of the host's memory, by its address
        super().__init__(SYMBOLS, linker, folder, memory_bytes)

    # What a device is.

    def _GetDeviceCount(self, words: Words) -> int:
        return self._poke32(words[0], 1)

    def _DeviceGet(self, words: Words) -> int:
        return self._poke32(words[0], 0)

    def _DeviceGetName(self, words: Words) -> int:
        return self._poke(words[0], b"emulated\0"[: words[1] & 0xFFFFFFFF])

    def _DeviceGetUuid(self, words: Words) -> int:
        return self._poke(words[0], bytes(range(16)))

    def _DeviceGetAttribute(self, words: Words) -> int:
        return self._poke32(words[0], _ATTRIBUTES.get(words[1] & 0xFFFFFFFF, 0))

    def _FuncGetAttribute(self, words: Words) -> int:
        return self._poke32(words[0], _OF_FUNCTIONS)

    def _DeviceCanAccessPeer(self, words: Words) -> int:
        return self._poke32(words[0], 0)

    def _GetErrorString(self, words: Words) -> int:
        said = self.failed.message if self.failed is not None else "no error"
        self._poke(self._texts, said.encode()[: TEXT_BYTES - 1] + b"\0")
        return self._texts

    _GetErrorName = _GetErrorString

    # Things that are only named: contexts, streams, events, pools.

    def _CtxGetCurrent(self, words: Words) -> int:
        return self._poke64(words[0], 16)

    _CtxPopCurrent = _DevicePrimaryCtxRetain = _CtxGetCurrent

    def _EventCreate(self, words: Words) -> int:
        return self._poke64(words[0], self._handle())

    _EventCreateWithFlags = _StreamCreateWithFlags = _MemPoolCreate = _EventCreate

    def _EventElapsedTime(self, words: Words) -> int:
        return self._poke32(words[0], 0)

    def _MemPoolGetAttribute(self, words: Words) -> int:
        return self._poke64(words[2], 0)

    def _LaunchHostFunc(self, words: Words) -> int:
        self._order(SPAWN, words[1], words[2])
        return OK

    def _GraphCreate(self, words: Words) -> int:
        return NOT_SUPPORTED  # the driver does without by default

    # Memory: the host sees the same addresses as the device.

    def _Malloc(self, words: Words) -> int:
        address = self._memory.allocate(words[1])
        return self._poke64(words[0], address) if address else OUT_OF_MEMORY

    _MallocFromPoolAsync = _MallocManaged = _MallocAsync = _Malloc

    def _HostMalloc(self, words: Words) -> int:
        address = self._memory.allocate(words[1], clean=True)
        return self._poke64(words[0], address) if address else OUT_OF_MEMORY

    def _Free(self, words: Words) -> int:
        self._memory.free(words[0])
        return OK

    _FreeAsync = _HostFree = _Free

    def _HostRegister(self, words: Words) -> int:
        """Copy memory of the host's for the time being: kernels see one range of addresses only."""
        data, place = self._peek(words[0], words[1]), self._memory.allocate(words[1])
        if not place:
            return OUT_OF_MEMORY
        self._poke(place, data)
        self._copies[words[0]] = _Copy(place, data)
        return OK

    def _HostUnregister(self, words: Words) -> int:
        """Give back what was written since; what was not may not even be writable."""
        copy = self._copies.pop(words[0], None)
        if copy is not None:
            now = self._peek(copy.place, len(copy.data))
            if now != copy.data:
                self._poke(words[0], now)
            self._memory.free(copy.place)
        return OK

    def _HostGetDevicePointer(self, words: Words) -> int:
        copy = self._copies.get(words[1])
        return self._poke64(words[0], words[1] if copy is None else copy.place)

    def _Memcpy(self, words: Words) -> int:
        return self._poke(words[0], self._peek(words[1], words[2]))

    _MemcpyAsync = _MemcpyHtoDAsync = _Memcpy

    def _fill(self, words: Words, size: int) -> int:
        pattern = (words[1] & (256**size - 1)).to_bytes(size, "little")
        return self._poke(words[0], pattern * words[2])

    def _Memset(self, words: Words) -> int:
        return self._fill(words, 1)

    _MemsetAsync = _MemsetD8Async = _Memset

    def _MemsetD16Async(self, words: Words) -> int:
        return self._fill(words, 2)

    def _MemsetD32Async(self, words: Words) -> int:
        return self._fill(words, 4)

    # Code.

    def _ModuleLoadData(self, words: Words) -> int:
        data = self._peek(words[1], size_of_elf(self._peek(words[1], 64)))
        text = self._assemblies.get(data)
        if text is None:
            raise UnsupportedError("the program loads a code object that the compiler did not show")
        code = read_code_object(data)
        places = local_places(code, text, self._linker, self._folder)
        base = code.place(self._memory)
        if not base:
            return OUT_OF_MEMORY
        symbols = {name: base + place for name, place in (*code.symbols.items(), *places.items())}
        symbols[""] = base
        handle, kernels = self._handle(), read_assembly(text)
        for kernel in kernels.values():
            check_waits(kernel)
        self._modules[handle] = {name: _Function(k, symbols) for name, k in kernels.items()}
        return self._poke64(words[0], handle)

    _ModuleLoadDataEx = _ModuleLoadData

    def _ModuleGetFunction(self, words: Words) -> int:
        name = self._text(words[2])
        function = self._modules[words[1]].get(name)
        if function is None:
            raise UnsupportedError(f"the code object has no kernel `{name}`")
        handle = self._handle()
        self._functions[handle] = function
        return self._poke64(words[0], handle)

    def _ModuleLaunchKernel(self, words: Words) -> int:
        function = self._functions[words[0]]
        sizes = [word & 0xFFFFFFFF for word in words[1:7]]
        grid, workgroup = (sizes[0], sizes[1], sizes[2]), (sizes[3], sizes[4], sizes[5])
        if not all(grid):
            return OK
        data = self._arguments(function.kernel, grid, workgroup, words[9], words[10])
        place = self._memory.allocate(len(data))
        if not place:
            return OUT_OF_MEMORY
        self._poke(place, data)
        self.dispatches += 1
        run_dispatch(
            function.kernel,
            function.symbols,
            self._memory,
            grid=grid,
            workgroup=workgroup,
            arguments=place,
            budget=self.budget,
        )
        self._memory.free(place)
        return OK

    def _arguments(
        self,
        kernel: Kernel,
        grid: tuple[int, int, int],
        workgroup: tuple[int, int, int],
        parameters: int,
        extra: int,
    ) -> bytes:
        """Return a kernel's arguments, laid out as its metadata says."""
        size = max((a.offset + a.size for a in kernel.arguments), default=8)
        data = bytearray(max(size, kernel.descriptor.get("kernarg_size", 0)))
        visible = [a for a in kernel.arguments if not a.kind.startswith("hidden_")]
        if parameters:
            for number, argument in enumerate(visible):
                raw = self._peek(self._peek64(parameters + 8 * number), argument.size)
                data[argument.offset : argument.offset + argument.size] = raw
        elif extra:
            raw = self._extra(extra)
            data[: len(raw)] = raw
        for argument in kernel.arguments:
            if argument.kind.startswith("hidden_"):
                value = _hidden(argument.kind, grid, workgroup)
                raw = value.to_bytes(max(8, argument.size), "little")[: argument.size]
                data[argument.offset : argument.offset + argument.size] = raw
        return bytes(data)

    def _extra(self, place: int) -> bytes:
        """Return the arguments that `extra` of a launch says where they lie."""
        start = length = 0
        while (key := self._peek64(place)) != _END:
            if key == _BUFFER_POINTER:
                start = self._peek64(place + 8)
            elif key == _BUFFER_SIZE:
                length = self._peek64(self._peek64(place + 8))
            place += 16
        return self._peek(start, length)


def _hidden(kind: str, grid: Sequence[int], workgroup: Sequence[int]) -> int:
    """Return an argument that the compiler adds. Source: AMDGPUUsage, code object V5 metadata."""
    axis = "xyz".find(kind[-1])
    if kind.startswith("hidden_block_count_"):
        return grid[axis]
    if kind.startswith("hidden_group_size_"):
        return workgroup[axis]
    return 3 if kind == "hidden_grid_dims" else 0
