"""Which providers a script asks for, who runs the model then, and which nodes each was given."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from vermilion.runtime.session import PROVIDERS, Session

OURS = "VermilionExecutionProvider"
CPU = "CPUExecutionProvider"
# What runs where our compiled programs do; Azure's takes only nodes that name an endpoint.
_SAME_PLACE = (OURS, CPU, "AzureExecutionProvider")


@dataclass(frozen=True)
class Plan:
    """The providers that were asked for, with their options.

    `elsewhere` are those that ONNX Runtime has and that run on other devices than the CPU.
    """

    names: tuple[str, ...] = ()
    options: tuple[Mapping[str, str], ...] = ()
    elsewhere: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def of_onnxruntime(self) -> list[tuple[str, dict[str, str]]]:
        """What ONNX Runtime is opened with: it has no provider of our name."""
        pairs = zip(self.names, self.options, strict=True)
        return [(name, dict(options)) for name, options in pairs if name != OURS] or [(CPU, {})]


def plan_providers(
    providers: Sequence[Any] | None, provider_options: Sequence[Mapping[Any, Any]] | None
) -> Plan:
    """Read the arguments as ONNX Runtime does.

    Raises: ValueError for what it takes for wrong.
    """
    pairs = _pairs(providers, provider_options)
    if not pairs:
        return Plan()
    notes, kept = [], dict[str, Mapping[str, str]]()
    for name, options in pairs:
        if name in kept:
            notes.append(f"provider `{name}` is named twice: the first counts")
            continue
        kept[name] = {str(key): str(value) for key, value in options.items()}
    if not kept.keys() <= set(_SAME_PLACE):
        from onnxruntime import get_available_providers

        known = get_available_providers()
        for name in [name for name in kept if name not in (*_SAME_PLACE, *known)]:
            notes.append(f"provider `{name}` is not available here: it is left out")
            del kept[name]
    notes += [
        f"option `{key}` of `{name}` does not apply: a compiled program has no such option"
        for name, options in kept.items()
        if name in _SAME_PLACE
        for key in options
    ]
    elsewhere = tuple(name for name in kept if name not in _SAME_PLACE)
    return Plan(tuple(kept), tuple(kept.values()), elsewhere, tuple(notes))


def _pairs(
    providers: Sequence[Any] | None, options: Sequence[Mapping[Any, Any]] | None
) -> list[tuple[str, Mapping[Any, Any]]]:
    if providers is None:
        return []
    if isinstance(providers, str) or not isinstance(providers, Sequence):
        raise ValueError("`providers` is a list of names, or of pairs of a name and its options")
    if options is None:
        return [_pair(one) for one in providers]
    if not isinstance(options, Sequence) or len(providers) != len(options):
        raise ValueError("`provider_options` is a list as long as `providers`")
    if not all(isinstance(one, str) for one in providers):
        raise ValueError("with `provider_options`, `providers` is a list of names")
    if not all(isinstance(one, Mapping) for one in options):
        raise ValueError("`provider_options` is a list of dictionaries")
    return list(zip(providers, options, strict=True))


def _pair(one: Any) -> tuple[str, Mapping[Any, Any]]:
    if isinstance(one, str):
        return one, {}
    if isinstance(one, tuple) and len(one) == 2:
        name, options = one
        if isinstance(name, str) and isinstance(options, Mapping):
            return name, options
    raise ValueError("a provider is a name, or a pair of a name and a dictionary")


def get_available_providers() -> list[str]:
    """Return ours before those of ONNX Runtime's build, in order of precedence."""
    import onnxruntime as ort

    # A plugin that is registered in this process is one of ONNX Runtime's, under the same name.
    return [OURS, *(name for name in ort.get_available_providers() if name != OURS)]


@dataclass(frozen=True)
class AssignedNode:
    """A node, with the fields of ONNX Runtime's `OrtEpAssignedNode`."""

    name: str
    domain: str
    op_type: str


@dataclass(frozen=True)
class AssignedSubgraph:
    """Nodes that one provider runs, as ONNX Runtime's `OrtEpAssignedSubgraph`."""

    ep_name: str
    nodes: tuple[AssignedNode, ...]

    def get_nodes(self) -> list[AssignedNode]:
        """Return the nodes."""
        return list(self.nodes)


def assigned_subgraphs(bundle: Session) -> list[AssignedSubgraph]:
    """Return the nodes of a bundle by what runs them, in order."""
    groups: dict[str, list[AssignedNode]] = {}
    for row in bundle.report().nodes:
        provider = PROVIDERS.get(str(row["backend"]), str(row["backend"]))
        name, op_type = str(row["name"]), str(row["op_type"])
        groups.setdefault(provider, []).append(
            AssignedNode(name, str(row.get("domain", "")), op_type)
        )
    return [AssignedSubgraph(name, tuple(nodes)) for name, nodes in groups.items()]
