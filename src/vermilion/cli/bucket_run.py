"""`vermilion run A.rai --bucket B.rai …`: the program of several that an input fits."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from vermilion.cli.options import load_inputs
from vermilion.cli.output import Result
from vermilion.errors import OptionError

if TYPE_CHECKING:
    from rich.console import RenderableType

    from vermilion.backends.base import Array


def run_bucketed(
    programs: Sequence[str | Path],
    words: Sequence[str] | None,
    pad: Sequence[str] | None,
    output: Path | None,
) -> Result:
    """Run inputs on the program for their size, or padded on the next."""
    from vermilion.cli.run import described_outputs
    from vermilion.ir.value_files import check_form, write_values
    from vermilion.runtime.buckets import BucketSession

    if output is not None:
        check_form(output)
    inputs = load_inputs(words)
    if not inputs:
        raise OptionError("inputs say which program is run", hint="give `--input`")
    session = BucketSession([Path(program) for program in programs], pad=_padding(pad))
    at, is_padded = session.choose(inputs)
    begin = time.perf_counter()
    outputs = session.run(None, inputs)
    milliseconds = (time.perf_counter() - begin) * 1e3
    runs_on = "; ".join(session.runs_on(at))
    session.close()
    if output is not None:
        write_values(output, outputs)
    data = {
        "model": str(programs[at]),
        "padded": is_padded,
        "runs_on": runs_on,
        "milliseconds": milliseconds,
        "output": output,
        "outputs": described_outputs(outputs),
    }
    return Result(data, lambda: _view(data, outputs))


def _padding(words: Sequence[str] | None) -> float | dict[str, float] | None:
    """Read `--pad 0`, or `--pad mask=0 --pad ids=1`. Raises: OptionError."""
    named: dict[str, float] = {}
    for word in words or ():
        name, equals, value = word.rpartition("=")
        try:
            number = float(value)
        except ValueError as error:
            raise OptionError(
                f"`{value}` is no number", where=f"--pad {word}", hint="write `--pad 0`"
            ) from error
        if not equals and len(words or ()) == 1:
            return number
        if not name:
            raise OptionError("a number for all inputs stands alone", where=f"--pad {word}")
        named[name] = number
    return named or None


def _view(data: dict[str, object], outputs: dict[str, Array]) -> RenderableType:
    from rich.console import Group

    how = "padded, and cut" if data["padded"] else "exactly its size"
    shapes = (
        f"{name}  {array.dtype}  {'×'.join(map(str, array.shape))}"
        for name, array in outputs.items()
    )
    where = f"written to {data['output']}" if data["output"] else "not written: give --output"
    return Group(f"ran on {data['model']} ({how}): {data['runs_on']}", *shapes, where)
