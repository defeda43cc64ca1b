"""An operator → its object code, by the code generator."""

from __future__ import annotations

from collections.abc import Sequence

from vermilion.codegen.isa import Isa, isa_of
from vermilion.codegen.kernel import Step
from vermilion.codegen.program import compile_steps
from vermilion.codegen.tensor import View
from vermilion.errors import UnsupportedError
from vermilion.hardware.targets.find import find_target
from vermilion.llm.plugins.decode_operator import decode_steps
from vermilion.llm.plugins.identity import Identity
from vermilion.llm.plugins.program import product_program
from vermilion.llm.plugins.run_operator import number_of, size_of


def compile_operator(identity: Identity) -> bytes:
    """Compile one operator.

    Raises: UnsupportedError for an operator that is no matrix product.
    """
    isa = isa_of(find_target(identity.target))
    if identity.is_decode:
        steps, inputs, out = decode_steps(identity)
        return _object(steps, inputs, (out,), isa)
    if set(identity.shape) != {"K", "N"}:
        raise UnsupportedError(f"`{identity.operator}` is no matrix product")
    program = product_program(size_of(identity), number_of(identity), isa)
    return _object(program.steps, program.inputs, program.outputs, isa)


def _object(
    steps: Sequence[Step], inputs: Sequence[View], outputs: Sequence[View], isa: Isa
) -> bytes:
    given, made = ([view.buffer for view in views] for views in (inputs, outputs))
    compiled = compile_steps(steps, given, made, isa, inputs_have_room=True)
    _, *kernels = compiled.objects  # the driver is that of the model's program
    assert len(kernels) == 1, "so few kernels make one object"
    return kernels[0].data
