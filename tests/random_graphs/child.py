"""A process that tries graphs, one after the other, and notes each step before it takes it.

`python -m random_graphs.child PLAN RESULTS`: PLAN is a JSON list of `{seed, format}`; RESULTS gets
a line of JSON for each step, so that after a crash the last line says which graph it was, and
where.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from random_graphs.growth import grow
from random_graphs.trial import try_graph, way_of


def carry_out(plan: Path, results: Path) -> None:
    with results.open("a", encoding="utf-8", buffering=1) as file:
        for case in json.loads(plan.read_text(encoding="utf-8")):
            seed, number_format = int(case["seed"]), str(case["format"])

            def stage(name: str, seed: int = seed, number_format: str = number_format) -> None:
                file.write(json.dumps({"seed": seed, "format": number_format, "at": name}) + "\n")

            stage("grow")
            graph = grow(seed, number_format)
            outcome = try_graph(graph, way_of(seed, number_format), stage).as_json()
            row = {"seed": seed, "format": number_format, "outcome": outcome}
            row["grown"] = [node.op_type for node in graph.model.graph.node]
            file.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    carry_out(Path(sys.argv[1]), Path(sys.argv[2]))
