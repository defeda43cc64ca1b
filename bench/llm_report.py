"""What `llm_bench.py` found: medians, ours over the fastest peer's, the goals; tables of a page."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Iterator, Sequence

from vermilion.bench.figures import pair_ratios, ratio, spread
from vermilion.bench.harness import Record

OURS = ("bf16", "bfp16", "int8")
STOCK = "onnxruntime-genai"
# Not what a user gets: shown, and no peer that a goal is held against.
VARIANTS = ("openvino-genai-bf16",)

# Ours over the fastest peer's, at most.
PREFILL_GOALS = {"bf16": 1.00, "int8": 0.75}
DECODE_GOAL = 0.95
LOAD_GOAL = 1 / 3
# Of the bandwidth, at least, where the model is too big for any cache.
SHARE_GOAL = 0.90
BIG_BYTES = 400e6


def report(records: Sequence[Record], clock: str) -> Iterator[str]:
    """Yield the lines of all tables. `clock`.

    `wall`, or `cpu` for a busy machine and one thread.
    """
    cases = dict.fromkeys((one["model"], one["threads"]) for one in records)
    for model, threads in cases:
        of_case = [one for one in records if (one["model"], one["threads"]) == (model, threads)]
        yield ""
        yield f"{model}, {threads} {'thread' if threads == 1 else 'threads'}, {clock} time"
        yield from _case(Case(of_case, clock))


class Case:
    """The figures of one model on so many threads."""

    def __init__(self, records: Sequence[Record], clock: str) -> None:
        middle = "_cpu_s" if clock == "cpu" else "_s"
        self.first, self.rest, self.load = (
            "first" + middle,
            "rest" + middle,
            "load_to_first" + middle,
        )
        self.timed = [one for one in records if "prompt" in one]
        self.alone = [one for one in records if "load_to_first_s" in one]
        self.rates = [one["gb_per_s"] for one in records if "gb_per_s" in one]
        self.failures = {one["engine"]: one["failed"] for one in records if "failed" in one}
        self.engines = list(dict.fromkeys(one["engine"] for one in (*self.timed, *self.alone)))
        self.prompts = sorted({one["prompt"] for one in self.timed})

    def of(self, engine: str, prompt: int) -> list[Record]:
        """Return the turns of an engine on prompts of one length."""
        return [one for one in self.timed if (one["engine"], one["prompt"]) == (engine, prompt)]

    def token_s(self, one: Record) -> float:
        """Return the seconds of one decoded token."""
        seconds: float = one[self.rest] / one["new"]
        return seconds

    def share(self, found: Sequence[Record]) -> float:
        """Return how much of the bandwidth decoding used: weights and cache, as counted."""
        if not self.rates:
            return 0.0
        rate = statistics.median(
            found_one["bytes_per_token"] / self.token_s(found_one) for found_one in found
        )
        return rate / 1e9 / statistics.median(self.rates)


def _case(case: Case) -> Iterator[str]:
    yield f"prompt  {'engine':19}  {'prefill tokens/s':21}  {'decode tokens/s':21}  of the memory"
    for prompt in case.prompts:
        for engine in case.engines:
            found = case.of(engine, prompt)
            if found:
                yield (
                    f"{prompt:6}  {engine:19}  {_rates(prompt / one[case.first] for one in found)}"
                    f"  {_rates(1 / case.token_s(one) for one in found)}  {case.share(found):6.0%}"
                )
    for engine in case.engines:
        found = [one for one in case.alone if one["engine"] == engine]
        if found:
            load = statistics.median(one[case.load] for one in found)
            peak = statistics.median(one["alone_peak_rss_mb"] for one in found)
            yield f"        {engine:19}  {load:6.2f} s to the first token, {peak:5.0f} MB at most"
    if case.rates:
        yield (f"        bandwidth, GB/s: {spread(case.rates)}")
    for engine, reason in case.failures.items():
        yield f"        {engine}: failed: {reason}"
    yield from _goals(case)


def _rates(values: Iterable[float]) -> str:
    found = ratio(list(values))
    ends = f"({found.least:.0f}–{found.most:.0f})"
    return f"{found.median:7.1f} {ends:13}"


def _goals(case: Case) -> Iterator[str]:
    for prompt in case.prompts:
        for engine in OURS:
            yield from _against(
                case, engine, prompt, "prefill", PREFILL_GOALS.get(engine),
                lambda one: float(one[case.first]),
            )  # fmt: skip
        big = any(one["bytes_per_token"] > BIG_BYTES for one in case.timed)
        for engine in OURS:
            goal = None if big else DECODE_GOAL
            yield from _against(case, engine, prompt, "decode", goal, case.token_s)
            found = case.of(engine, prompt)
            if big and found and case.rates:
                share = case.share(found)
                verdict = _verdict(share >= SHARE_GOAL)
                yield (
                    f"  {verdict}  {prompt:5} decode  {engine:5} {share:.0%} of the bandwidth,"
                    f" goal {SHARE_GOAL:.0%}"
                )
    yield from _alone_goals(case)


def _against(
    case: Case, engine: str, prompt: int, what: str, goal: float | None,
    seconds: Callable[[Record], float],
) -> Iterator[str]:  # fmt: skip
    """Hold one of ours against the peer with the least median."""
    ours = {one["turn"]: seconds(one) for one in case.of(engine, prompt)}
    peers = {
        name: {one["turn"]: seconds(one) for one in case.of(name, prompt)}
        for name in case.engines
        if name not in (*OURS, *VARIANTS)
    }
    peers = {name: found for name, found in peers.items() if found}
    if not ours or not peers:
        return
    fastest = min(peers, key=lambda name: statistics.median(peers[name].values()))
    both = [turn for turn in ours if turn in peers[fastest]]
    if not both:
        return
    pairs = pair_ratios([ours[turn] for turn in both], [peers[fastest][turn] for turn in both])
    aim = f", goal {goal:.2f}" if goal is not None else ""
    verdict = _verdict(goal is None or ratio(pairs).median <= goal, goal is not None)
    yield (
        f"  {verdict}  {prompt:5} {what:7} {engine:5} {spread(pairs, 2)} of {fastest}'s time{aim}"
    )


def _alone_goals(case: Case) -> Iterator[str]:
    def medians(key: str, names: Iterable[str]) -> dict[str, float]:
        found = {name: [one[key] for one in case.alone if one["engine"] == name] for name in names}
        return {name: statistics.median(values) for name, values in found.items() if values}

    peers = [name for name in case.engines if name not in OURS]
    loads, peer_loads = medians(case.load, OURS), medians(case.load, peers)
    peaks, stock = medians("alone_peak_rss_mb", OURS), medians("alone_peak_rss_mb", [STOCK])
    for engine in loads:
        if peer_loads:
            fastest = min(peer_loads, key=lambda name: peer_loads[name])
            share = loads[engine] / peer_loads[fastest]
            yield (
                f"  {_verdict(share <= LOAD_GOAL)}  load to first token {engine:5} {share:.2f} of"
                f" {fastest}'s time, goal {LOAD_GOAL:.2f}"
            )
        if stock:
            share = peaks[engine] / stock[STOCK]
            yield (
                f"  {_verdict(share <= 1)}  peak memory         {engine:5} {share:.2f} of"
                f" {STOCK}'s, goal 1.00"
            )


def _verdict(is_met: bool, has_goal: bool = True) -> str:
    if not has_goal:
        return "      "
    return "met   " if is_met else "MISSED"


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
        yield from _rate_table(cases, _prefill)
        yield from ("", f"{model}, decode, tokens a second:", "")
        yield from _rate_table(cases, _decode)
        yield from ("", f"{model}, import to first token and peak memory:", "")
        yield from _alone_table(cases)


def _prefill(case: Case, found: Sequence[Record]) -> float:
    return statistics.median(one["prompt"] / one[case.first] for one in found)


def _decode(case: Case, found: Sequence[Record]) -> float:
    return statistics.median(1 / case.token_s(one) for one in found)


def _rate_table(cases: dict[int, Case], rate: Rate) -> Iterator[str]:
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


def _alone_table(cases: dict[int, Case]) -> Iterator[str]:
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
