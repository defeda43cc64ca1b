"""The model that a provider writes around its compiled programs: what it was made for.

Source: ONNX Runtime, "EP Context Design" (the operator's attributes).
"""

from __future__ import annotations

from pathlib import Path

import onnx

from vermilion.backends.migraphx.found import Stack
from vermilion.errors import ArtifactError

_AGAIN = "compile the model again on this machine"


def check_context(file: Path, stack: Stack) -> None:
    """Refuse a context for another GPU, or one that leads out of its folder.

    Raises: ArtifactError.
    """
    try:
        nodes = onnx.load(file, load_external_data=False).graph.node
    except Exception as error:  # protobuf's exceptions share no base but Exception
        raise ArtifactError(
            f"the provider's context cannot be read: {error}", hint=_AGAIN
        ) from error
    contexts = [node for node in nodes if node.op_type == "EPContext"]
    if not contexts:
        raise ArtifactError("the provider's context holds no compiled program", hint=_AGAIN)
    for node in contexts:
        said = {a.name: a.s.decode("utf-8", "replace") for a in node.attribute if a.s}
        _check_path(said.get("ep_cache_context", ""), node)
        made_for = said.get("hardware_architecture", "").partition(":")[0]
        if made_for and made_for != stack.gfx:
            raise ArtifactError(
                f"the program was compiled for {made_for}, and this GPU is {stack.gfx}", hint=_AGAIN
            )


def _check_path(named: str, node: onnx.NodeProto) -> None:
    """Refuse a program outside of the folder; an embedded one is no path."""
    embedded = any(a.name == "embed_mode" and a.i == 1 for a in node.attribute)
    path = Path(named.replace("\\", "/"))
    if not embedded and (path.is_absolute() or ".." in path.parts or ":" in named):
        raise ArtifactError(f"the provider's context names `{named}`, outside of it", hint=_AGAIN)
