"""The assembly of a code object as kernels: instructions with parsed operands, labels resolved.

The text is what LLVM's AMDGPU backend writes; formats are in LLVM's AMDGPUUsage (directives
`.amdhsa_…`, metadata of code objects).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from vermilion.amdgpu.operands import Operand, parse_operand, split_operands
from vermilion.errors import UnsupportedError

_LABEL = re.compile(r"([\w$.]+):")
_MODIFIER = re.compile(
    r"\s+((?:offset[01]?|row_mask|bank_mask|bound_ctrl|dst_sel|dst_unused|src[01]_sel|op_sel"
    r"|op_sel_hi|neg_lo|neg_hi|quad_perm|row_shl|row_shr|row_ror|row_bcast|row_share|row_xmask"
    r"|row_newbcast|dpp8|fi|wait_exp|wait_vdst|index_key|cbsz|abid|blgp|mul|div|th|scope"
    r"|byte_sel|matrix_a_fmt|matrix_b_fmt|format|bitop3|wave_shr|wave_shl|wave_ror|wave_rol)"
    r":(?:\[[^\]]*\]|swizzle\([^)]*\)|[\w.+-]+)"
    r"|offen|idxen|glc|slc|dlc|nt|sc0|sc1|gds|lds|clamp|row_mirror|row_half_mirror)(?=\s|$)"
)
_SUFFIX = re.compile(r"(_e32|_e64|_dpp|_dpp8|_sdwa)+$")
_RELATIVE = re.compile(r"(@rel32@(?:lo|hi))\+(\d+)")
_ARGUMENT = re.compile(r"\s+(?:- )?\.(\w+):\s+(\S+)")


@dataclass(frozen=True)
class Instruction:
    """One instruction; `name` has no suffix of its encoding. `second` is a VOPD's other half."""

    name: str
    operands: tuple[Operand, ...]
    modifiers: Mapping[str, str]
    text: str
    target: int = -1  # of a branch, as an index
    second: Instruction | None = None
    encoding: str = ""


@dataclass(frozen=True)
class Argument:
    """Where an argument lies in the kernel's memory of arguments, and what it is."""

    offset: int
    size: int
    kind: str


@dataclass(frozen=True)
class Kernel:
    """A kernel: its instructions, what its descriptor says, its arguments."""

    name: str
    gpu: str
    instructions: tuple[Instruction, ...]
    descriptor: Mapping[str, int]
    arguments: tuple[Argument, ...] = ()
    workgroup: tuple[int, int, int] = (1, 1, 1)

    @property
    def lanes(self) -> int:
        """Lanes in a wave."""
        return 32 if self.descriptor.get("wavefront_size32") else 64


@dataclass
class _Open:
    name: str
    lines: list[str] = field(default_factory=list)
    labels: dict[str, int] = field(default_factory=dict)


def read_assembly(text: str) -> dict[str, Kernel]:
    """Return the kernels by name. Raises: UnsupportedError for another text."""
    target = re.search(r'\.amdgcn_target\s+"[^"]*-(gfx[\w-]+)[^"]*"', text)
    if target is None:
        raise UnsupportedError("the assembly names no target")
    functions = _functions(text)
    descriptors = _descriptors(text)
    rows = dict(_metadata(text))
    found = {}
    for name, descriptor in descriptors.items():
        if name not in functions:
            raise UnsupportedError(f"the assembly has no code of the kernel `{name}`")
        row = rows.get(name, _Described())
        found[name] = Kernel(
            name,
            target[1],
            _instructions(functions[name]),
            descriptor,
            row.arguments,
            row.workgroup,
        )
    return found


def parse_instruction(line: str, labels: Mapping[str, int] | None = None) -> Instruction:
    """Read one line. Two instructions that are issued as one (VOPD) become one with a `second`."""
    first, _, second = line.partition(" :: ")
    done = _parse_one(first, labels or {})
    if not second:
        return done
    other = _parse_one(second, labels or {})
    return Instruction(done.name, done.operands, done.modifiers, line.strip(), second=other)


def _parse_one(line: str, labels: Mapping[str, int]) -> Instruction:
    text = line.strip()
    name, _, rest = text.partition(" ")
    rest = f" {rest}"
    modifiers = {}
    for found in _MODIFIER.findall(rest):
        key, _, value = found.partition(":")
        modifiers[key] = value
    rest = _MODIFIER.sub("", rest)
    operands = tuple(parse_operand(one) for one in split_operands(rest))
    suffix = _SUFFIX.search(name)
    plain = _SUFFIX.sub("", name).replace("v_dual_", "v_")
    target = -1
    if plain.startswith(("s_cbranch", "s_branch")):
        if operands[0].text not in labels:
            raise UnsupportedError(f"the branch to `{operands[0].text}` leads nowhere")
        target = labels[operands[0].text]
    return Instruction(
        plain, operands, modifiers, text, target, encoding=suffix[0] if suffix else ""
    )


def _functions(text: str) -> dict[str, _Open]:
    """Return the lines of each function, and its labels by the line that they stand before."""
    found: dict[str, _Open] = {}
    here: _Open | None = None
    for line in text.splitlines():
        line = line.partition(";")[0].rstrip()
        if label := _LABEL.match(line):
            if label[1].startswith(".Lfunc_end"):
                here = None
            elif label[1].startswith(".L"):
                if here is not None:
                    here.labels[label[1]] = len(here.lines)
            else:
                here = found[label[1]] = _Open(label[1])
        elif here is not None and line.strip() and not line.strip().startswith("."):
            here.lines.append(line)
    return found


def _instructions(function: _Open) -> tuple[Instruction, ...]:
    lines = list(function.lines)
    for at, line in enumerate(lines):
        if found := _RELATIVE.search(line):
            behind = _bytes_behind(function.lines, at)
            moved = "" if behind is None else f"{found[1]}{int(found[2]) - behind:+}"
            lines[at] = line.replace(found[0], moved)
    return tuple(parse_instruction(line, function.labels) for line in lines)


def _bytes_behind(lines: list[str], at: int) -> int | None:
    """Return how far the constant of a line is from what `s_getpc_b64` before it gives.

    Assembly counts from the constant's own place; None where something unusual is between.
    """
    behind = 4  # the constant stands behind the instruction's own word
    for line in reversed(lines[:at]):
        if "s_getpc_b64" in line:
            return behind
        if _RELATIVE.search(line):
            behind += 8
        elif line.split()[0] in ("s_sext_i32_i16", "s_wait_alu", "s_delay_alu", "s_nop"):
            behind += 4
        else:
            return None
    return None


def _descriptors(text: str) -> dict[str, dict[str, int]]:
    found: dict[str, dict[str, int]] = {}
    pieces = text.split(".amdhsa_kernel ")[1:]
    for piece in pieces:
        body, _, _ = piece.partition(".end_amdhsa_kernel")
        name, *lines = body.splitlines()
        fields = (line.split() for line in lines if line.strip())
        found[name.strip().strip('"')] = {
            words[0].removeprefix(".amdhsa_"): int(words[1])
            for words in fields
            if len(words) == 2 and words[1].isdigit()
        }
    return found


@dataclass(frozen=True)
class _Described:
    arguments: tuple[Argument, ...] = ()
    workgroup: tuple[int, int, int] = (1, 1, 1)


def _metadata(text: str) -> Iterator[tuple[str, _Described]]:
    """Yield what the metadata says of each kernel: name, arguments, sizes of a workgroup."""
    _, _, rest = text.partition(".amdgpu_metadata")
    body, _, _ = rest.partition(".end_amdgpu_metadata")
    _, _, body = body.partition("amdhsa.kernels:\n")
    for piece in re.split(r"^  - ", body, flags=re.MULTILINE)[1:]:
        _, _, listed = piece.partition(".args:")
        arguments, sizes, row = list[Argument](), list[int](), dict[str, str]()
        name = re.search(r"^(?:    )?\.name:\s+(\S+)", piece, flags=re.MULTILINE)
        for one in re.split(r"^      - ", listed, flags=re.MULTILINE)[1:]:
            row = dict(_ARGUMENT.findall(f"        {one}"))
            if "offset" in row and "value_kind" in row:
                arguments.append(Argument(int(row["offset"]), int(row["size"]), row["value_kind"]))
        required = re.search(r"\.reqd_workgroup_size:\n((?:\s+- \d+\n)+)", piece)
        if required:
            sizes = [int(number) for number in re.findall(r"\d+", required[1])]
        if name:
            size = (sizes[0], sizes[1], sizes[2]) if len(sizes) == 3 else (1, 1, 1)
            yield name[1].strip("'\""), _Described(tuple(arguments), size)
