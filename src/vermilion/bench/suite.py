"""The suite: ResNet-50 and BERT-base at the sizes that tables of accelerators are made of.

Cases run one after the other, each is written to a file as soon as it is measured, and a suite
that was stopped goes on where it was. All forms of the result are made from that one object.
"""

from __future__ import annotations

import hashlib
import json
import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import onnx_ir as ir
import onnxruntime as ort

from vermilion.bench.engines import OURS
from vermilion.bench.figures import pair_ratios, ratio
from vermilion.bench.harness import save_json
from vermilion.bench.machine import this_machine
from vermilion.bench.measure import Peaks, Plan, bench_graph
from vermilion.bench.networks import NETWORKS
from vermilion.bench.report import as_json, concerns
from vermilion.errors import OptionError, VermilionError
from vermilion.progress import Progress, no_progress
from vermilion.version import VERSION, code_digest

CASES_FOLDER = "cases"

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class SuiteCase:
    """One network at one size. `pairs` is how many turns each engine has."""

    network: str
    batch: int
    sequence: int | None
    pairs: int

    @property
    def name(self) -> str:
        """The name that its file has and that people read."""
        sequence = "" if self.sequence is None else f"-s{self.sequence}"
        return f"{self.network}{sequence}-b{self.batch}"


# Turns: enough that a change of a few per cent shows, and few enough that all of it takes less than
# a quarter of an hour on two cores. Six against six are the fewest that can prove a change at the
# level of `regress.SIGNIFICANT`.
SUITE: tuple[SuiteCase, ...] = (
    SuiteCase("resnet50", 1, None, 20),
    SuiteCase("resnet50", 8, None, 8),
    SuiteCase("resnet50", 16, None, 6),
    SuiteCase("resnet50", 32, None, 6),
    SuiteCase("resnet50", 64, None, 6),
    SuiteCase("bert_base", 1, 128, 12),
    SuiteCase("bert_base", 8, 128, 6),
    SuiteCase("bert_base", 1, 384, 8),
    SuiteCase("bert_base", 8, 384, 6),
    SuiteCase("bert_base", 1, 512, 8),
    SuiteCase("bert_base", 8, 512, 6),
)


@dataclass(frozen=True)
class SuiteResult:
    """The suite as one object with the keys of `bench --json`, and what went wrong in it."""

    data: Mapping[str, Any]
    concerns: tuple[str, ...]
    kept: int  # cases of an earlier run, not measured again
    failed: tuple[str, ...]


def chosen_cases(words: Sequence[str], cases: Sequence[SuiteCase] = SUITE) -> list[SuiteCase]:
    """Return the cases of the networks or names in `words`, all where there are none.

    Raises: OptionError for a word that is neither.
    """
    for word in words:
        if not any(word in (case.network, case.name) for case in cases):
            known = ", ".join([*dict.fromkeys(c.network for c in cases), *(c.name for c in cases)])
            raise OptionError(f"the suite has no case `{word}`", hint=f"it has {known}")
    return [case for case in cases if not words or {case.network, case.name} & set(words)]


def run_suite(
    cases: Sequence[SuiteCase],
    plan: Plan,
    folder: Path,
    *,
    networks: Mapping[str, Callable[[], ir.Model]] = NETWORKS,
    progress: Progress = no_progress,
) -> SuiteResult:
    """Measure the cases, or take from `folder` what was measured there in the same way.

    `plan` gives peers, precision and threads; sizes and turns are the cases' own. A case that fails
    is part of the result, and is tried again by the next run.
    """
    store = folder / CASES_FOLDER
    store.mkdir(parents=True, exist_ok=True)
    peaks: Peaks = {}
    built = _Networks(networks)
    found: list[Mapping[str, Any]] = []
    failed: list[str] = []
    kept = 0
    for number, case in enumerate(cases):
        progress("suite", number, len(cases))
        file, mark = store / f"{case.name}.json", _fingerprint(case, plan)
        known = _stored(file, mark)
        if known is not None:
            _log.info("%s: measured before", case.name)
            found.append(known)
            kept += 1
            continue
        begin = time.monotonic()
        try:
            measured = _measure(case, plan, built, peaks, progress)
        except VermilionError as error:
            failed.append(f"{case.name}: {error.message}" + (f" ({error.hint})" * bool(error.hint)))
            continue
        _log.info("%s: %.0f s", case.name, time.monotonic() - begin)
        save_json(file, {"fingerprint": mark, **measured})
        found.append(measured)
    progress("suite", len(cases), len(cases))
    told = tuple(words for one in found for words in one["concerns"])
    return SuiteResult(_joined(cases, found), told, kept, tuple(failed))


class _Networks:
    """The network that was asked for last: the larger takes half a gigabyte."""

    def __init__(self, builders: Mapping[str, Callable[[], ir.Model]]) -> None:
        self._builders = builders
        self._name, self._model = "", ir.Model(ir.Graph([], [], nodes=[]), ir_version=8)

    def get(self, name: str) -> ir.Model:
        if name != self._name:
            self._name, self._model = name, self._builders[name]()
        return self._model


def _measure(
    case: SuiteCase, plan: Plan, networks: _Networks, peaks: Peaks, progress: Progress
) -> Mapping[str, Any]:
    sizes = replace(plan, batches=(case.batch,), sequences=(case.sequence,), pairs=case.pairs)
    model = networks.get(case.network)
    found = list(bench_graph(Path(case.network), model, sizes, peaks=peaks, progress=progress))
    told = [case.name + words.removeprefix(case.network) for words in concerns(found)]
    when = datetime.now(UTC).isoformat(timespec="seconds")
    return {**as_json(found), "measured_at": when, "concerns": told}


def _fingerprint(case: SuiteCase, plan: Plan) -> str:
    """Return what has to be the same for an earlier measurement to count as this one."""
    facts = {
        "case": asdict(case),
        "machine": this_machine().as_json(),
        "code": code_digest(),
        "onnxruntime": ort.__version__,
        "against": plan.against,
        "precision": plan.precision,
        "threads": plan.threads,
    }
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


def _stored(file: Path, fingerprint: str) -> Mapping[str, Any] | None:
    """Read a case that was measured in the same way; anything else is measured again."""
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    if not isinstance(found, dict) or found.get("fingerprint") != fingerprint:
        return None
    return found


def _joined(cases: Sequence[SuiteCase], found: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    rows = [row for one in found for row in one["results"]]
    return {
        "suite": {
            "version": VERSION,
            "cases": [asdict(case) for case in cases],
            "measured_at": [one["measured_at"] for one in found if "measured_at" in one],
        },
        "machine": this_machine().as_json(),
        "results": rows,
        "cases": [row for one in found for row in one["cases"]],
        "ratios": {
            peer: ratio(values).as_json() for peer, values in _pooled(rows).items() if values
        },
    }


def _pooled(rows: Sequence[Mapping[str, Any]]) -> Mapping[str, list[float]]:
    pairs: dict[str, list[float]] = {}
    for ours, peers in beside_ours(rows):
        for peer in peers:
            values = pair_ratios(ours["turn_ms"], peer["turn_ms"])
            pairs.setdefault(peer_label(peer, ours["precision"]), []).extend(values)
    return pairs


def peer_label(row: Mapping[str, Any], our_precision: str) -> str:
    """Return `ort` for a peer at our own precision, `ort@fp32` for one at another."""
    name, precision = str(row["engine"]), row["precision"]
    return name if precision == our_precision else f"{name}@{precision}"


def beside_ours(
    rows: Sequence[Mapping[str, Any]],
) -> Iterator[tuple[Mapping[str, Any], list[Mapping[str, Any]]]]:
    """Yield each measured row of ours with the measured rows of its peers at the same size."""
    keys = ("model", "batch", "sequence", "threads")
    for ours in rows:
        if ours["engine"] != OURS or "turn_ms" not in ours:
            continue
        same = [row for row in rows if all(row[key] == ours[key] for key in keys)]
        yield ours, [row for row in same if row["engine"] != OURS and "turn_ms" in row]
