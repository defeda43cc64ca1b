"""What `llm_bench.py` found as tables of a page: medians, one table a model and question."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence

from llm_report import OURS, Case

from vermilion.bench.harness import Record

# How many tokens a second, of the turns of one engine on one length.
Rate = Callable[[Case, Sequence[Record]], float]


def pages(records: Sequence[Record], clock: str) -> Iterator[str]:
    """Yield the lines of all tables."""
    for model in dict.fromkeys(one["model"] for one in records):
        cases = {
            threads: Case(
                [one for one in records if (one["model"], one["threads"]) == (model, threads)],
                clock,
            )
            for threads in sorted({one["threads"] for one in records if one["model"] == model})
        }
        yield from ("", f"{model}, prefill, tokens a second:", "")
        yield from _rates(cases, _prefill)
        yield from ("", f"{model}, decode, tokens a second:", "")
        yield from _rates(cases, _decode)
        yield from ("", f"{model}, import to first token and peak memory:", "")
        yield from _alone(cases)


def _prefill(case: Case, found: Sequence[Record]) -> float:
    return statistics.median(one["prompt"] / one[case.first] for one in found)


def _decode(case: Case, found: Sequence[Record]) -> float:
    return statistics.median(1 / case.token_s(one) for one in found)


def _rates(cases: dict[int, Case], rate: Rate) -> Iterator[str]:
    engines = list(dict.fromkeys(name for case in cases.values() for name in case.engines))
    is_decode = rate is _decode
    more = ("ours of the bandwidth",) if is_decode else ()
    yield from _head(("threads", "prompt", *engines, *more))
    for threads, case in cases.items():
        for prompt in case.prompts:
            found = {name: case.of(name, prompt) for name in engines}
            cells = [f"{rate(case, one):.0f}" if one else "" for one in found.values()]
            ours = next((found[name] for name in OURS if found.get(name)), [])
            if is_decode:
                cells.append(f"{case.share(ours):.0%}" if ours else "")
            yield _row((str(threads), str(prompt), *cells))


def _alone(cases: dict[int, Case]) -> Iterator[str]:
    yield from _head(("threads", "engine", "seconds", "MB"))
    for threads, case in cases.items():
        for name in case.engines:
            found = [one for one in case.alone if one["engine"] == name]
            if found:
                load_s = statistics.median(one[case.load] for one in found)
                peak_mb = statistics.median(one["alone_peak_rss_mb"] for one in found)
                yield _row((str(threads), name, f"{load_s:.2f}", f"{peak_mb:.0f}"))


def _head(names: Sequence[str]) -> Iterator[str]:
    yield _row(names)
    yield "|" + "---|" * len(names)


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"
