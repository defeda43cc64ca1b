"""Functions in LLVM's language, written from top to bottom: loops and conditions as blocks of ours.

Kernels of calibration name their values themselves, `%sum0`, so that they read as arithmetic; what
is left to be written here is how blocks lead to each other, and which values cross from one to the
next. All vectors have as many lanes as a 512-bit register has float32 numbers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

LANES = 16

REALS = f"<{LANES} x float>"
WORDS = f"<{LANES} x i32>"
LONGS = f"<{LANES} x i64>"
MASK = f"<{LANES} x i1>"

DECLARATIONS = f"""
declare {REALS} @llvm.masked.load.v{LANES}f32.p0(ptr, i32, {MASK}, {REALS})
declare void @llvm.masked.store.v{LANES}f32.p0({REALS}, ptr, i32, {MASK})
declare {MASK} @llvm.get.active.lane.mask.v{LANES}i1.i64(i64, i64)
declare {REALS} @llvm.fma.v{LANES}f32({REALS}, {REALS}, {REALS})
"""
"""What the functions below and most kernels call."""


@dataclass(frozen=True)
class Phi:
    """A value with two origins.

    In a loop it is `first` in the first round, and what `then` was in the round before in all
    others. After a condition it is `then` where that held, and else `first`.
    """

    name: str
    kind: str
    first: str
    then: str


class Code:
    """Text while it is written; `put` takes lines as they are, labels of blocks among them."""

    def __init__(self) -> None:
        self._lines: list[str] = []
        self._block = ""

    def put(self, *texts: str) -> None:
        """Write lines."""
        for line in "\n".join(texts).splitlines():
            if line.endswith(":"):
                self._block = line[:-1]
            self._lines.append(line)

    def text(self) -> str:
        """Return all that was written."""
        return "\n".join([*self._lines, ""])

    @contextmanager
    def function(self, signature: str) -> Iterator[None]:
        """Write a function around what is put meanwhile, which ends with a `ret`."""
        self.put(f"define {signature} {{", "entry:")
        yield
        self.put("}")

    @contextmanager
    def loop(
        self,
        counter: str,
        below: str,
        *,
        start: str = "0",
        step: int = 1,
        phis: Sequence[Phi] = (),
    ) -> Iterator[None]:
        """Repeat what is put meanwhile for `%counter` = `start`, then `step` more while `below`.

        The first round is done in any case.
        """
        counted = Phi(f"%{counter}", "i64", start, f"%{counter}_next")
        with self.repeat(counter, f"%{counter}_more", (counted, *phis)):
            yield
            self.put(
                f"  %{counter}_next = add i64 %{counter}, {step}",
                f"  %{counter}_more = icmp slt i64 %{counter}_next, {below}",
            )

    @contextmanager
    def repeat(self, name: str, more: str, phis: Sequence[Phi]) -> Iterator[None]:
        """Repeat what is put meanwhile until `more` is false; then comes the block `name`_done."""
        before = self._block
        self.put(f"  br label %{name}_loop", f"{name}_loop:")
        # Where a round ends is not known before it is written.
        start = len(self._lines)
        yield
        origins = [
            f"  {phi.name} = phi {phi.kind} [{phi.first}, %{before}], [{phi.then}, %{self._block}]"
            for phi in phis
        ]
        self._lines[start:start] = origins
        self.put(f"  br i1 {more}, label %{name}_loop, label %{name}_done", f"{name}_done:")

    @contextmanager
    def when(self, condition: str, name: str, phis: Sequence[Phi] = ()) -> Iterator[None]:
        """Do what is put meanwhile if the condition holds; then comes the block `name`_after."""
        before = self._block
        self.put(f"  br i1 {condition}, label %{name}, label %{name}_after", f"{name}:")
        yield
        inside = self._block
        self.put(f"  br label %{name}_after", f"{name}_after:")
        self.put(
            *(
                f"  {phi.name} = phi {phi.kind} [{phi.first}, %{before}], [{phi.then}, %{inside}]"
                for phi in phis
            )
        )


def everywhere(name: str, kind: str, value: str) -> str:
    """Put one number into all lanes of `%name`."""
    vector = f"<{LANES} x {kind}>"
    return f"""  %{name}_first = insertelement {vector} poison, {kind} {value}, i64 0
  %{name} = shufflevector {vector} %{name}_first, {vector} poison, {WORDS} zeroinitializer"""


def lanes_of(kind: str) -> str:
    """Return the constant 0, 1, … of integers of this type."""
    return f"<{', '.join(f'{kind} {lane}' for lane in range(LANES))}>"


def active(start: str, end: str) -> str:
    """Return the mask of the lanes that lie below `end` if the first is at `start`."""
    return f"call {MASK} @llvm.get.active.lane.mask.v{LANES}i1.i64(i64 {start}, i64 {end})"


def masked_load(pointer: str, mask: str) -> str:
    """Return float32 numbers, zeros where the mask has none."""
    return (
        f"call {REALS} @llvm.masked.load.v{LANES}f32.p0("
        f"ptr {pointer}, i32 4, {MASK} {mask}, {REALS} zeroinitializer)"
    )


def masked_store(values: str, pointer: str, mask: str) -> str:
    """Write float32 numbers where the mask has ones."""
    return (
        f"call void @llvm.masked.store.v{LANES}f32.p0("
        f"{REALS} {values}, ptr {pointer}, i32 4, {MASK} {mask})"
    )


def each(count: int, text: str) -> str:
    """Repeat lines; in them `{n}` is 0, 1, …."""
    return "\n".join(text.replace("{n}", str(n)) for n in range(count))


def each_phi(count: int, name: str, then: str, first: str = "zeroinitializer") -> list[Phi]:
    """Return vectors of sums that go from round to round; in the names `{n}` is 0, 1, …."""
    return [
        Phi(name.replace("{n}", str(n)), REALS, first, then.replace("{n}", str(n)))
        for n in range(count)
    ]
