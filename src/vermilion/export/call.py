"""How the module is called: inputs from text, matched with `forward`; outputs as a flat list."""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from vermilion.errors import OptionError

if TYPE_CHECKING:
    import torch


# Types that ONNX Runtime takes from numpy, so that the export can be checked.
DATA_TYPES = (
    "float32",
    "float16",
    "float64",
    "int64",
    "int32",
    "int16",
    "int8",
    "uint8",
    "bool",
)

_SIZE = re.compile(r"(?:([A-Za-z_]\w*)=)?([1-9][0-9]{0,17})(?:x|$)", re.ASCII)
_FORM = "write `1x3x224x224`, `ids:1x128:int64`, or `batch=2x3x224x224` where a size stays open"


@dataclass(frozen=True)
class InputSpec:
    """One input: its name (empty if the user gave none), shape and type.

    `open_names` has an entry a size: empty where it is fixed, else the name of an open one, whose
    number in `shape` is an example.
    """

    name: str
    shape: tuple[int, ...]
    data_type: str = "float32"
    open_names: tuple[str, ...] = ()

    @property
    def open_axes(self) -> dict[int, str]:
        """The names of open sizes by axis."""
        return {axis: name for axis, name in enumerate(self.open_names) if name}

    def __str__(self) -> str:
        name = f"{self.name}:" if self.name else ""
        named = self.open_axes
        sizes = "x".join(
            f"{named[axis]}={size}" if axis in named else str(size)
            for axis, size in enumerate(self.shape)
        )
        return f"{name}{sizes}" + ("" if self.data_type == "float32" else f":{self.data_type}")


def parse_inputs(texts: Sequence[str]) -> tuple[InputSpec, ...]:
    """Read every input of the module.

    Raises: OptionError, also where a dictionary is given: PyTorch's exporter takes a tuple of
    tensors, and what it says of a dictionary leads nobody to that.
    """
    if isinstance(texts, Mapping):
        raise _dictionary_given(texts)
    if isinstance(texts, str):
        raise OptionError("inputs are given as one text", hint=f'pass a list: `["{texts}"]`')
    if not texts:
        raise OptionError("the module's inputs are not given", hint=f"{_FORM}, one for each input")
    specs = tuple(parse_input(text) for text in texts)
    names = [spec.name for spec in specs if spec.name]
    for name in names:
        if names.count(name) > 1:
            raise OptionError(f"input `{name}` is given twice")
    _check_open(specs)
    return specs


def parse_input(text: str) -> InputSpec:
    """Read `SHAPE`, `NAME:SHAPE`, `SHAPE:TYPE` or `NAME:SHAPE:TYPE`.

    Raises: OptionError.
    """
    words = text.split(":")
    sizes = _sizes(words[0])
    name = words.pop(0) if sizes is None else ""
    sizes = _sizes(words[0]) if words and sizes is None else sizes
    if sizes is None or len(words) > 2:
        raise OptionError(f"`{text}` is not an input", hint=_FORM)
    data_type = words[1] if len(words) == 2 else "float32"
    if data_type not in DATA_TYPES:
        known = ", ".join(DATA_TYPES)
        raise OptionError(f"`{data_type}` is not a type", where=text, hint=f"known are {known}")
    names = tuple(name for name, _ in sizes)
    shape = tuple(int(size) for _, size in sizes)
    return InputSpec(name, shape, data_type, names if any(names) else ())


def _sizes(text: str) -> list[tuple[str, str]] | None:
    """Return the name (empty where it is fixed) and the number of each size, None if it is none."""
    found, at = [], 0
    while at < len(text):
        match = _SIZE.match(text, at)
        if match is None:
            return None
        found.append((match[1] or "", match[2]))
        at = match.end()
    return found if found and not text.endswith("x") else None


def _check_open(specs: Sequence[InputSpec]) -> None:
    """Refuse two examples of one open size."""
    known: dict[str, int] = {}
    for spec in specs:
        for axis, name in spec.open_axes.items():
            if known.setdefault(name, spec.shape[axis]) != spec.shape[axis]:
                raise OptionError(
                    f"the open size `{name}` is {known[name]} in one input and "
                    f"{spec.shape[axis]} in another",
                    where=str(spec),
                    hint="give one example for it, or two names",
                )


def sample(spec: InputSpec, seed: int) -> torch.Tensor:
    """Fill an input: normal numbers, zeros and ones for integers (safe as ids and as masks)."""
    import torch

    random = torch.Generator().manual_seed(seed)
    kind: torch.dtype = getattr(torch, spec.data_type)
    if kind.is_floating_point:
        return torch.randn(spec.shape, generator=random).to(kind)
    return torch.randint(0, 2, spec.shape, generator=random).to(kind)


def _dictionary_given(inputs: Mapping[object, object]) -> OptionError:
    rows = []
    for name, value in inputs.items():
        shape = getattr(value, "shape", value)
        if isinstance(shape, (tuple, list)):
            rows.append(f'"{name}:{"x".join(str(size) for size in shape)}"')
        else:
            rows.append(f'"{name}:{shape}"')
    return OptionError(
        "inputs are given as a dictionary, and `torch.onnx.export` takes its example inputs as a "
        "tuple of tensors: a dictionary in that place ends in a type error",
        hint=f"pass a list, one text an input: `[{', '.join(rows)}]`",
    )


_ORDERED = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


@dataclass(frozen=True)
class Call:
    """A module with its inputs in the order of the graph to come.

    `keywords` is empty where the inputs are passed by position, else the parameter of each.
    """

    module: torch.nn.Module
    inputs: tuple[InputSpec, ...]
    keywords: tuple[str, ...] = ()

    def tensors(self, seed: int) -> tuple[torch.Tensor, ...]:
        """Return example inputs; another seed gives other numbers."""
        return tuple(sample(spec, seed + index) for index, spec in enumerate(self.inputs))

    @property
    def open_sizes(self) -> dict[str, int]:
        """The examples of open sizes by name."""
        return {
            name: spec.shape[axis] for spec in self.inputs for axis, name in spec.open_axes.items()
        }

    def at(self, sizes: Mapping[str, int]) -> Call:
        """Return the same call with other examples of its open sizes."""
        inputs = tuple(
            dataclasses.replace(
                spec,
                shape=tuple(
                    sizes[spec.open_axes[axis]] if axis in spec.open_axes else size
                    for axis, size in enumerate(spec.shape)
                ),
            )
            for spec in self.inputs
        )
        return dataclasses.replace(self, inputs=inputs)

    def __call__(self, tensors: Sequence[torch.Tensor]) -> object:
        """Call the module as the user's `forward` wants it."""
        if self.keywords:
            return self.module(**dict(zip(self.keywords, tensors, strict=True)))
        return self.module(*tensors)


def match_inputs(module: torch.nn.Module, specs: Sequence[InputSpec]) -> Call:
    """Match inputs with the parameters of `forward`, by name where every name is one of them.

    Inputs without a name get that of their parameter; a lone one is called `input`.

    Raises: OptionError where they do not fit, with the signature.
    """
    parameters = _parameters(module)
    ordered = [name for name, p in parameters.items() if p.kind in _ORDERED]
    for spec in specs:
        if not spec.name and spec.open_axes.get(0) in parameters:
            name = spec.open_axes[0]
            raise OptionError(
                f"`{name}=…` names a dynamic size, and `{name}` is an input of "
                f"`{_signature(module)}`",
                where=str(spec),
                hint=f"write `{name}:SHAPE` for the input, or another name for the size",
            )
    if parameters and all(spec.name in parameters for spec in specs):
        by_name = {spec.name: spec for spec in specs}
        found = [by_name[name] for name in parameters if name in by_name]
        names = tuple(spec.name for spec in found)
        in_order = list(names) == ordered[: len(names)]
        call = Call(module, tuple(found), () if in_order else names)
    elif len(specs) == 1:
        call = Call(module, (dataclasses.replace(specs[0], name=specs[0].name or "input"),))
    else:
        spare = [*ordered, *(f"input_{i}" for i in range(len(ordered), len(specs)))]
        named = [
            dataclasses.replace(spec, name=spec.name or name)
            for spec, name in zip(specs, spare[: len(specs)], strict=True)
        ]
        call = Call(module, tuple(named))
    _check_fit(call)
    return call


def run_eagerly(call: Call, seed: int) -> dict[str, torch.Tensor]:
    """Call the module; give its tensors by the names that the graph's outputs will have.

    Raises: OptionError where `forward` fails with these inputs.
    """
    import torch

    try:
        with torch.no_grad():
            result = call(call.tensors(seed))
    except Exception as error:
        raise _forward_failed(call, error) from error
    outputs = dict(name_outputs(result))
    if not outputs:
        raise OptionError("`forward` gives no tensor", where=type(call.module).__name__)
    taken = {spec.name for spec in call.inputs}
    return {f"{name}_out" if name in taken else name: value for name, value in outputs.items()}


def flat_module(call: Call, result: object) -> torch.nn.Module:
    """Return a module of positional tensors → tensors; the user's own one where it is that already.

    PyTorch's exporters take neither keyword-only parameters nor every nested output.
    """
    import torch

    rows = result if isinstance(result, (tuple, list)) else (result,)
    if not call.keywords and all(isinstance(row, torch.Tensor) for row in rows):
        return call.module

    class Flat(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.module = call.module

        def forward(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
            return tuple(tensor for _, tensor in name_outputs(call(tensors)))

    return Flat().eval()


def name_outputs(result: object, prefix: str = "") -> Iterator[tuple[str, torch.Tensor]]:
    """Walk what `forward` gave: tensors, sequences, mappings, dataclasses, in any depth.

    Raises: OptionError for anything else: a graph can only give tensors.
    """
    import torch

    if result is None:
        return
    if isinstance(result, torch.Tensor):
        yield prefix or "output", result
        return
    if isinstance(result, Mapping):
        rows = [(str(key), value) for key, value in result.items()]
    elif dataclasses.is_dataclass(result):
        rows = [(f.name, getattr(result, f.name)) for f in dataclasses.fields(result)]
    elif isinstance(result, (tuple, list)):
        single = len(result) == 1
        base = prefix or "output"
        for index, value in enumerate(result):
            yield from name_outputs(value, base if single else f"{base}_{index}")
        return
    else:
        raise OptionError(
            f"`forward` gives `{type(result).__name__}`, and a graph can only give tensors",
            hint="return tensors, or sequences, dictionaries or dataclasses of tensors",
        )
    for key, value in rows:
        yield from name_outputs(value, f"{prefix}_{key}" if prefix else key)


def _parameters(module: torch.nn.Module) -> Mapping[str, inspect.Parameter]:
    """Return the parameters of `forward`; none where it has no signature to read (TorchScript)."""
    try:
        return inspect.signature(module.forward).parameters
    except (ValueError, TypeError):
        return {}


def _signature(module: torch.nn.Module) -> str:
    names = [str(p) for p in _parameters(module).values()]
    return f"forward({', '.join(names)})"


def _check_fit(call: Call) -> None:
    parameters = _parameters(call.module)
    if not parameters:
        return
    keywords = dict.fromkeys(call.keywords)
    positions = () if keywords else call.inputs
    try:
        inspect.Signature(list(parameters.values())).bind(*positions, **keywords)
    except TypeError as error:
        required = [
            name
            for name, p in parameters.items()
            if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
        ]
        if len(required) == 1 and len(call.inputs) > 1:
            raise _takes_dictionary(call) from error
        wanted = " ".join(f"--input {name}:SHAPE" for name in required)
        raise OptionError(
            f"the inputs do not fit `{_signature(call.module)}`: {error}",
            where=type(call.module).__name__,
            hint=f"give each by the name of its parameter: `{wanted}`",
        ) from error


def _forward_failed(call: Call, error: Exception) -> OptionError:
    lone = len(_parameters(call.module)) == 1 and len(call.inputs) == 1
    if lone and call.inputs[0].name != "input" and _works_with_dictionary(call):
        return _takes_dictionary(call)
    inputs = " ".join(str(spec) for spec in call.inputs)
    lines = str(error).splitlines()
    return OptionError(
        f"`forward` fails with these inputs ({inputs}): {type(error).__name__}: "
        f"{lines[0] if lines else ''}",
        where=type(call.module).__name__,
        hint=f"check shapes and types against `{_signature(call.module)}`",
    )


def _works_with_dictionary(call: Call) -> bool:
    import torch

    names = [spec.name for spec in call.inputs]
    try:
        with torch.no_grad():
            call.module(dict(zip(names, call.tensors(0), strict=True)))
    except Exception:  # whatever the user's code raises: it does not take a dictionary
        return False
    return True


def _takes_dictionary(call: Call) -> OptionError:
    names = [spec.name for spec in call.inputs]
    passed = ", ".join(f'"{name}": {name}' for name in names)
    return OptionError(
        f"`{_signature(call.module)}` takes one thing, it seems a dictionary, and a graph takes "
        "tensors: `torch.onnx.export` ends in a type error when its inputs are a dictionary",
        where=type(call.module).__name__,
        hint="export a module around it: "
        f"`def forward(self, {', '.join(names)}): return self.model({{{passed}}})`",
    )
