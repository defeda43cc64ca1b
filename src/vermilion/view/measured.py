"""Measured things for the page: steps with their times, errors by layer, agreement of outputs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from vermilion.view.graph import Graph, shorter
from vermilion.view.overlay import Rows, Saved, number, rows_of, texts

Found = dict[str, object]


def profiles_of(saved: Saved) -> list[Found]:
    """Return each engine of each profile with its steps, slowest first."""
    found: list[Found] = []
    for case in rows_of(saved.data.get("profiles")):
        for engine in rows_of(case.get("engines")):
            name, precision, version = texts(engine, "engine", "precision", "version")
            found.append(
                {
                    "engine": shorter(f"{name}@{precision} {version}".strip()),
                    "model": shorter(str(case.get("model") or "")),
                    "batch": case.get("batch"),
                    "threads": case.get("threads"),
                    "run_ms": number(engine, "run_ms"),
                    "runs": engine.get("runs"),
                    "steps": _steps(rows_of(engine.get("by_step"))),
                    "timeline": [_event(row) for row in rows_of(engine.get("timeline"))],
                    "machine": _machine(case.get("machine")),
                    "date": shorter(str(case.get("date") or "")),
                    "roof": _roof(case.get("roof"), precision),
                }
            )
    return found


def _machine(row: object) -> str:
    if not isinstance(row, dict):
        return ""
    cpu, cores, system = texts(row, "cpu", "cores", "system")
    return shorter(f"{cpu}, {cores} cores, {system}")


def _roof(row: object, precision: str) -> Found | None:
    """Return the measured limits, where they are of the precision that an engine computed in."""
    if not isinstance(row, dict) or row.get("precision") != precision:
        return None
    gops, rate = number(row, "gops_per_s"), number(row, "gb_per_s")
    if not gops or not rate:
        return None
    return {
        "gops_per_s": gops,
        "gb_per_s": rate,
        "instruction": shorter(str(row.get("instruction"))),
    }


def _steps(rows: Sequence[Rows]) -> list[Found]:
    """Return the steps, slowest first."""
    found: list[Found] = []
    for row in rows:
        name, kind, device = map(shorter, texts(row, "name", "kind", "device"))
        found.append(
            {"name": name, "kind": kind, "device": device, "ms": number(row, "ms"),
             "share": number(row, "share"), "gops_per_s": number(row, "gops_per_s"),
             "count": number(row, "steps")}
        )  # fmt: skip
    return found


def _event(row: Rows) -> Found:
    name, kind, device = texts(row, "name", "kind", "device")
    return {
        "name": shorter(name), "kind": shorter(kind), "lane": shorter(device),
        "begin_us": number(row, "begin_us"), "us": number(row, "duration_us"),
    }  # fmt: skip


def traces_of(saved: Saved) -> list[Found]:
    """Return the runs of a trace, one for each process in it."""
    lanes: dict[tuple[object, object], str] = {}
    titles: dict[object, str] = {}
    events: dict[object, list[Found]] = {}
    for row in rows_of(saved.data.get("traceEvents")):
        about = row.get("args")
        label = about.get("name") if isinstance(about, dict) else None
        if row.get("ph") == "M" and row.get("name") == "process_name":
            titles[row.get("pid")] = shorter(str(label))
        elif row.get("ph") == "M" and row.get("name") == "thread_name":
            lanes[row.get("pid"), row.get("tid")] = shorter(str(label))
    for row in rows_of(saved.data.get("traceEvents")):
        begin, length = number(row, "ts"), number(row, "dur")
        if row.get("ph") == "X" and begin is not None and length is not None:
            name, kind = texts(row, "name", "cat")
            lane = lanes.get((row.get("pid"), row.get("tid")), f"thread {row.get('tid')}")
            events.setdefault(row.get("pid"), []).append(
                {"name": shorter(name), "kind": shorter(kind), "lane": lane,
                 "begin_us": begin, "us": length}
            )  # fmt: skip
    return [
        {"engine": titles.get(pid, f"process {pid}"), "timeline": found}
        for pid, found in events.items()
    ]


def steps_of_nodes(graph: Graph, names: Sequence[str]) -> list[int | None]:
    """Return for each node the step that computes it: by name, or the one that it was fused into.

    A step has the name of the last node that it computes; what has no step and one reader alone
    went into that reader's.
    """
    at = {name: number for number, name in reversed(list(enumerate(names))) if name}
    found = [at.get(node.name) for node in graph.nodes]
    readers = graph.readers()
    for position in reversed(range(len(graph.nodes))):
        outputs = graph.nodes[position].outputs
        mine = {r for tensor in outputs for r in readers.get(tensor, ())}
        if found[position] is None and len(mine) == 1:
            (reader,) = mine
            found[position] = found[reader] if reader > position else None
    return found


def errors_of(saved: Iterable[Saved]) -> list[Found]:
    """Return the errors by layer that files hold, each a source with rows."""
    found: list[Found] = []
    for one in saved:
        if one.kind not in ("quantize", "compare"):
            continue
        rows = [
            {"name": shorter(str(row.get("name") or "")),
             "op": shorter(str(row.get("op_type") or "")), "sqnr_db": number(row, "sqnr_db")}
            for row in rows_of(one.data.get("layers"))
        ]  # fmt: skip
        outputs = [
            {"name": shorter(str(row.get("name") or "")), "sqnr_db": number(row, "sqnr_db"),
             "cosine": number(row, "cosine"), "max_abs_error": number(row, "max_abs_error")}
            for row in rows_of(one.data.get("outputs"))
        ]  # fmt: skip
        words = {"quantize": "against the float model, on calibration samples",
                 "compare": "B against A, on the inputs of `compare`"}[one.kind]  # fmt: skip
        found.append({"from": one.path.name, "how": words, "layers": rows, "outputs": outputs,
                      "first": one.data.get("first_divergence"),
                      "sides": _sides(one.data), "ladder": _ladder(one.data)})  # fmt: skip
    return found


def _sides(data: Rows) -> list[Found]:
    found: list[Found] = []
    for side in rows_of(data.get("sides")):
        label, runs_on, placement = texts(side, "label", "runs_on", "placement")
        latency = side.get("latency_ms")
        times = latency if isinstance(latency, dict) else {}
        found.append(
            {"label": shorter(label), "runs_on": shorter(runs_on), "placement": placement[:400],
             "p50": number(times, "p50"), "min": number(times, "min"), "max": number(times, "max"),
             "modelled": bool(side.get("modelled"))}
        )  # fmt: skip
    return found


def _ladder(data: Rows) -> list[Mapping[str, object]]:
    keys = ("what", "sqnr_db", "drop", "bound", "eight_bit_share", "met")
    return [{key: row.get(key) for key in keys} for row in rows_of(data.get("ladder"))]


def errors_by_node(graph: Graph, layers: Sequence[Found]) -> list[float | None]:
    """Return the SQNR of each node, by its name or that of a tensor that it makes."""
    by_name = {str(row["name"]): row["sqnr_db"] for row in layers}
    found: list[float | None] = []
    for node in graph.nodes:
        names = [node.name, *(graph.tensors[tensor].name for tensor in node.outputs)]
        value = next((by_name[name] for name in names if name and name in by_name), None)
        found.append(value if isinstance(value, float) else None)
    return found
