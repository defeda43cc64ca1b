"""The digest of a graph of `torch.compile`: two of the same compute the same, in any process."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from vermilion.export.dynamo.open_sizes import NOTHING_OPEN, OpenSizes
from vermilion.store.digest import Hash, digest_of, put
from vermilion.version import code_digest

if TYPE_CHECKING:
    import torch

_FORM = "graphs of torch.compile 2"  # part of the digest: entries of an earlier form are others


def graph_digest(
    module: torch.fx.GraphModule,
    arguments: Sequence[Any],
    constants: Collection[int],
    options: Mapping[str, object],
    sizes: OpenSizes = NOTHING_OPEN,
) -> str:
    """Return a digest of all that a compiled graph depends on; empty where that is not known.

    In it: the graph's code, every number of it and of `constants` (positions of arguments), sizes
    (names where they are open) and data types of the other arguments, the state of PyTorch that
    changes what operators do, the versions of both packages.
    """
    import torch

    state = hashlib.sha256()
    put(state, _FORM, torch.__version__, code_digest(), sorted(options.items()))
    put(state, torch.is_grad_enabled(), torch.get_default_dtype())
    put(state, torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu"))
    if not _put_graph(state, module):
        return ""
    for position, argument in enumerate(arguments):
        if position in sizes.numbers:
            put(state, position, sizes.numbers[position])
            continue
        if not isinstance(argument, torch.Tensor):
            put(state, position, argument)
            continue
        shape = sizes.of(position, argument.shape)
        put(state, position, argument.dtype, shape, argument.requires_grad)
        if position in constants:
            _put_numbers(state, argument)
    return state.hexdigest()


def _put_graph(state: Hash, module: torch.fx.GraphModule) -> bool:
    """Take a graph with all it holds; False where it calls what has no code to compare."""
    import torch

    put(state, module.code)
    for node in module.graph.nodes:
        if node.op not in ("get_attr", "call_module"):
            continue
        held: Any = module
        for part in str(node.target).split("."):
            held = getattr(held, part)
        put(state, node.target)
        if isinstance(held, torch.Tensor):
            put(state, held.dtype, tuple(held.shape))
            _put_numbers(state, held)
        elif not (isinstance(held, torch.fx.GraphModule) and _put_graph(state, held)):
            return False
    return True


def _put_numbers(state: Hash, tensor: torch.Tensor) -> None:
    import torch

    flat = tensor.detach().contiguous().reshape(-1)
    numbers = flat.view(torch.uint8).numpy() if flat.numel() else b""
    put(state, digest_of(memoryview(numbers)))
