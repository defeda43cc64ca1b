"""Metrics that a caller brings: functions, and objects that are updated and then asked.

A function takes the outputs of one sample where it asks for `sample`, `index` or `label` (or for
four things), and else those of all held-out samples in their order; `samples`, `indices` and
`labels` are those of all. An object has `update(outputs, label)`, `compute()` and `reset()`, as
those of torchmetrics do.
"""

from __future__ import annotations

import dataclasses
import inspect
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from vermilion.errors import OptionError, first_line
from vermilion.ir.execute import Array
from vermilion.quantize.boxes import MAP
from vermilion.quantize.metrics import (
    DECISIONS,
    METRICS,
    Figure,
    Metric,
    Outputs,
    Sample,
    mean_figure,
    real_output,
)
from vermilion.quantize.texts import error_rate

_TEXTS = ("cer", "wer")
KNOWN = (*METRICS, MAP.name, *_TEXTS)
"""Metrics that are known by name."""

_OF_ONE = {"sample": "sample", "index": "index", "number": "index", "label": "label",
           "target": "label", "truth": "label"}  # fmt: skip
_OF_ALL = {"samples": "samples", "inputs": "samples", "indices": "indices", "indexes": "indices",
           "labels": "labels", "targets": "labels", "truths": "labels"}  # fmt: skip
_WAYS = {"larger": True, "smaller": False}
_IN_ORDER = ("outputs", "sample", "index", "label")


@dataclasses.dataclass(frozen=True)
class _Given:
    """A row: what a caller's metric may ask for."""

    outputs: Outputs
    sample: Sample
    index: int
    label: Any


def as_metric(
    given: object,
    *,
    direction: str | None = None,
    bounds: tuple[float, float] | None = None,
    alphabet: Sequence[str] = (),
) -> Metric:
    """Return the metric that a name, a function or an object stands for.

    `direction` (`larger` or `smaller` is better) and `bounds` go before what it says of itself.

    Raises: OptionError for a name that is none, or something that cannot be called.
    """
    metric = _named(given, alphabet) if isinstance(given, str) else _made(given)
    if direction is not None:
        if direction not in _WAYS:
            raise OptionError(
                f"unknown direction `{direction}`", hint="`larger` or `smaller` is better"
            )
        metric = dataclasses.replace(metric, larger_is_better=_WAYS[direction])
    if bounds is not None:
        low, high = (float(end) for end in bounds)
        if not low < high:
            raise OptionError(f"figures from {low:g} to {high:g} are no range")
        metric = dataclasses.replace(metric, low=low, high=high, high_of=None)
    return metric


def _named(name: str, alphabet: Sequence[str]) -> Metric:
    if name in _TEXTS:
        return error_rate(name, alphabet)
    found = {**METRICS, MAP.name: MAP, DECISIONS.name: DECISIONS, "accuracy": METRICS["top1"]}
    if name not in found:
        listed = ", ".join(f"`{known}`" for known in KNOWN)
        raise OptionError(f"unknown metric `{name}`", hint=f"known: {listed}; or MODULE:FUNCTION")
    return found[name]


def _made(given: object) -> Metric:
    if isinstance(given, Metric):
        return given
    if callable(getattr(given, "update", None)) and callable(getattr(given, "compute", None)):
        return _from_object(given)
    if callable(given):
        return _from_function(given)
    raise OptionError(
        f"a {type(given).__name__} is not a metric",
        hint="give a name, a function, or an object with `update` and `compute`",
    )


def _declared(given: object) -> tuple[bool | None, float, float]:
    """Return what a metric says of itself: which way is better, and how far it goes."""
    larger = _first(given, ("larger_is_better", "higher_is_better"))
    direction = getattr(given, "direction", None)
    if isinstance(direction, str):
        larger = _WAYS.get(direction)
    low = _first(given, ("plot_lower_bound",))
    high = _first(given, ("plot_upper_bound",))
    ends = getattr(given, "range", None)
    if isinstance(ends, Sequence) and len(ends) == 2:
        low, high = ends
    return (
        None if larger is None else bool(larger),
        -math.inf if low is None else float(low),
        math.inf if high is None else float(high),
    )


def _first(given: object, names: Sequence[str]) -> Any:
    return next((v for n in names if (v := getattr(given, n, None)) is not None), None)


def _name_of(given: object) -> str:
    return str(getattr(given, "__name__", type(given).__name__))


def _from_function(function: Callable[..., Any]) -> Metric:
    name = _name_of(function)
    larger, low, high = _declared(function)
    asked, of_one = _asked(function, name)

    if of_one:

        def row(outputs: Outputs, sample: Sample, index: int, label: Any) -> Figure:
            there = {"outputs": outputs, "sample": sample, "index": index, "label": label}
            return _checked(name, _called(name, function, asked, there))

        return Metric(name, row, mean_figure, larger, low, high, is_mean=True)

    def figure(rows: Sequence[_Given]) -> Figure:
        there = {
            "outputs": [row.outputs for row in rows],
            "samples": [row.sample for row in rows],
            "indices": [row.index for row in rows],
            "labels": [row.label for row in rows],
        }
        return _checked(name, _called(name, function, asked, there))

    return Metric(name, _Given, figure, larger, low, high)


def _asked(function: Callable[..., Any], name: str) -> tuple[dict[str, str], bool]:
    """Return what each parameter of a function is given, and whether it is for one sample."""
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):  # written in C
        return {"": "outputs"}, False
    single = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    plain = [p for p in parameters if p.kind not in single]
    if not plain:
        return {"": "outputs"}, False
    needed = [p for p in plain if p.default is inspect.Parameter.empty]
    of_one = any(p.name in _OF_ONE for p in plain[1:])
    known = _OF_ONE if of_one else _OF_ALL
    asked = {"": "outputs"}
    for place, parameter in enumerate(plain[1:], 1):
        if parameter.name in known:
            asked[parameter.name] = known[parameter.name]
        elif parameter in needed and len(needed) == len(_IN_ORDER) and not asked.keys() - {""}:
            return dict(zip(("", "1", "2", "3"), _IN_ORDER, strict=True)), True
        elif parameter in needed:
            raise OptionError(
                f"the metric `{name}` asks for `{parameter.name}`, and what it shall get as its "
                f"argument {place + 1} is not known",
                hint="a metric of one sample takes (outputs, sample, index, label), one of all "
                "(outputs, samples, indices, labels); leave out what is not needed",
            )
    return asked, of_one


def _called(
    name: str, function: Callable[..., Any], asked: Mapping[str, str], there: Mapping[str, Any]
) -> Any:
    by_place = [there[what] for parameter, what in asked.items() if not parameter.isidentifier()]
    by_name = {p: there[what] for p, what in asked.items() if p.isidentifier()}
    try:
        return function(*by_place, **by_name)
    except Exception as error:  # a caller's function may raise anything
        raise OptionError(
            f"the metric `{name}` failed: {type(error).__name__}: {first_line(error)}",
            hint="it is called with the outputs of one sample (input name → array), or with the "
            "list of those of all",
        ) from error


def _checked(name: str, found: Any) -> Figure:
    """Return what a metric returned as a number or numbers; NaN and infinity are the judge's."""
    if isinstance(found, Mapping) and found:
        return {str(key): _number(name, value) for key, value in found.items()}
    return _number(name, found)


def _number(name: str, found: Any) -> float:
    if found is None:
        raise OptionError(f"the metric `{name}` returned nothing", hint="end it with `return`")
    try:
        array = np.asarray(found.detach() if hasattr(found, "detach") else found, np.float64)
    except (TypeError, ValueError) as error:
        raise OptionError(
            f"the metric `{name}` returned a {type(found).__name__}, not a number"
        ) from error
    if array.size != 1:
        raise OptionError(
            f"the metric `{name}` returned {array.size} numbers",
            hint="return one, or a dictionary with one for each name",
        )
    return float(array.reshape(-1)[0])


def _from_object(given: Any) -> Metric:
    name = _name_of(given)
    larger, low, high = _declared(given)

    def figure(rows: Sequence[_Given]) -> Figure:
        there = {"outputs": rows}
        return _checked(name, _called(name, _computed, {"": "outputs"}, there))

    def _computed(rows: Sequence[_Given]) -> Any:
        given.reset()
        for row in rows:
            found = real_output(row.outputs)
            given.update(*(_as_taken(given, x) for x in (found.astype(np.float32), row.label)))
        return given.compute()

    return Metric(name, _Given, figure, larger, low, high)


def _as_taken(given: object, value: Any) -> Any:
    """Return an array as a tensor where the object is one of PyTorch's."""
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(given, torch.nn.Module):
        return value
    array: Array = np.asarray(value)
    return torch.from_numpy(np.atleast_1d(array).copy())
