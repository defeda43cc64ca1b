"""From a model file and a folder of samples to a quantized model file, verified."""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from glob import escape
from pathlib import Path
from typing import Any

import onnx_ir as ir
from numpy.typing import NDArray

from vermilion.errors import OptionError
from vermilion.ir.load import load_model
from vermilion.ir.passes.bind_dimensions import Dimensions
from vermilion.ir.passes.pipeline import simplify
from vermilion.memory import peak_rss_mb
from vermilion.progress import Progress, no_progress
from vermilion.quantize import Quantized, quantize_model
from vermilion.quantize.samples import Layout, open_samples

Array = NDArray[Any]

# An ONNX file ends at 2 GiB; above this the weights go into a file beside it.
_LARGEST_INLINE_BYTES = 1_900_000_000


@dataclass(frozen=True)
class QuantizedFile:
    """A quantized model on disk and its distance from the original.

    Units: `peak_rss_mb` is the largest size of the process so far in 10^6 bytes.
    """

    output: Path
    quantized: Quantized
    seconds: float
    peak_rss_mb: float

    def as_json(self) -> dict[str, object]:
        """Give the keys of `quantize --json`."""
        found = self.quantized
        return {
            "output": str(self.output),
            "scheme": found.scheme,
            "seconds": self.seconds,
            "peak_rss_mb": self.peak_rss_mb,
            "samples": found.samples,
            "outputs": [output.as_json() for output in found.outputs],
            "layers": [
                {"name": layer.name, "op_type": layer.op_type, "sqnr_db": layer.sqnr_db}
                for layer in found.layers
            ],
            "positions_moved": found.moved,
            "limits_unmet": list(found.unmet),
        }


def quantize_file(
    model: str | os.PathLike[str] | ir.Model,
    output: str | os.PathLike[str],
    *,
    calib: str | os.PathLike[str] | Iterable[Mapping[str, Array]],
    scheme: str = "xint8",
    samples: int = 32,
    dims: Dimensions | None = None,
    mean: Sequence[float] = (0.0,),
    std: Sequence[float] = (1.0,),
    layout: Layout = "nchw",
    resize: tuple[int, int] | None = None,
    equalize: bool = False,
    exclude: Sequence[str] = (),
    progress: Progress = no_progress,
) -> QuantizedFile:
    """Quantize a model and save it; the file is read back before it counts.

    Args:
        model: an ONNX file, or a graph in memory.
        output: the ONNX file to write; one that is there is replaced when the new one is whole.
        calib: a folder of pictures or `.npy`/`.npz` files, one such file, the word `random`, or
            an iterable of feeds (input name → array).
        scheme: the number format, `xint8`.
        samples: how many samples to take at most.
        dims: values for symbolic dimensions or whole inputs.
        mean: subtracted from each picture's channels after dividing by 255.
        std: what the difference is divided by.
        layout: the order of the input's axes, `nchw` or `nhwc`.
        resize: height and width that pictures are brought to; the input's own by default.
        equalize: balance weights across layers first.
        exclude: names of nodes that stay in float; `*` matches anything.
        progress: told of each step.

    Raises: VermilionError of the kind that says who can mend it.
    """
    begin = time.perf_counter()
    place = Path(output)
    if place.suffix != ".onnx":
        raise OptionError(f"the output `{place}` does not end in .onnx", hint="name it NAME.onnx")
    source = load_model(model) if not isinstance(model, ir.Model) else model
    simplified = simplify(source, dims=dims, progress=progress)
    feeds: Iterable[Mapping[str, Array]]
    if isinstance(calib, str | os.PathLike):
        feeds = open_samples(
            calib if calib == "random" else Path(calib),
            simplified.model,
            mean=mean,
            std=std,
            layout=layout,
            resize=resize,
            limit=samples,
        )
    else:
        feeds = (feed for _, feed in zip(range(samples), calib, strict=False))
    quantized = quantize_model(
        simplified.model,
        feeds,
        scheme=scheme,
        equalize=equalize,
        exclude=exclude,
        progress=progress,
    )
    save_model(quantized.model, place)
    return QuantizedFile(place, quantized, time.perf_counter() - begin, peak_rss_mb())


def save_model(model: ir.Model, place: Path) -> None:
    """Write an ONNX file beside its place, read it back through the door, and rename it.

    Weights of more than one file can hold go into `NAME.onnx.….data` beside it, which is new each
    time: whatever happens on the way, the former model keeps its own.
    """
    place.parent.mkdir(parents=True, exist_ok=True)
    token = uuid.uuid4().hex[:12]
    aside = place.with_name(f".{place.stem}.{token}.onnx")
    weights_size = sum(
        value.const_value.nbytes
        for value in model.graph.initializers.values()
        if value.const_value is not None
    )
    data = place.with_name(f"{place.name}.{token}.data")
    is_large = weights_size > _LARGEST_INLINE_BYTES
    try:
        ir.save(model, aside, external_data=data.name if is_large else None)
        load_model(aside)
        aside.replace(place)
    except BaseException:
        data.unlink(missing_ok=True)
        raise
    finally:
        aside.unlink(missing_ok=True)
    for former in place.parent.glob(f"{escape(place.name)}.????????????.data"):
        if former != data:
            # Windows does not remove what a program has mapped; the next writing does.
            with suppress(PermissionError):
                former.unlink(missing_ok=True)
