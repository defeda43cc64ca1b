"""Programs for a whole family of GPUs, made of the assembly for one of them.

LLVM has a processor for what the members of a family have in common (AMDGPUUsage, "Generic
processors"). Its assembler refuses every instruction that is not among that. Such code objects have
version 6.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from vermilion.amdgpu.code_object import assemble, without_padding
from vermilion.errors import UnsupportedError

# How LLVM 24 spells them; older releases say `amdgcn` for all.
_TRIPLES = {
    "gfx10-3-generic": "amdgpu10.3-amd-amdhsa",
    "gfx11-generic": "amdgpu11-amd-amdhsa",
    "gfx12-generic": "amdgpu12-amd-amdhsa",
}
_VERSION = 6


def named_for_family(text: str, family: str) -> str:
    """Return the assembly for a member of a family as that for the family."""
    target = f"{_TRIPLES[family]}-unknown-{family}"
    named = re.sub(r'\.amdgcn_target\s+"[^"]*"', f'.amdgcn_target "{target}"', text)
    named = re.sub(
        r"\.amdhsa_code_object_version \d+", f".amdhsa_code_object_version {_VERSION}", named
    )
    named = re.sub(r"amdhsa\.target:(\s+)\S+", rf"amdhsa.target:\1{target}", named)
    return without_padding(named)


def assemble_for_family(
    named: str, family: str, room: int, linker: Sequence[str], folder: Path
) -> bytes:
    """Return the code object of such assembly, which has to fit into `room` bytes.

    Raises: UnsupportedError where the family lacks what it uses, or it does not fit.
    """
    made = assemble(named, linker, folder, version=_VERSION, strip=True)
    if len(made) > room:
        raise UnsupportedError(
            f"the code object for {family} is {len(made) - room} bytes too long for its place"
        )
    return made
