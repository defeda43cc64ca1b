"""Try thousands of random graphs: `python tools/fuzz_graphs.py --count 10000`.

Each is grown from a seed, compiled, run between guard pages on one to three threads, and held
against the model run literally. What is found is shrunk and printed, with the line that repeats it.
"""

from __future__ import annotations

import argparse
import secrets
import sys
import time
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parent.parent / name) for name in ("tests", "src")]

from random_graphs.batches import Case, Tried, try_all  # noqa: E402
from random_graphs.graph_writer import FORMATS  # noqa: E402
from random_graphs.growth import ANY  # noqa: E402
from random_graphs.shrinking import described  # noqa: E402
from random_graphs.tally import coverage, faults, table, tally  # noqa: E402
from vermilion.codegen.lower.rules import RULES  # noqa: E402

# A table that often: a run of thousands takes an hour, and may be ended before.
_EVERY = 500


def _print(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def main() -> int:
    """Try the graphs, print the tables; return 1 where something is wrong."""
    words = argparse.ArgumentParser(description=__doc__)
    words.add_argument("--count", type=int, default=1000)
    words.add_argument("--seed", type=int, default=None, help="of the first graph; fresh if absent")
    words.add_argument(
        "--format", choices=(*FORMATS, ANY), action="append",
        help=f"all but `{ANY}` by default, which has every operator of the standard",
    )  # fmt: skip
    words.add_argument("--jobs", type=int, default=2)
    words.add_argument("--shrink", type=int, default=10, help="how many faults to shrink")
    words.add_argument("--coverage", action="store_true", help="print operators × formats")
    chosen = words.parse_args()
    seed = secrets.randbelow(10**9) if chosen.seed is None else chosen.seed
    formats = chosen.format or FORMATS
    cases = [Case(seed + at, formats[at % len(formats)]) for at in range(chosen.count)]
    _print(f"{chosen.count} graphs from seed {seed} on")
    begin = time.monotonic()
    tried: list[Tried] = []

    def told(one: Tried) -> None:
        tried.append(one)
        if faults([one]) or one.outcome.kind == "refused":
            case, outcome = one.case, one.outcome
            _print(f"{case.number_format} {case.seed}: {outcome.kind}: {outcome.detail}")
        if len(tried) % _EVERY == 0:
            _print(f"\n{table(tally(tried))}\n{time.monotonic() - begin:.0f} s so far")

    try_all(cases, chosen.jobs, told=told)
    rows = tally(tried)
    _print(f"\n{table(rows)}\n\n{time.monotonic() - begin:.0f} s")
    for name, row in rows.items():
        _print(f"\n{name}, left to ONNX Runtime or refused:")
        for reason, count in row.reasons.most_common(8):
            _print(f"{count:>7}  {reason}")
    if chosen.coverage:
        _print("\n" + coverage(rows, RULES))
    found = faults(tried)
    for one in found[: chosen.shrink]:
        _print("\n" + described(one))
    return 1 if found else 0


if __name__ == "__main__":
    raise SystemExit(main())
