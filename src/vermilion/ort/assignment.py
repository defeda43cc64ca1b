"""Which nodes run where, in the form in which ONNX Runtime tells it."""

from __future__ import annotations

from dataclasses import dataclass

from vermilion.runtime.session import PROVIDERS, Session


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
