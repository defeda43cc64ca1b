"""What a compiled operator is: everything that decides its machine code, and its key."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Literal, get_args

from vermilion.errors import OptionError

Number = Literal["bfp16", "bf16", "int8"]
"""In what a prompt's products are computed, as `--ops_type` names it."""

DECODE: Literal["int4"] = "int4"
"""How a token's products are named, whose weights stay as they are stored."""

ROWS = (128, 256, 512, 1024, 2048)
"""Rows of a prompt that operators are compiled for: a shorter one is padded to the next."""

DEFAULT_CONTEXT = 2048

# Raised when what an operator's files hold or how they are used changes.
_FORMAT = 1


@dataclass(frozen=True)
class Identity:
    """One operator at one shape, for one number of rows, in one number format, on one chip.

    Of one row it is decoding's: then the shape names bits and block of the weights too.
    """

    operator: str
    shape: Mapping[str, int]
    rows: int
    number: Number | Literal["int4"]
    target: str

    def words(self) -> str:
        """Return it for people: `MatMulNBits K 576 N 1536, 128 rows, bfp16, zen5`."""
        return f"{self.shape_words()}, {self.rows} rows, {self.number}, {self.target}"

    def shape_words(self) -> str:
        """Return operator and shape: `MatMulNBits K 576 N 1536`."""
        sizes = " ".join(f"{name} {size}" for name, size in self.shape.items())
        return f"{self.operator} {sizes}"

    @property
    def is_decode(self) -> bool:
        """Whether it is for one token."""
        return self.number == DECODE

    @property
    def is_sound(self) -> bool:
        """Whether every size is one that an operator can have."""
        sizes = (*self.shape.values(), self.rows)
        return bool(self.shape) and all(0 < size < 1 << 31 for size in sizes)

    def as_json(self) -> dict[str, object]:
        """Return it as it stands in a manifest."""
        return {**asdict(self), "shape": dict(sorted(self.shape.items()))}


def key_of(identity: Identity) -> str:
    """Return the key under which the operator's files lie: equal for equal code, whoever asks.

    Weights are not in it: operators of a fine-tune have the keys of the model that it was tuned
    from.
    """
    parts = {
        "format": _FORMAT,
        "generator": generator_digest(),
        "llvm": llvm_version(),
        **identity.as_json(),
    }
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


@cache
def generator_digest() -> str:
    """Return a digest of the sources that decide an operator's code."""
    here = Path(__file__).parent
    sources = [*(here.parent.parent / "codegen").rglob("*.py")]
    sources += [here / "prompt_operator.py", here / "decode_operator.py"]
    state = hashlib.sha256()
    for file in sorted(sources):
        if not file.name.endswith("_test.py"):
            state.update(file.name.encode())
            state.update(file.read_bytes())
    return state.hexdigest()


def llvm_version() -> str:
    """Return the version of the compiler below the generator."""
    return version("llvmlite")


def parse_number(text: str) -> Number:
    """Read a value of `--ops_type`.

    Raises: OptionError.
    """
    for number in get_args(Number):
        if text == number:
            return number  # type: ignore[no-any-return]
    raise OptionError(
        f"`--ops_type {text}` is no format that a prompt's products are computed in",
        hint=f"one of {', '.join(get_args(Number))}; decoding stays int4",
    )


def rows_for(context: int, exact: int = 0) -> tuple[int, ...]:
    """Return the numbers of rows to compile for: all up to a context, or exactly one.

    Raises: OptionError.
    """
    if exact < 0 or context < 1:
        raise OptionError("a context and a length are numbers of one token and more")
    if exact:
        return (exact,)
    fitting = tuple(rows for rows in ROWS if rows <= context)
    return fitting or (ROWS[0],)
