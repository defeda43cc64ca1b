"""What `torch.compile(..., options={...})` takes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from difflib import get_close_matches

from vermilion.errors import OptionError

_PRECISIONS = ("auto", "fp32", "bf16")
_WHERE = 'torch.compile(..., backend="vermilion")'


@dataclass(frozen=True)
class TorchOptions:
    """How graphs are compiled and run.

    `precision` is what floats are computed in: `fp32`, `bf16`, or `auto`, which is the graph's own.
    `threads` of each graph; 0 means as many as `torch.get_num_threads()`.
    `winograd` allows algorithms with fewer multiplications; `cache_dir` is as in `compile_model`.
    """

    precision: str = "auto"
    threads: int = 0
    winograd: bool = True
    cache_dir: str | None = None

    def __post_init__(self) -> None:
        """Check each of them. Raises: OptionError."""
        if self.precision not in _PRECISIONS:
            raise OptionError(
                f"unknown precision `{self.precision}`",
                where=_WHERE,
                hint=f"it is one of {', '.join(_PRECISIONS)}",
            )
        if self.threads < 0:
            raise OptionError(f"{self.threads} threads", where=_WHERE, hint="0 means PyTorch's")

    def key(self) -> dict[str, object]:
        """Return those that change what is compiled."""
        return {"precision": self.precision, "winograd": self.winograd}


def read_options(mode: str | None, given: Mapping[str, object] | None) -> TorchOptions:
    """Read what `torch.compile` was given.

    Raises: OptionError for a mode, and for an option that is none.
    """
    if mode is not None:
        raise OptionError(f"there is no mode `{mode}`", where=_WHERE, hint="use `options={...}`")
    known = [field.name for field in fields(TorchOptions)]
    for name in given or {}:
        if name not in known:
            near = get_close_matches(name, known, n=1)
            hint = f"did you mean `{near[0]}`?" if near else f"there are {', '.join(known)}"
            raise OptionError(f"there is no option `{name}`", where=_WHERE, hint=hint)
    return TorchOptions(**(given or {}))  # type: ignore[arg-type]
