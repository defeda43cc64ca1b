"""From a model file and a folder of samples to a quantized model file, verified."""

from __future__ import annotations

import dataclasses
import json
import os
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from glob import escape
from operator import length_hint
from pathlib import Path
from typing import Any, Unpack

import onnx_ir as ir
from numpy.typing import NDArray

from vermilion.errors import OptionError
from vermilion.files import (
    aside_of,
    check_not_source,
    check_writable,
    resolved,
    write_file,
    writing,
)
from vermilion.ir.external_weights import write_model
from vermilion.ir.literal.run import check_runs
from vermilion.ir.load import load_model
from vermilion.ir.passes.bind_dimensions import Dimensions
from vermilion.ir.passes.pipeline import simplify
from vermilion.ir.pictures import Layout, PictureOptions
from vermilion.ir.preprocessing import read_preprocessing, with_given
from vermilion.ir.source import ModelSource, open_source
from vermilion.memory import peak_rss_mb
from vermilion.progress import Progress, no_progress
from vermilion.quantize.front import Front, find_front
from vermilion.quantize.guard import Guarded, Promise, quantize_guarded
from vermilion.quantize.html import html_report
from vermilion.quantize.options import Settings, make_options
from vermilion.quantize.quantize import quantize_model
from vermilion.quantize.result import Quantized
from vermilion.quantize.samples import Samples, open_samples

Array = NDArray[Any]

# An ONNX file ends at 2 GiB; above this the weights go into a file beside it.
_LARGEST_INLINE_BYTES = 1_900_000_000


@dataclass(frozen=True)
class QuantizedFile:
    """A quantized model on disk and its distance from the original.

    Units: `peak_rss_mb` is the largest size of the process so far in 10^6 bytes. `guarded` is
    there where accuracy was promised.
    """

    output: Path
    quantized: Quantized
    seconds: float
    peak_rss_mb: float
    calibration: str = ""
    guarded: Guarded | None = None
    front: Front | None = None

    @property
    def met(self) -> bool:
        """Whether what was promised is kept, or nothing was promised."""
        return self.guarded is None or self.guarded.met

    def as_json(self) -> dict[str, object]:
        """Return the keys of `quantize --json`."""
        found = self.quantized
        data: dict[str, object] = {
            "output": str(self.output),
            "scheme": found.scheme,
            "seconds": self.seconds,
            "peak_rss_mb": self.peak_rss_mb,
            "samples": found.samples,
            "samples_in_own_kernels": found.own_samples,
            "compared_on": "held-out samples" if found.held_out else "calibration samples",
            "held_out": found.held_out,
            "calibration": self.calibration,
            "outputs": [output.as_json() for output in found.outputs],
            "layers": [
                {"name": layer.name, "op_type": layer.op_type, "sqnr_db": layer.sqnr_db}
                for layer in found.layers
            ],
            "eight_bit_share": found.eight_bit_share,
            "positions_moved": found.moved,
            "limits_unmet": list(found.unmet),
            "inner": [dataclasses.asdict(row) for row in found.inner],
            "crowded": [dataclasses.asdict(row) for row in found.crowded],
            "recipe": found.options.as_json(),
        }
        if self.guarded is not None:
            data["promise_met"] = self.guarded.met
            data["held_out"] = self.guarded.held_out
            data["metric"] = self.guarded.metric
            data["ladder"] = [trial.as_json() for trial in self.guarded.ladder]
        if self.front is not None:
            data["front"] = self.front.as_json()
        return data


def quantize_file(
    model: ModelSource,
    output: str | os.PathLike[str],
    *,
    calib: str | os.PathLike[str] | Iterable[Mapping[str, Array]],
    samples: int = 32,
    dims: Dimensions | None = None,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
    layout: Layout | None = None,
    resize: tuple[int, int] | None = None,
    preprocess: str | os.PathLike[str] | None = None,
    promise: Promise | None = None,
    pareto: str | os.PathLike[str] | None = None,
    minutes: float = 5.0,
    labels: str | os.PathLike[str] | Sequence[object] | None = None,
    report: str | os.PathLike[str] | None = None,
    progress: Progress = no_progress,
    **settings: Unpack[Settings],
) -> QuantizedFile:
    """Quantize a model and save it; the file is read back before it counts.

    Args:
        model: an ONNX file, its bytes, an `onnx.ModelProto`, or a graph of `onnx_ir`.
        output: the ONNX file to write; one that is there is replaced when the new one is whole.
        calib: a folder of images or `.npy`/`.npz` files, one such file, the word `random`, or
            an iterable of feeds (input name → array).
        samples: how many samples to take at most.
        dims: values for symbolic dimensions or whole inputs.
        mean: subtracted from each image's channels after dividing by 255.
        std: what the difference is divided by.
        layout: the order of the input's axes, `nchw` or `nhwc`.
        resize: height and width that images are resized to; the input's own by default.
        preprocess: a file that says all that of images, and how they are cropped and in which
            order their channels are, or its folder: our own, transformers' or timm's. What is
            given beside it goes before what it says.
        promise: what must hold on samples held out of calibration; precision is raised where it
            has to be. The result says whether it holds.
        pareto: a JSON file to write the Pareto front to: models that no other one beats in both
            cost and accuracy, the cheapest first, each with its recipe. That one is saved.
            `promise` then only names a metric that counts beside the SQNR.
        minutes: how long the Pareto front is searched for.
        labels: for the promise's metric: a file (`.csv`, `.txt`, `.npy`, `.npz`), a folder whose
            folders are classes, or a sequence, one for each sample.
        report: an HTML file to write.
        progress: told of each step.
        settings: the fields of `vermilion.quantize.options.Options`: `scheme`, `method`,
            `rounding`, `per_channel`, `symmetric`, `equalize`, `migrate`, `correct_bias`, `wide`,
            `exclude`, `bfloat`, `block`, `headroom`, `all_tensors`, `middle`, `dpu`.

    Raises: VermilionError of the kind that says who can fix it.
    """
    begin = time.perf_counter()
    place = Path(output)
    if place.suffix != ".onnx":
        raise OptionError(f"the output `{place}` does not end in .onnx", hint="name it NAME.onnx")
    others = [Path(file) for file in (pareto, report) if file is not None]
    check_not_source(place, model)
    _check_places([place, *others])
    options = make_options(settings)
    source = open_source(model)
    graph = simplify(source, dims=dims, progress=progress).model
    feeds: Iterable[Mapping[str, Array]]
    if isinstance(calib, str | os.PathLike):
        feeds = open_samples(
            calib if calib == "random" else Path(calib),
            graph,
            limit=samples,
            images=_pictures(preprocess, mean, std, layout, resize),
        )
        least = length_hint(feeds)
    else:
        least = min(samples, length_hint(calib))
        feeds = (feed for _, feed in zip(range(samples), calib, strict=False))
    if labels is not None:
        if promise is None:
            raise OptionError("labels are for a promise", hint="promise a largest drop as well")
        labels = Path(labels) if isinstance(labels, str | os.PathLike) else labels
        promise = dataclasses.replace(promise, labels=labels)
    if promise is not None and isinstance(feeds, Samples):
        promise = dataclasses.replace(promise, files=feeds.taken)
    feeds = _Checked(graph, feeds, least)
    guarded = front = None
    if pareto is not None:
        front = find_front(
            graph,
            feeds,
            options,
            minutes=minutes,
            promise=promise,
            progress=progress,
            details=report is not None,
        )
        quantized = front.quantized
    elif promise is None:
        quantized = quantize_model(
            graph, feeds, details=report is not None, progress=progress, **settings
        )
    else:
        guarded = quantize_guarded(
            graph, feeds, promise, options, progress, details=report is not None
        )
        quantized = guarded.quantized
    save_model(quantized.model, place)
    if front is not None and pareto is not None:
        write_file(Path(pareto), json.dumps(front.as_json(), indent=2) + "\n")
    if report is not None:
        title = f"{place.name}: {quantized.scheme}"
        write_file(Path(report), html_report(quantized, title, guarded))
    calibration = str(calib) if isinstance(calib, str | os.PathLike) else "given samples"
    seconds = time.perf_counter() - begin
    return QuantizedFile(place, quantized, seconds, peak_rss_mb(), calibration, guarded, front)


def _check_places(places: Sequence[Path]) -> None:
    """Make sure before long work that all of them can be written, each beside the others."""
    if len({resolved(place) for place in places}) < len(places):
        raise OptionError("two of the files to write have one name", hint="give each its own")
    for place in places:
        check_writable(place)


def _pictures(
    preprocess: str | os.PathLike[str] | None,
    mean: Sequence[float] | None,
    std: Sequence[float] | None,
    layout: Layout | None,
    resize: tuple[int, int] | None,
) -> PictureOptions:
    found = PictureOptions() if preprocess is None else read_preprocessing(Path(preprocess))
    return with_given(
        found,
        mean=None if mean is None else tuple(mean),
        std=None if std is None else tuple(std),
        layout=layout,
        resize=resize,
    )


@dataclass(frozen=True)
class _Checked:
    """Feeds, once the model has come to an end with the first of them."""

    model: ir.Model
    feeds: Iterable[Mapping[str, Array]]
    least: int  # as many there are at least

    def __iter__(self) -> Iterator[Mapping[str, Array]]:
        for number, feed in enumerate(self.feeds):
            if number == 0:
                check_runs(self.model, feed)
            yield feed

    def __length_hint__(self) -> int:
        return self.least


def save_model(model: ir.Model, place: Path) -> None:
    """Write an ONNX file beside its place, read it back through the door, and rename it.

    It needs no other file than its own: weights that lie in files of the float model are written
    anew. Weights of more than one file can hold go into `NAME.onnx.….data` beside it, which is new
    each time: whatever happens on the way, the former model keeps its own.
    """
    place = resolved(place)  # of a link, what it leads to
    data = place.with_name(f"{place.name}.{uuid.uuid4().hex[:12]}.data")
    _take_in(model)
    weights_size = sum(
        value.const_value.nbytes
        for graph in model.graphs()
        for value in graph.initializers.values()
        if value.const_value is not None
    )
    is_large = weights_size > _LARGEST_INLINE_BYTES
    try:
        with writing(place, "the model"), aside_of(place, ".onnx") as aside:
            place.parent.mkdir(parents=True, exist_ok=True)
            if is_large:
                ir.save(model, aside, external_data=data.name)
            else:
                write_model(model, aside)
            load_model(aside)
            aside.replace(place)
    except BaseException:
        data.unlink(missing_ok=True)
        raise
    for former in place.parent.glob(f"{escape(place.name)}.????????????.data"):
        if former != data:
            # Windows does not remove what a program has mapped; the next writing does.
            with suppress(PermissionError):
                former.unlink(missing_ok=True)


def _take_in(model: ir.Model) -> None:
    """Hold weights that lie in files as arrays, which stay mapped there until they are written."""
    for graph in model.graphs():
        for value in graph.initializers.values():
            tensor = value.const_value
            if isinstance(tensor, ir.ExternalTensor):
                value.const_value = _of_its_own(tensor)
        for node in graph:
            for name, attribute in list(node.attributes.items()):
                if attribute.is_ref() or attribute.type != ir.AttributeType.TENSOR:
                    continue
                tensor = attribute.as_tensor()
                if isinstance(tensor, ir.ExternalTensor):
                    node.attributes[name] = ir.AttrTensor(name, _of_its_own(tensor))


def _of_its_own(tensor: ir.ExternalTensor) -> ir.TensorProtocol:
    return ir.Tensor(tensor.numpy(), dtype=tensor.dtype, name=tensor.name)
