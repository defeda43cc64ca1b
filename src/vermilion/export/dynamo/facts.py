"""What a graph of `torch.compile` does, found by running it on tensors that have no numbers.

Compiled code computes outputs from inputs and does nothing else: a graph that writes into what it
is given, that draws random numbers, or whose outputs gradients are wanted of, is not for it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from vermilion.errors import Refusal, first_line

if TYPE_CHECKING:
    import torch

DATA_TYPES = (
    "float32", "float64", "float16", "bfloat16",
    "int64", "int32", "int16", "int8", "uint8", "bool",
)  # fmt: skip
"""Of inputs and outputs, by PyTorch's names."""

_EVALUATE = "call `model.eval()` before compiling for inference"
_RETURN = "return the new tensor instead of writing into the one that was given"

# What dynamo puts into the name of an input that is a module's buffer.
_BUFFER = "_buffers_"


@dataclass(frozen=True)
class GraphFacts:
    """The outputs of a graph: which of them it computes, and their data types.

    `places` has a row an output: which of the computed ones it is, or -1. Those are views of
    inputs, numbers or None, which cost PyTorch nothing.
    """

    places: tuple[int, ...]
    computed: tuple[int, ...]  # positions among all outputs
    data_types: tuple[str, ...]  # of the computed ones

    @property
    def others(self) -> tuple[int, ...]:
        """The positions of the outputs that PyTorch makes."""
        return tuple(number for number, place in enumerate(self.places) if place < 0)


def graph_facts(module: torch.fx.GraphModule, arguments: Sequence[Any]) -> GraphFacts | Refusal:
    """Look at a graph with these arguments; refuse what cannot be compiled for inference."""
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode

    for name, argument in zip(input_names(module), arguments, strict=True):
        if isinstance(argument, torch.Tensor) and (unlike := _unlike(argument, name)):
            return unlike
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    grad = torch.set_grad_enabled(torch.is_grad_enabled())  # leaving inference mode puts them on
    with torch.inference_mode(False), grad, mode:
        fakes = [
            mode.from_tensor(argument) if isinstance(argument, torch.Tensor) else argument
            for argument in arguments
        ]
        watch = _watch(dict(zip(input_names(module), fakes, strict=True)))
        try:
            with watch:
                outputs = list(module(*fakes))
        except Exception as error:  # operators raise what they like
            return Refusal(f"PyTorch cannot run it without numbers: {first_line(error)}")
    refusal: Refusal | None = watch.refusal
    if refusal is not None:
        return refusal
    return _outputs_of(outputs, watch.storages)


def input_names(module: torch.fx.GraphModule) -> tuple[str, ...]:
    """Return the names of a graph's inputs, as its code has them."""
    return tuple(str(node.target) for node in module.graph.nodes if node.op == "placeholder")


def _unlike(tensor: torch.Tensor, name: str) -> Refusal | None:
    """Return why a tensor cannot be handed over, None if it can."""
    import torch
    from torch.utils._python_dispatch import is_traceable_wrapper_subclass

    if tensor.device.type != "cpu":
        return Refusal(f"`{name}` is on {tensor.device}", hint="move model and inputs to the CPU")
    if tensor.layout != torch.strided or is_traceable_wrapper_subclass(tensor):
        return Refusal(f"`{name}` is not an ordinary tensor: {tensor.layout}, {type(tensor)}")
    if (kind := type_name(tensor.dtype)) not in DATA_TYPES:
        return Refusal(f"`{name}` is {kind}", hint=f"taken are {', '.join(DATA_TYPES)}")
    return None


def type_name(dtype: torch.dtype) -> str:
    """Return PyTorch's name of a data type, without its module."""
    return str(dtype).removeprefix("torch.")


def _outputs_of(outputs: Sequence[Any], given: frozenset[int]) -> GraphFacts | Refusal:
    import torch

    computed: list[int] = []
    places = []
    for number, output in enumerate(outputs):
        if not isinstance(output, torch.Tensor) or _storage(output) in given:
            places.append(-1)
            continue
        same = [place for place, other in enumerate(computed) if outputs[other] is output]
        places.append(same[0] if same else len(computed))
        computed += [] if same else [number]
    for number in computed:
        output = outputs[number]
        if output.requires_grad:
            return Refusal(
                "gradients are wanted of its outputs",
                hint="call it inside `torch.inference_mode()` or `torch.no_grad()`",
            )
        if (refusal := _unlike(output, f"output {number}")) is not None:
            return refusal
    kinds = tuple(type_name(outputs[number].dtype) for number in computed)
    return GraphFacts(tuple(places), tuple(computed), kinds)


def _storage(tensor: torch.Tensor) -> int:
    """Return what is the same for all views of the same memory."""
    number: int = tensor.untyped_storage()._cdata
    return number


def _watch(inputs: Mapping[str, Any]) -> Any:
    """Return a mode that sees every operator of a run, and keeps the first that is refused."""
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode

    names = {_storage(t): name for name, t in inputs.items() if isinstance(t, torch.Tensor)}

    class Watch(TorchDispatchMode):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.refusal: Refusal | None = None
            self.storages = frozenset(names)

        def __torch_dispatch__(
            self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
        ) -> Any:
            bound = _bound(func, args, kwargs or {})
            for written in _written(func, bound):
                name = names.get(_storage(written))
                if name is not None and self.refusal is None:
                    hint = _EVALUATE if _BUFFER in name else _RETURN
                    self.refusal = Refusal(f"it writes into `{name}`", hint=hint)
            if _draws(func, bound) and self.refusal is None:
                self.refusal = Refusal(f"it draws random numbers: {func}", hint=_EVALUATE)
            return func(*args, **(kwargs or {}))

    return Watch()


def _bound(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of an operator by their names."""
    names = [argument.name for argument in func._schema.arguments]
    return {**dict(zip(names, args, strict=False)), **kwargs}


def _written(func: Any, bound: Mapping[str, Any]) -> list[torch.Tensor]:
    """Return the tensors that an operator writes into."""
    import torch

    found = []
    for argument in func._schema.arguments:
        if argument.alias_info is not None and argument.alias_info.is_write:
            value = bound.get(argument.name)
            values = value if isinstance(value, list | tuple) else [value]
            found += [one for one in values if isinstance(one, torch.Tensor)]
    return found


# Arguments that say that an operator with a random form is in the other one.
_CALM: Mapping[str, tuple[Any, ...]] = {"dropout_p": (0, 0.0), "p": (0, 0.0), "train": (False,)}


def _draws(func: Any, bound: Mapping[str, Any]) -> bool:
    """Say whether an operator's result depends on random numbers."""
    import torch

    if torch.Tag.nondeterministic_seeded not in func.tags:
        return False
    defaults = {a.name: a.default_value for a in func._schema.arguments if a.has_default_value()}
    said = {**defaults, **bound}
    return not any(name in said and said[name] in calm for name, calm in _CALM.items())
