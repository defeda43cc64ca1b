"""Writing LLVM IR as text: values with types, structured loops, variables.

Variables and loop counters are stack slots; LLVM's first pass turns them into registers. That
keeps the emitters free of phi nodes and readable as the loops they stand for.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from vermilion.codegen.emit.sizes import write_formula
from vermilion.codegen.emit.values import Index, Value, constant
from vermilion.ir.formula import Formula
from vermilion.ir.symbolic import is_one


class Slot:
    """A variable: a stack slot that LLVM keeps in a register."""

    def __init__(self, function: Function, type_: str, pointer: str) -> None:
        self._function = function
        self._type = type_
        self._pointer = pointer

    def get(self) -> Value:
        """Read it."""
        return self._function.emit(self._type, f"load {self._type}, ptr {self._pointer}")

    def set(self, value: Value) -> None:
        """Write it."""
        self._function.line(f"store {value}, ptr {self._pointer}")


class Module:
    """Declarations and functions of one LLVM module; a function body is written once a name.

    `has_bf16` says that the processor rounds to bfloat16 by itself, `has_scale` that it multiplies
    by powers of two and has whatever else is AVX-512's.
    """

    def __init__(self, *, has_bf16: bool = False, has_scale: bool = False) -> None:
        self.has_bf16 = has_bf16
        self.has_scale = has_scale
        self._declarations: dict[str, str] = {}
        self._functions: dict[str, str] = {}

    def declare(self, name: str, result: str, parameters: Sequence[str]) -> str:
        """Declare an external function or intrinsic; give its name."""
        self._declarations[name] = f"declare {result} @{name}({', '.join(parameters)})"
        return name

    def has(self, name: str) -> bool:
        """Say whether a function of that name is written."""
        return name in self._functions

    def add(self, function: Function) -> None:
        """Add a finished function."""
        self._functions[function.name] = function.text()

    def export(self, name: str) -> None:
        """Make a function visible outside the module."""
        text = self._functions[name]
        self._functions[name] = text.replace("define internal ", "define ", 1)

    def add_constants(self, name: str, items: Sequence[Value]) -> None:
        """Add an array of constants of one type; `@name` is its address."""
        kind, numbers = f"[{len(items)} x {items[0].type}]", ", ".join(map(str, items))
        self._functions[name] = f"@{name} = internal constant {kind} [{numbers}], align 64"

    @property
    def size(self) -> int:
        """Characters of all functions: what compiling it costs, roughly."""
        return sum(map(len, self._functions.values()))

    def include(self, other: Module) -> None:
        """Add all that another module has."""
        self._declarations.update(other._declarations)
        self._functions.update(other._functions)

    def text(self) -> str:
        """Return the whole module."""
        return "\n".join([*self._declarations.values(), "", *self._functions.values()])


class Function:
    """A function while it is written."""

    def __init__(
        self,
        module: Module,
        name: str,
        parameters: Sequence[tuple[str, str]],
        *,
        result: str = "void",
        internal: bool = True,
        is_apart: bool = False,
    ) -> None:
        """Begin a function; `is_apart` keeps it from being written into who calls it."""
        self.module = module
        self.name = name
        self.arguments = [Value(type_, f"%{label}") for label, type_ in parameters]
        self.result = result
        self._internal = internal
        self._is_apart = is_apart
        self._slots: list[str] = []
        self._entry: list[str] = []  # sizes of a run: computed once, before everything
        self._sizes: dict[str, Value] = {}
        self._sizes_at: tuple[Value, int] | None = None
        self._lines: list[str] = []
        self._count = 0
        self._is_open = True  # the block at hand has no jump yet
        self._ended = False

    def line(self, text: str) -> None:
        """Write an instruction that gives no value."""
        self._lines.append(f"  {text}")

    def emit(self, type_: str, text: str) -> Value:
        """Write an instruction; give its value."""
        self._count += 1
        name = f"%v{self._count}"
        self._lines.append(f"  {name} = {text}")
        return Value(type_, name)

    def slot(self, initial: Value) -> Slot:
        """Return a variable that starts as `initial`."""
        self._count += 1
        pointer = f"%s{self._count}"
        self._slots.append(f"  {pointer} = alloca {initial.type}, align 64")
        slot = Slot(self, initial.type, pointer)
        slot.set(initial)
        return slot

    def scratch(self, size_bytes: int) -> Value:
        """Return a 64-byte aligned buffer on the stack."""
        self._count += 1
        pointer = f"%s{self._count}"
        self._slots.append(f"  {pointer} = alloca [{size_bytes} x i8], align 64")
        return Value("ptr", pointer)

    # Integers -------------------------------------------------------------------------------

    def index(self, value: Index) -> Value:
        """Return an i64 from a Python number, a size of the run, or a value."""
        if isinstance(value, Formula):
            known = value.constant
            return self._size(value) if known is None else constant("i64", known)
        return constant("i64", value) if isinstance(value, int) else value

    def take_sizes(self, pointer: Value, offset_bytes: int) -> None:
        """Say where the sizes of a run lie: size number `k` at `offset_bytes + 8 k`."""
        self._sizes_at = (pointer, offset_bytes)

    def _size(self, size: Formula) -> Value:
        """Return a size of the run, computed at the function's begin."""
        if size.text not in self._sizes:
            assert self._sizes_at is not None, f"{self.name} is not given sizes"
            body, self._lines = self._lines, []
            self._sizes[size.text] = write_formula(self, size, *self._sizes_at)
            self._entry += self._lines
            self._lines = body
        return self._sizes[size.text]

    def binary(self, operation: str, a: Value, b: Value) -> Value:
        """Write a two-operand instruction on values of one type."""
        return self.emit(a.type, f"{operation} {a}, {b.name}")

    def add(self, a: Index, b: Index) -> Value:
        """Add two i64, folding constants and zeros."""
        if isinstance(a, int) and isinstance(b, int):
            return constant("i64", a + b)
        if isinstance(b, int) and b == 0:
            return self.index(a)
        if isinstance(a, int) and a == 0:
            return self.index(b)
        return self.binary("add", self.index(a), self.index(b))

    def subtract(self, a: Index, b: Index) -> Value:
        """Subtract two i64."""
        return self.binary("sub", self.index(a), self.index(b))

    def multiply(self, a: Index, b: Index) -> Value:
        """Multiply two i64, folding constants, zeros and ones."""
        if isinstance(a, int) and isinstance(b, int):
            return constant("i64", a * b)
        for one, other in ((a, b), (b, a)):
            if isinstance(one, int) and one == 0:
                return constant("i64", 0)
            if isinstance(one, int) and one == 1:
                return self.index(other)
        return self.binary("mul", self.index(a), self.index(b))

    def divide(self, a: Index, b: int) -> Value:
        """Divide an i64 that is not negative by a size, rounding down."""
        if is_one(b):
            return self.index(a)
        return self.binary("udiv", self.index(a), self.index(b))

    def remainder(self, a: Index, b: int) -> Value:
        """Return what `divide` leaves."""
        if is_one(b):
            return constant("i64", 0)
        return self.binary("urem", self.index(a), self.index(b))

    def minimum(self, a: Index, b: Index) -> Value:
        """Return the lesser of two i64."""
        left, right = self.index(a), self.index(b)
        less = self.compare("slt", left, right)
        return self.select(less, left, right)

    def compare(self, predicate: str, a: Value, b: Value) -> Value:
        """Compare integers; vectors lane by lane."""
        return self.emit(_mask_type(a.type), f"icmp {predicate} {a}, {b.name}")

    def compare_floats(self, predicate: str, a: Value, b: Value) -> Value:
        """Compare floats; vectors lane by lane."""
        return self.emit(_mask_type(a.type), f"fcmp {predicate} {a}, {b.name}")

    def select(self, condition: Value, a: Value, b: Value) -> Value:
        """Return `a` where the condition holds, else `b`."""
        return self.emit(a.type, f"select {condition}, {a}, {b}")

    def convert(self, operation: str, value: Value, type_: str) -> Value:
        """Write a conversion: sext, zext, trunc, sitofp, fptosi, fpext, fptrunc, bitcast."""
        return self.emit(type_, f"{operation} {value} to {type_}")

    # Memory ---------------------------------------------------------------------------------

    def at(self, pointer: Value, offset_bytes: Index) -> Value:
        """Return the pointer `offset_bytes` further on."""
        if isinstance(offset_bytes, int) and offset_bytes == 0:
            return pointer
        offset = self.index(offset_bytes)
        return self.emit("ptr", f"getelementptr i8, {pointer}, {offset}")

    def load(self, type_: str, pointer: Value, offset_bytes: Index = 0, *, align: int = 1) -> Value:
        """Load from a byte offset."""
        place = self.at(pointer, offset_bytes)
        return self.emit(type_, f"load {type_}, {place}, align {align}")

    def store(
        self, value: Value, pointer: Value, offset_bytes: Index = 0, *, align: int = 1
    ) -> None:
        """Store at a byte offset."""
        place = self.at(pointer, offset_bytes)
        self.line(f"store {value}, {place}, align {align}")

    def atomic_load(self, type_: str, pointer: Value, offset_bytes: Index = 0) -> Value:
        """Load what another thread stores; nothing after it is done before it."""
        place = self.at(pointer, offset_bytes)
        return self.emit(type_, f"load atomic {type_}, {place} acquire, align 8")

    def atomic_store(self, value: Value, pointer: Value, offset_bytes: Index = 0) -> None:
        """Store what another thread loads; nothing before it is done after it."""
        self.line(f"store atomic {value}, {self.at(pointer, offset_bytes)} release, align 8")

    def compare_exchange(self, pointer: Value, old: Value, new: Value) -> Value:
        """Store `new` if `old` is still there; return whether it was."""
        kind = f"{{ {old.type}, i1 }}"
        pair = self.emit(kind, f"cmpxchg {pointer}, {old}, {new} acq_rel monotonic")
        return self.emit("i1", f"extractvalue {pair}, 1")

    def call(self, name: str, result: str, arguments: Sequence[Value]) -> Value:
        """Call a function that gives a value."""
        return self.emit(result, f"call {result} @{name}({', '.join(map(str, arguments))})")

    def call_void(self, name: str, arguments: Sequence[Value]) -> None:
        """Call a function that gives nothing."""
        self.line(f"call void @{name}({', '.join(map(str, arguments))})")

    def call_pointer(self, pointer: Value, arguments: Sequence[Value]) -> None:
        """Call a function that gives nothing by its address."""
        self.line(f"call void {pointer.name}({', '.join(map(str, arguments))})")

    def pause(self) -> None:
        """Tell the core that this thread spins."""
        self.line('call void asm sideeffect "pause", ""()')

    def intrinsic(self, name: str, result: str, arguments: Sequence[Value]) -> Value:
        """Declare and call an LLVM intrinsic."""
        self.module.declare(name, result, [a.type for a in arguments])
        return self.call(name, result, arguments)

    # Control --------------------------------------------------------------------------------

    def label(self, hint: str) -> str:
        """Return a fresh block name."""
        self._count += 1
        return f"{hint}{self._count}"

    def block(self, name: str) -> None:
        """Begin a block."""
        self._lines.append(f"{name}:")
        self._is_open = True

    def jump(self, name: str) -> None:
        """End the block with a jump; one that has ended stays as it is."""
        self._end(f"br label %{name}")

    def branch(self, condition: Value, yes: str, no: str) -> None:
        """End the block with a choice."""
        self._end(f"br {condition}, label %{yes}, label %{no}")

    def leave(self, value: Value | None = None) -> None:
        """End the block with the function's end."""
        self._end("ret void" if value is None else f"ret {value}")

    def _end(self, text: str) -> None:
        if self._is_open:
            self.line(text)
        self._is_open = False

    @contextmanager
    def section(self) -> Iterator[str]:
        """Run the body once; yield the label behind it, to jump to."""
        done = self.label("done")
        yield done
        self.jump(done)
        self.block(done)

    @contextmanager
    def repeat(self) -> Iterator[tuple[str, str]]:
        """Run the body for ever; yield the labels of its begin and of what is behind it."""
        head, done = self.label("head"), self.label("done")
        self.jump(head)
        self.block(head)
        yield head, done
        self.jump(head)
        self.block(done)

    @contextmanager
    def loop(self, start: Index, stop: Index, step: Index = 1) -> Iterator[Value]:
        """Run the body for start, start + step, … below stop."""
        counter = self.slot(self.index(start))
        end = self.index(stop)
        head, body, done = self.label("head"), self.label("body"), self.label("done")
        self.jump(head)
        self.block(head)
        now = counter.get()
        self.branch(self.compare("slt", now, end), body, done)
        self.block(body)
        yield now
        counter.set(self.add(counter.get(), step))
        self.jump(head)
        self.block(done)

    @contextmanager
    def when(self, condition: Value, *, holds: bool = True) -> Iterator[None]:
        """Run the body if the condition holds, or if it does not."""
        if not holds:
            condition = self.binary("xor", condition, constant("i1", 1))
        yes, done = self.label("then"), self.label("after")
        self.branch(condition, yes, done)
        self.block(yes)
        yield
        self.jump(done)
        self.block(done)

    def finish(self, value: Value | None = None) -> None:
        """End the function and add it to the module."""
        self.leave(value)
        self._ended = True
        self.module.add(self)

    def text(self) -> str:
        """Return the whole function."""
        assert self._ended, f"function {self.name} is not finished"
        kind = "internal " if self._internal else ""
        parameters = ", ".join(f"{a.type} noundef {a.name}" for a in self.arguments)
        apart = "noinline " if self._is_apart else ""
        head = f"define {kind}{self.result} @{self.name}({parameters}) {apart}nounwind {{"
        return "\n".join([head, "entry:", *self._slots, *self._entry, *self._lines, "}"])


def _mask_type(type_: str) -> str:
    if type_.startswith("<"):
        return f"{type_.split(' x ')[0]} x i1>"
    return "i1"
