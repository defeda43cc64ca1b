"""What is known while steps are written: buffers by name, weights, and what becomes of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from vermilion.codegen.emit.decoder.activation_layout import ActivationKind, ActivationLayout
from vermilion.codegen.emit.decoder.cache import CacheNumbers
from vermilion.codegen.emit.decoder.control import CONTROL_WORDS
from vermilion.codegen.emit.decoder.strassen_rows import HalvedRows
from vermilion.codegen.emit.decoder.weights import PANEL, BlockWeights, Weights
from vermilion.codegen.kernel import Spec, Step
from vermilion.codegen.tensor import Buffer, View
from vermilion.llm.engine.description import Floats, Operation, Product, Rows

# Rows that are computed beyond the last one, at most: buffers have room for them.
SPARE_ROWS = 4


@dataclass(frozen=True)
class Shape:
    """For how many rows a program is made, and in which numbers it multiplies.

    `codes` is how products with weights in blocks are computed, `plain` those with float32 weights.
    """

    max_rows: int
    codes: ActivationKind
    plain: ActivationKind
    cache: CacheNumbers
    positions: int  # of a unit of attention
    is_single: bool  # whether products are made for one row


@dataclass(frozen=True, eq=False)
class Lowered:
    """Steps, and the buffers that the caller gives: by name, in the order of their number."""

    steps: tuple[Step, ...]
    inputs: tuple[Buffer, ...]
    constants: dict[str, Floats]  # those of the inputs that are small weights of the model
    widths: dict[str, int]  # numbers from one row to the next, of each value


@dataclass(frozen=True, eq=False)
class PackedMatrix:
    """A product's weights in memory: buffers that every program shares, from some panel on.

    Those of a mixture are of all experts, one behind the other, each in this form.
    """

    form: Weights
    buffer: Buffer
    first_panel: int = 0

    @property
    def offset_bytes(self) -> int:
        """Bytes of the buffer before them."""
        return self.first_panel * self.form.panel_bytes


@dataclass(frozen=True, eq=False)
class Weighed:
    """An operation list whose products are joined, with where their weights are.

    `first_layer` is the one that the first attention or convolution is of.
    """

    operations: tuple[Operation, ...]
    matrices: dict[str, PackedMatrix]  # by the product's output
    first_layer: int = 0


@dataclass
class Lowering:
    """A program that is being written."""

    shape: Shape
    matrices: dict[str, PackedMatrix]
    forms: dict[tuple[str, int, int], list[ActivationLayout]]
    wanted: set[str]  # buffers that are read as float32
    steps: list[Step] = field(default_factory=list)
    inputs: dict[str, Buffer] = field(default_factory=dict)
    constants: dict[str, Floats] = field(default_factory=dict)
    buffers: dict[str, tuple[Buffer, int]] = field(default_factory=dict)
    prepared: dict[tuple[str, int, int, ActivationLayout], Buffer] = field(default_factory=dict)
    # By the prepared rows: blocks of another length cut the depth into other runs.
    halved: dict[tuple[Buffer, HalvedRows], View] = field(default_factory=dict)

    def given(self, name: str, size: int) -> Buffer:
        """Return a buffer of the caller's."""
        if name not in self.inputs:
            self.inputs[name] = Buffer(name, size, "input")
        return self.inputs[name]

    def packed(self, product: Product) -> PackedMatrix:
        """Return a product's weights."""
        return packed_of(self.matrices, product)

    def constant(self, values: Floats) -> View:
        """Return a small weight; the same one is given once."""
        for name, known in self.constants.items():
            if known is values:
                return whole(self.inputs[name])
        name = f"constant {len(self.constants)}"
        self.constants[name] = values
        return whole(self.given(name, values.nbytes))

    def rows(self, name: str, width: int, *, is_given: bool = False) -> Buffer:
        """Make the buffer of a value: float32 rows of `width` numbers."""
        size = (self.shape.max_rows + SPARE_ROWS) * width * 4
        # A name of the graph may be any; one of ours begins otherwise.
        buffer = self.given(f"rows {name}", size) if is_given else Buffer(name, size, "arena")
        self.buffers[name] = (buffer, width)
        return buffer

    def view(self, rows: Rows) -> tuple[View, int]:
        """Return rows as an argument, and the numbers from one to the next."""
        buffer, step = self.buffers[rows.buffer]
        return whole(buffer, rows.offset * 4), step

    def prepare(self, key: tuple[str, int, int], form: ActivationLayout) -> View:
        """Make the buffer of rows, by buffer, offset and width, in the form of a product."""
        size = (self.shape.max_rows + SPARE_ROWS) * form.row_bytes
        buffer = Buffer(f"{key[0]} {form.kind}", size, "arena")
        self.prepared[(*key, form)] = buffer
        return whole(buffer)

    @property
    def control(self) -> View:
        """The control block."""
        return whole(self.given("control", CONTROL_WORDS * 8))

    def add(
        self, spec: Spec, arguments: Sequence[View], writes: Sequence[View], node: str,
        operations: int = 0,
    ) -> None:  # fmt: skip
        """Add a step."""
        self.steps.append(Step(spec, tuple(arguments), tuple(writes), (node,), operations))


def whole(buffer: Buffer, offset_bytes: int = 0) -> View:
    """Return a buffer from some byte on, as an argument."""
    return View(buffer, "u8", (buffer.size_bytes - offset_bytes,), (1,), offset_bytes)


def packed_of(matrices: Mapping[str, PackedMatrix], product: Product) -> PackedMatrix:
    """Return the weights of a product, or of some columns of one."""
    columns = product.columns
    if columns is None:
        return matrices[product.output]
    matrix = matrices[columns.output]
    assert columns.first % PANEL == 0, "columns begin with a panel"
    form = replace(matrix.form, columns=columns.count)
    return replace(matrix, form=form, first_panel=columns.first // PANEL)


def prepared_for(form: Weights, shape: Shape, *, is_exact: bool = False) -> ActivationLayout:
    """Return how a product's rows are written; as float32 where it is to be exact."""
    if is_exact:
        return ActivationLayout("f32", form.depth)
    if not isinstance(form, BlockWeights):
        return ActivationLayout(shape.plain, form.depth)
    if shape.codes == "int8":
        return ActivationLayout("int8", form.depth, form.block, form.zero)
    return ActivationLayout(shape.codes, form.depth)
