"""The path from what was given to the page's data: open → rows → folds → places → overlays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import onnx_ir as ir

from vermilion.backends import backend
from vermilion.codegen.isa import isa_of
from vermilion.errors import OptionError
from vermilion.hardware.targets.find import find_target
from vermilion.ir.passes.bind_dimensions import Dimensions
from vermilion.ir.passes.infer_shapes import infer_shapes
from vermilion.ir.passes.rewrite import Notes
from vermilion.partition.place import Plan, known_of, plan
from vermilion.progress import Progress, no_progress
from vermilion.version import VERSION
from vermilion.view.differ import Difference, as_rows, difference
from vermilion.view.fold import folds_of
from vermilion.view.graph import Graph, Node, graph_of, shorter
from vermilion.view.measured import (
    errors_by_node,
    errors_of,
    profiles_of,
    steps_of_nodes,
    traces_of,
)
from vermilion.view.opened import Opened, facts_of, open_model
from vermilion.view.overlay import Saved, is_saved, model_of, read_saved, rows_of
from vermilion.view.places import (
    Places,
    compiled_row,
    placed_by_rule,
    saved_rows,
    targets_shown,
)

Found = dict[str, Any]
# Parts of a larger program are not lowered for the page: that takes as long as compiling does.
_MOST_LOWERED = 1500


@dataclass
class View:
    """The page's data, and what is said of it on the terminal."""

    data: Found
    changes: Difference | None = None


def build_view(
    things: Sequence[Path],
    *,
    dims: Dimensions | None = None,
    target: str = "",
    dump: Path | None = None,
    saved: Sequence[Saved] = (),
    progress: Progress = no_progress,
) -> View:
    """Look at one model or two, with saved results of other verbs beside them.

    Args:
        things: model files, bundles, folders of language models; and saved results as files.
        dims: values for symbolic dimensions.
        target: the target that the page shows first.
        dump: the folder of `compile --dump`, for assembly.
        saved: results that come from no file.
        progress: told of each step.

    Raises: VermilionError of the kind that says who can fix it.
    """
    results = [*saved, *(read_saved(path) for path in things if is_saved(path))]
    paths = [path for path in things if not is_saved(path)]
    if not paths:
        named = [path for path in map(model_of, results) if path is not None]
        paths = named[:1]
    if len(paths) > 2:
        raise OptionError(
            f"{len(paths)} models are too many for one page",
            where=", ".join(map(str, paths)),
            hint="give one, or two to compare; saved results (`--json`) may be as many as you like",
        )
    progress("open", 0, len(paths))
    opened = []
    for number, path in enumerate(paths):
        opened.append(open_model(path, dims or {}, progress))
        progress("open", number + 1, len(paths))
    builder = _Builder(opened, results, target, progress)
    view = builder.two() if len(opened) == 2 else builder.one()
    if dump is not None:
        _add_dump(view.data, dump)
    return view


def _add_dump(data: Found, dump: Path) -> None:
    """Put in the assembly of each kernel. Raises: OptionError where there is none."""
    from vermilion.view.kernels import add_assembly

    if not data["kernels"]:
        raise OptionError(
            "the page shows no kernels that a dump could be of",
            where=f"--dump {dump}",
            hint="leave `--dump` out, or give one model that is compiled for a CPU, of "
            f"{_MOST_LOWERED:,} nodes at most",
        )
    if not add_assembly(data["kernels"], dump):
        raise OptionError(
            "the dump has no kernel of this model",
            where=str(dump),
            hint="write it with `vermilion compile MODEL --dump DIR`",
        )


class _Builder:
    """Fills the data of a page."""

    def __init__(
        self, opened: Sequence[Opened], results: Sequence[Saved], target: str, progress: Progress
    ) -> None:
        self._opened = opened
        self._results = results
        self._target = target
        self._progress = progress
        self._cpu_plan: Plan | None = None
        now = datetime.now(UTC)
        notes = [note for one in opened for note in (*one.notes, *_report_notes(one))]
        self._data: Found = {
            "version": VERSION, "date": f"{now:%Y-%m-%d %H:%M} UTC", "models": [], "target": 0,
            "title": "", "sub": "", "about": [], "notes": notes, "passes": [], "gone": [],
            "made": [], "profiles": [], "errors": [], "parts": [], "kernels": {},
            "kernel_of": None, "diff": None, "cpu_ms": None,
        }  # fmt: skip

    def one(self) -> View:
        """Show one model as it is placed, or results alone."""
        data = self._data
        if not self._opened:
            self._results_alone()
            return View(data)
        opened = self._opened[0]
        graph = graph_of(opened.simplified.model)
        data["title"] = opened.label
        data["models"] = [self._model(opened, graph)]
        self._history(opened, graph)
        self._lowered(opened, graph)
        self._overlays(graph)
        return View(data)

    def two(self) -> View:
        """Show two models as their files have them, and what differs."""
        data = self._data
        a, b = self._opened
        self._progress("compare", 0, 1)
        found = difference(a.source, b.source)
        graphs = [graph_of(_with_shapes(one.source)) for one in self._opened]
        data["title"] = f"{a.label} and {b.label}"
        data["models"] = [
            self._model(one, graph) for one, graph in zip(self._opened, graphs, strict=True)
        ]
        data["diff"] = as_rows(found, (a.source, b.source))
        data["sub"] = (
            f"A: {a.path} · B: {b.path} · {len(found.changes)} differences, "
            f"{len(found.pairs)} nodes match"
        )
        self._overlays(graphs[0])
        self._progress("compare", 1, 1)
        return View(data, changes=found)

    def _model(self, opened: Opened, graph: Graph) -> Found:
        places = Places(graph)
        rows = [] if opened.report is None else [compiled_row(opened, places)]
        model = opened.simplified.model
        known = known_of(model)
        by_rule, plans = placed_by_rule(model, known, targets_shown(), places, self._progress)
        rows += by_rule
        rows += saved_rows(self._results, places)
        self._choose(rows)
        if opened is self._opened[0] and opened.reader is None:
            self._cpu_plan = plans.get(find_target("cpu").name)
        facts = facts_of(opened, known.cost)
        self._data["sub"] = self._data["sub"] or " · ".join(
            f"opset {value}" if what == "opset" else value
            for what, value, _ in facts
            if what in ("model", "numbers", "opset", "weights")
        )
        return {
            "label": opened.label, "graph": graph.as_json(), "folds": folds_of(graph).as_json(),
            "facts": facts, "targets": rows, "places": places.rows,
        }  # fmt: skip

    def _choose(self, rows: Sequence[Mapping[str, Any]]) -> None:
        wanted = find_target(self._target).name if self._target else ""
        if wanted:
            names = [row["name"] for row in rows]
            if wanted not in names:
                raise OptionError(
                    f"`{self._target}` is not among the targets of the page",
                    where="--target",
                    hint=f"it is one of {', '.join(names)}",
                )
            self._data["target"] = names.index(wanted)

    def _history(self, opened: Opened, graph: Graph) -> None:
        """Say what the passes did: which nodes of the file are gone, which are new."""
        data = self._data
        data["passes"] = [
            {"name": step.name, "fired": step.fired,
             "refusals": [[shorter(where), r.reason, r.hint] for where, r in step.refusals[:500]]}
            for step in opened.simplified.steps
        ]  # fmt: skip
        if opened.report is not None:
            data["passes"] = [
                {"name": str(row.get("name")), "fired": row.get("fired", 0),
                 "refusals": [[str(r.get("where")), str(r.get("reason")), str(r.get("hint"))]
                              for r in rows_of(row.get("refusals"))[:500]]}
                for row in opened.report.passes
            ]  # fmt: skip
            return
        outputs = {graph.tensors[t].name for node in graph.nodes for t in node.outputs}
        names = {node.name for node in graph.nodes}
        file = [node for node in opened.source.graph if node.op_type != "Constant"]
        # A node without a name is told by what it makes.
        data["gone"] = [
            [node.op_type, shorter(node.name or "")]
            for node in file
            if shorter(node.name or "") not in names
            and (node.name or not any(shorter(v.name or "") in outputs for v in node.outputs))
        ]
        known = {shorter(node.name or "") for node in file}
        made_by_file = {shorter(value.name or "") for node in file for value in node.outputs}
        data["made"] = [
            number
            for number, node in enumerate(graph.nodes)
            if node.name not in known
            and (node.name or not any(graph.tensors[t].name in made_by_file for t in node.outputs))
        ]

    def _lowered(self, opened: Opened, graph: Graph) -> None:
        """Say which kernels the parts on a processor become."""
        found = self._cpu_plan
        bf16, winograd = False, True
        if opened.reader is not None:
            manifest = opened.reader.manifest
            target = find_target(manifest.target)
            native = {part.name for part in manifest.parts if part.backend == "native"}
            if target.kind != "cpu" or not native:
                return
            # Its own target may have instructions that this machine has not.
            model = opened.simplified.model
            found = plan(model, target, backend("native"), backend("ort"))
            bf16 = manifest.options.get("precision") == "bf16"
            winograd = manifest.options.get("winograd") != "False"
        data = self._data
        if found is None:
            return
        if len(graph.nodes) > _MOST_LOWERED:
            data["notes"].append(
                f"kernels are shown of models of up to {_MOST_LOWERED:,} nodes; "
                f"this one has {len(graph.nodes):,}"
            )
            return
        # What lowers is loaded where something is lowered: that takes half a second.
        from vermilion.view.kernels import Programs

        programs, isa = Programs(), isa_of(found.target)
        for part in found.device_parts():
            if part.backend == "native":
                programs.add(part.name, part.model, isa, is_bf16=bf16, winograd=winograd)
        data["parts"], data["kernels"] = programs.parts, programs.kernels
        data["kernel_of"] = programs.of_nodes(graph) if programs.parts else None
        data["notes"] += programs.notes

    def _overlays(self, graph: Graph | None) -> None:
        """Put in what other verbs found out."""
        data = self._data
        for saved in self._results:
            if saved.kind == "bench":
                data["profiles"] += profiles_of(saved)
            elif saved.kind == "trace":
                _add_traces(data["profiles"], traces_of(saved))
            elif saved.kind == "inspect":
                value = saved.data.get("cpu_ms")
                data["cpu_ms"] = value if isinstance(value, int | float) else data["cpu_ms"]
        data["errors"] = errors_of(self._results)
        if graph is None:
            return
        for profile in data["profiles"]:
            _on_nodes(profile, graph)
        for one in data["errors"]:
            one["by_node"] = errors_by_node(graph, one["layers"])

    def _results_alone(self) -> None:
        """Show results whose model is not here: places as rows, the rest as tabs."""
        data = self._data
        if not self._results:
            raise OptionError("there is nothing to show", hint="give a model or a saved result")
        first = self._results[0]
        data["title"] = first.path.name
        data["sub"] = f"saved by `vermilion {first.kind}`; the model itself is not here"
        data["about"] = [[one.path.name, f"`vermilion {one.kind} --json`"] for one in self._results]
        placed = next((one for one in self._results if rows_of(one.data.get("nodes"))), None)
        graph = None
        if placed is not None:
            graph = _graph_of_rows(rows_of(placed.data.get("nodes")))
            places = Places(graph)
            named = str(placed.data.get("model") or placed.data.get("artifact") or first.path.name)
            data["title"] = Path(named).name
            data["models"] = [
                {"label": named, "graph": graph.as_json(), "folds": folds_of(graph).as_json(),
                 "facts": [["saved result", placed.path.name, ""]],
                 "targets": saved_rows(self._results, places), "places": places.rows}
            ]  # fmt: skip
        self._overlays(graph)
        self._progress("read", 1, 1)


def _with_shapes(model: ir.Model) -> ir.Model:
    """Return a copy whose results have shapes as far as they follow; nodes keep their order."""
    copy = model.clone()
    infer_shapes(copy, Notes())
    return copy


def _report_notes(opened: Opened) -> Sequence[str]:
    return opened.report.notes if opened.report is not None else ()


def _graph_of_rows(rows: Sequence[Mapping[str, Any]]) -> Graph:
    """Return a graph without edges of nodes that a result lists."""
    nodes = [
        Node(shorter(str(row.get("name") or "")), shorter(str(row.get("op_type") or "?")), "",
             [], [], operations=int(row.get("operations") or 0))
        for row in rows
    ]  # fmt: skip
    return Graph(nodes, [], [], [])


def _add_traces(profiles: list[Found], traces: Sequence[Mapping[str, Any]]) -> None:
    """Give each trace to the profile of its engine, or show it alone."""
    for trace in traces:
        mine = next(
            (p for p in profiles if not p.get("timeline") and p["engine"] in trace["engine"]), None
        )
        if mine is not None:
            mine["timeline"] = trace["timeline"]
        else:
            profiles.append({"steps": [], "run_ms": None, "roof": None, **trace})


def _on_nodes(profile: Found, graph: Graph) -> None:
    """Say which nodes each step of a profile computes."""
    found = steps_of_nodes(graph, [str(step["name"]) for step in profile["steps"]])
    members: list[list[int]] = [[] for _ in profile["steps"]]
    for number, step in enumerate(found):
        if step is not None:
            members[step].append(number)
    for step, inside in zip(profile["steps"], members, strict=True):
        step["members"] = max(1, len(inside))
    profile["of_node"], profile["members"] = found, members
