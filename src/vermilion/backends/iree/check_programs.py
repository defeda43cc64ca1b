"""The programs of small parts executed without their GPUs, and held against the literal run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from vermilion.backends.base import INTERPRETED, Array, Part
from vermilion.backends.iree.signature import Signature
from vermilion.backends.provider.part import accepted_inputs, check_numbers
from vermilion.errors import DeviceError, Refusal
from vermilion.proof.bounds import FormatName

NOT_INTERPRETED = "not_interpreted"  # the detail that says why


@dataclass(frozen=True)
class OwnProgram:
    """A program for one GPU, and the assembly of its code objects, by their bytes."""

    gpu: str
    place: Path
    assemblies: Mapping[bytes, str]


def check_programs(
    part: Part,
    programs: Sequence[OwnProgram],
    signature: Signature,
    weights: Mapping[str, Array],
    form: FormatName,
    linker: Sequence[str],
) -> dict[str, str]:
    """Execute each program on one sample; return what is to be told of that.

    Raises: DeviceError where a program computes something else than the part.
    """
    # The interpreter of the GPUs' instructions is loaded by who compiles, not by who places.
    from vermilion.backends.iree.own_program import execute, why_not

    reason = why_not(part.gops, weights)
    if reason is not None:
        return {NOT_INTERPRETED: reason.reason}
    try:
        inputs = accepted_inputs(part)
    except DeviceError as error:
        return {NOT_INTERPRETED: error.message}
    done: list[str] = []
    left: dict[str, str] = {}
    for program in programs:
        try:
            ran = execute(program.place, program.assemblies, signature, weights, inputs, linker)
            if isinstance(ran, Refusal):
                left[program.gpu] = ran.reason
                continue
            check_numbers(part, inputs, ran.outputs, form)
        except DeviceError as error:
            raise DeviceError(
                f"the machine code for {program.gpu}, executed instruction by instruction: "
                f"{error.message}",
                where=part.name,
                hint="the compiler made a wrong program; the part runs on the CPU instead",
            ) from error
        done.append(f"{program.gpu} ({ran.instructions} instructions of waves)")
    details = {INTERPRETED: ", ".join(done)} if done else {}
    if left:
        details[NOT_INTERPRETED] = "; ".join(f"{gpu}: {why}" for gpu, why in left.items())
    return details
