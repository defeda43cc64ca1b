"""Small kernels in assembly, run by the interpreter, for tests of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vermilion.amdgpu.assembly import Kernel, read_assembly
from vermilion.amdgpu.interpret import Budget, run_dispatch
from vermilion.amdgpu.memory_image import Memory

NAME = "kernel"


def kernel(gpu: str, body: str, *, shared: int = 0) -> Kernel:
    """Return a kernel whose arguments' address is in s[0:1], its place in s2."""
    lanes = int(not gpu.startswith("gfx9"))
    text = f"""
\t.amdgcn_target "amdgcn-amd-amdhsa-unknown-{gpu}"
{NAME}:
{body}
\ts_endpgm
.Lfunc_end0:
\t.amdhsa_kernel {NAME}
\t\t.amdhsa_group_segment_fixed_size {shared}
\t\t.amdhsa_private_segment_fixed_size 64
\t\t.amdhsa_user_sgpr_count 2
\t\t.amdhsa_user_sgpr_kernarg_segment_ptr 1
\t\t.amdhsa_wavefront_size32 {lanes}
\t\t.amdhsa_next_free_vgpr 64
\t.end_amdhsa_kernel
"""
    return read_assembly(text)[NAME]


def run(
    made: Kernel,
    *arrays: NDArray[Any],
    threads: int = 32,
    groups: int = 1,
    budget: Budget | None = None,
    symbols: Mapping[str, int] | None = None,
) -> list[NDArray[Any]]:
    """Run a kernel on arrays, whose addresses are its arguments; return them as they are then."""
    memory = Memory(1 << 20)
    places = [memory.allocate(array.nbytes) for array in arrays]
    for place, array in zip(places, arrays, strict=True):
        start = place - memory.base
        memory.bytes[start : start + array.nbytes] = array.reshape(-1).view(np.uint8)
    arguments = memory.allocate(8 * len(places))
    start = arguments - memory.base
    memory.bytes[start : start + 8 * len(places)] = np.array(places, np.uint64).view(np.uint8)
    run_dispatch(
        made,
        symbols or {"": memory.base},
        memory,
        grid=(groups, 1, 1),
        workgroup=(threads, 1, 1),
        arguments=arguments,
        budget=budget or Budget(1 << 20),
    )
    found = []
    for place, array in zip(places, arrays, strict=True):
        start = place - memory.base
        raw = memory.bytes[start : start + array.nbytes].copy()
        found.append(raw.view(array.dtype).reshape(array.shape))
    return found


def by_lane(gpu: str, lines: str, *sources: NDArray[Any], registers: int = 1) -> NDArray[np.uint32]:
    """Run instructions on registers: v1, v2, … hold `sources`, v10 and on are the result.

    The result has a row a register.
    """
    lanes = 64 if gpu.startswith("gfx9") else 32
    load, store = ("dword", "dword") if gpu.startswith("gfx9") else ("b32", "b32")
    wait = ["\ts_waitcnt vmcnt(0)"]
    load_arguments = "s_load_dwordx2" if gpu.startswith("gfx9") else "s_load_b64"
    body = [f"\t{load_arguments} s[4:5], s[0:1], 0x0", f"\t{load_arguments} s[6:7], s[0:1], 0x8"]
    body += ["\tv_lshlrev_b32_e32 v0, 2, v0"]
    for at in range(len(sources)):
        body += [f"\tglobal_load_{load} v{at + 1}, v0, s[4:5] offset:{4 * lanes * at}"]
    body += [*wait, *(f"\t{line.strip()}" for line in lines.splitlines() if line.strip())]
    for at in range(registers):
        body += [f"\tglobal_store_{store} v0, v{10 + at}, s[6:7] offset:{4 * lanes * at}"]
    given = np.stack([np.ascontiguousarray(source).view(np.uint32) for source in sources])
    result = np.zeros((registers, lanes), np.uint32)
    return run(kernel(gpu, "\n".join(body)), given, result, threads=lanes)[1]
