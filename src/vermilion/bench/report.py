"""A bench as one JSON object, and the sentences that a reader should not miss."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from vermilion.bench.engines import OURS
from vermilion.bench.figures import ratio
from vermilion.bench.machine import this_machine
from vermilion.bench.measure import CaseResult, EngineResult
from vermilion.busy import disturbance
from vermilion.errors import Refusal


def as_json(found: Sequence[CaseResult]) -> dict[str, object]:
    """Return the keys of `bench --json`.

    `results` has a row for each engine and case, `cases` what belongs to a case as a whole, and
    `ratios` ours ÷ peer over the pairs of all cases. Units are in the names; a ratio below 1
    means that ours is faster.
    """
    return {
        "machine": this_machine().as_json(),
        "results": [_row(case, engine) for case in found for engine in case.engines],
        "cases": [_case_row(case) for case in found],
        "ratios": _pooled(found),
    }


def _pooled(found: Sequence[CaseResult]) -> dict[str, object]:
    pairs: dict[str, list[float]] = {}
    for case in found:
        for label, values in case.pairs.items():
            pairs.setdefault(_peer_key(case, label), []).extend(values)
    return {peer: ratio(values).as_json() for peer, values in pairs.items()}


def _peer_key(case: CaseResult, label: str) -> str:
    """Return `ort` for a peer at our own precision, `ort@fp32` for one at another."""
    name, _, precision = label.partition("@")
    return name if precision == case.ours.engine.precision else label


def _key(case: CaseResult) -> dict[str, object]:
    return {
        "model": case.case.label,
        "batch": case.case.batch,
        "sequence": case.case.sequence,
        "threads": case.case.threads,
    }


def _case_row(found: CaseResult) -> dict[str, object]:
    case, peak = found.case, found.peak
    best = found.best_peer
    return {
        **_key(found),
        "precision": case.precision,
        "gops": case.gops,
        "peak": None if isinstance(peak, Refusal) else peak.as_json(),
        "ratios": {_peer_key(found, k): r.as_json() for k, r in found.ratios.items()},
        "other_load": found.other_load,
        "best_peer": None if best is None else _peer_key(found, best),
    }


def _row(found: CaseResult, engine: EngineResult) -> dict[str, object]:
    row: dict[str, object] = {
        **_key(found),
        "engine": engine.engine.name,
        "precision": engine.engine.precision,
    }
    if engine.error is not None:
        error = engine.error
        return {
            **row,
            "error": {"message": error.message, "where": error.where, "hint": error.hint},
        }
    times, timed = engine.latency, engine.timed
    assert times is not None, "an engine without an error was timed"
    assert timed is not None, "an engine without an error was timed"
    achieved = _achieved(found, times.p50)
    return {
        **row,
        "version": engine.version,
        "runs_on": engine.runs_on,
        "placement": engine.placement,
        "latency_ms": times.as_json(),
        "runs": len(timed.run_ms),
        "throughput": (found.case.batch or 1) / times.p50 * 1e3,
        "gops_per_s": achieved,
        "peak_share": _share(found, engine, achieved),
        "peak_rss_mb": engine.peak_rss_mb,
        "compile_peak_rss_mb": engine.compile_peak_rss_mb,
        "import_s": engine.import_s,
        "load_s": engine.load_s,
        "compile_s": engine.compile_s,
        "first_run_ms": engine.first_run_ms,
        "file_bytes": engine.file_bytes,
        "outputs": [output.as_json() for output in engine.outputs],
        "agrees": engine.agrees,
        "quiet_after_ms": timed.quiet_after_ms,
        "turn_ms": list(timed.turn_ms),
    }


def _achieved(found: CaseResult, p50_ms: float) -> float | None:
    return None if found.case.gops is None else found.case.gops / p50_ms * 1e3


def _share(found: CaseResult, engine: EngineResult, achieved: float | None) -> float | None:
    """Return what part of the peak was reached; the peak is that of the case's own precision."""
    same = engine.engine.precision == found.case.precision
    if achieved is None or isinstance(found.peak, Refusal) or not same:
        return None
    return achieved / found.peak.gops_per_s


def concerns(found: Sequence[CaseResult]) -> Iterator[str]:
    """Yield what weakens the figures: peers that did not run, wrong answers, restless engines."""
    for case in found:
        if isinstance(case.peak, Refusal):
            hint = f" ({case.peak.hint})" if case.peak.hint else ""
            yield f"{case.case.label}: {case.peak.reason}{hint}"
        if disturbed := disturbance(case.case.label, case.other_load):
            yield disturbed
        for engine in case.engines:
            who = f"{case.case.label}, {engine.engine.label}"
            if engine.error is not None:
                hint = f" ({engine.error.hint})" if engine.error.hint else ""
                yield f"{who}: not measured: {engine.error.message}{hint}"
                continue
            if engine.engine.name == OURS and "ONNX Runtime" in engine.runs_on:
                yield (
                    f"{who}: not all of it is our own code: it runs on {engine.runs_on}: "
                    f"{engine.placement}"
                )
            if not engine.agrees:
                worst = min(engine.outputs, key=lambda output: output.cosine)
                yield (
                    f"{who}: output `{worst.name}` is not the right answer "
                    f"(cosine {worst.cosine:.4f}): its time means nothing"
                )
            if engine.timed is not None and engine.timed.quiet_after_ms is None:
                yield f"{who}: went on using the processor after its turns: the times of all suffer"
