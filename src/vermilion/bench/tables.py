"""The result of a suite as tables of words, which every form of the report shows."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from vermilion.bench import quoted
from vermilion.bench.engines import OURS
from vermilion.bench.figures import Ratio, pair_ratios, ratio
from vermilion.bench.regress import Delta
from vermilion.bench.suite import peer_label

Row = Mapping[str, Any]

# Columns that are what a row of the JSON has under the same name.
_CSV_SAME = (
    "model", "batch", "sequence", "threads", "engine", "precision", "version", "runs_on", "agrees",
    "throughput", "peak_rss_mb",
)  # fmt: skip
_CSV_COLUMNS = (
    "kind", *_CSV_SAME, "p50_ms", "p90_ms", "p99_ms", "min_ms", "mean_ms", "speed_up", "turns",
    "source",
)  # fmt: skip


@dataclass(frozen=True)
class Table:
    """Words in rows: columns of names, then columns of numbers, then columns of words."""

    title: str
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    names: int = 1
    words: int = 0
    note: str = ""

    def holds_numbers(self, column: int) -> bool:
        """Say whether a column is one of numbers."""
        return self.names <= column < len(self.head) - self.words


@dataclass(frozen=True)
class Size:
    """One size of one network, and the measured row of every engine at it."""

    network: str
    batch: int | None
    sequence: int | None
    rows: dict[str, Row]

    @property
    def words(self) -> str:
        """The size as an axis has it."""
        length = "" if self.sequence is None else f"{self.sequence} × "
        return f"{length}{self.batch}"

    def ratio(self, peer: str) -> Ratio | None:
        """Return ours ÷ a peer over pairs of turns, None where one of both was not measured."""
        ours, theirs = self.rows.get(OURS), self.rows.get(peer)
        if ours is None or theirs is None or peer == OURS:
            return None
        return ratio(pair_ratios(ours["turn_ms"], theirs["turn_ms"]))

    def speed_up(self, peer: str) -> float | None:
        """Return how many times as fast as a peer ours is: the median over pairs of turns."""
        found = self.ratio(peer)
        return None if found is None else 1.0 / found.median


def sizes_of(data: Row, network: str | None = None) -> list[Size]:
    """Return the sizes in the order in which they were measured."""
    found: dict[tuple[Any, ...], Size] = {}
    for row in data["results"]:
        if network in (None, row["model"]) and "turn_ms" in row:
            key = (row["model"], row["batch"], row["sequence"])
            rows = found.setdefault(key, Size(*key, {})).rows
            ours = rows.get(OURS, row)  # ours is the first of every size
            rows[peer_label(row, ours["precision"])] = row
    return list(found.values())


def networks_of(data: Row) -> list[str]:
    """Return the networks that were measured."""
    return list(dict.fromkeys(size.network for size in sizes_of(data)))


def engines_of(data: Row) -> list[str]:
    """Return the engines that were measured, ours first."""
    return list(dict.fromkeys(name for size in sizes_of(data) for name in size.rows))


def suite_tables(
    data: Row, deltas: Sequence[Delta] = (), *, with_quoted: bool = False
) -> list[Table]:
    """Return the tables of a suite: latency and memory by network, engines, changes."""
    tables = [latency_table(data, network, with_quoted) for network in networks_of(data)]
    tables += [memory_table(data, network, with_quoted) for network in networks_of(data)]
    tables.append(engine_table(data))
    if deltas:
        tables.append(delta_table(deltas))
    return tables


def latency_table(data: Row, network: str, with_quoted: bool = False) -> Table:
    """Return the median milliseconds of every engine, and how many times as fast ours is."""
    engines, sizes = engines_of(data), sizes_of(data, network)
    peers = [name for name in engines if name != OURS]
    head = [*_size_head(sizes), *(f"{name} ms" for name in engines)]
    head += [f"× {name}" for name in peers] + ["turns"]
    rows = []
    for size in sizes:
        cells = [*_size_cells(size), *(_number(size.rows.get(n), "p50") for n in engines)]
        ups = (size.speed_up(name) for name in peers)
        cells += ["" if up is None else f"{up:.2f}" for up in ups]
        cells.append(str(len(next(iter(size.rows.values()))["turn_ms"])))
        rows.append(cells)
    note = (
        "medians of wall-clock milliseconds; × a peer: how many times as fast as it vermilion is, "
        "the median over pairs of turns"
    )
    table = Table(f"{network}: latency", tuple(head), _frozen(rows), names=0, note=note)
    return _with_quoted(table, sizes, "ms") if with_quoted else table


def memory_table(data: Row, network: str, with_quoted: bool = False) -> Table:
    """Return the peak memory of every engine's process."""
    engines, sizes = engines_of(data), sizes_of(data, network)
    head = [*_size_head(sizes), *(f"{name} MB" for name in engines)]
    rows = [[*_size_cells(size), *(_memory(size.rows.get(n)) for n in engines)] for size in sizes]
    note = "largest resident size of the engine's process, libraries and weights included"
    table = Table(f"{network}: memory", tuple(head), _frozen(rows), names=0, note=note)
    return _with_quoted(table, sizes, "MB") if with_quoted else table


def engine_table(data: Row) -> Table:
    """Return version, place, load and compile time of every engine."""
    rows = []
    for name in engines_of(data):
        found = [size.rows[name] for size in sizes_of(data) if name in size.rows]
        compiled = [row["compile_s"] for row in found if row["compile_s"] is not None]
        places = dict.fromkeys(row["runs_on"] for row in found)
        rows.append(
            (
                name,
                found[0]["version"],
                "; ".join(places),
                f"{max(row['load_s'] for row in found):.2f}",
                f"{max(compiled):.1f}" if compiled else "",
                f"{min(o['cosine'] for row in found for o in row['outputs']):.6f}",
            )
        )
    head = ("engine", "version", "runs on", "longest load s", "compile s", "least cosine")
    note = "cosine: of outputs with those of ONNX Runtime on the unoptimized graph"
    return Table("Engines", head, _frozen(rows), names=3, note=note)


def delta_table(deltas: Sequence[Delta]) -> Table:
    """Return what changed against an earlier bench, and whether it is more than noise."""
    rows = []
    for delta in deltas:
        key = delta.key
        sequence = "" if key["sequence"] is None else f"{key['sequence']} × "
        rows.append(
            (
                str(key["model"]),
                f"{key['engine']}@{key['precision']}",
                f"{sequence}{key['batch']}",
                "" if delta.old_ms is None else f"{delta.old_ms:.3f}",
                "" if delta.new_ms is None else f"{delta.new_ms:.3f}",
                "" if delta.change_percent is None else f"{delta.change_percent:+.1f} %",
                _chance(delta.chance),
                delta.judged_by,
                verdict(delta),
            )
        )
    head = ("model", "engine", "size", "before ms", "now ms", "change", "p", "judged by", "verdict")
    note = "p: how likely chance alone makes a difference like this (Mann and Whitney's test)"
    return Table("Against the earlier bench", head, _frozen(rows), names=3, words=2, note=note)


def _chance(chance: float | None) -> str:
    if chance is None:
        return ""
    return f"{chance:.3f}" if chance >= 0.0005 else "< 0.001"


def verdict(delta: Delta) -> str:
    """Say in a word what became of a row."""
    if delta.state != "matched":
        return delta.state
    if delta.regressed:
        return "slower"
    if not delta.significant:
        return "within the noise"
    return "faster" if (delta.change_percent or 0.0) < 0.0 else "a little slower"


def markdown(tables: Sequence[Table]) -> str:
    """Write the tables as Markdown."""
    return "\n".join(line for table in tables for line in _markdown_lines(table))


def _markdown_lines(table: Table) -> Iterator[str]:
    def line(cells: Sequence[str]) -> str:
        return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"

    yield f"## {table.title}\n"
    yield line(table.head)
    yield line(["--:" if table.holds_numbers(at) else ":--" for at in range(len(table.head))])
    yield from (line(row) for row in table.rows)
    yield f"\n{table.note}\n" if table.note else ""


def comma_separated(data: Row, *, with_quoted: bool = False) -> str:
    """Write one line a measurement; quoted figures are lines of their own, marked so."""
    text = io.StringIO()
    writer = csv.DictWriter(text, _CSV_COLUMNS, lineterminator="\n")
    writer.writeheader()
    for size in sizes_of(data):
        for name, row in size.rows.items():
            writer.writerow(_csv_row(size, name, row))
        writer.writerows(_csv_quoted(size) if with_quoted else ())
    return text.getvalue()


def _csv_row(size: Size, name: str, row: Row) -> dict[str, object]:
    return {
        "kind": "measured",
        **{key: row[key] for key in _CSV_SAME},
        **{f"{key}_ms": value for key, value in row["latency_ms"].items()},
        "speed_up": size.speed_up(name),  # of ours against this peer
        "turns": len(row["turn_ms"]),
    }


def _csv_quoted(size: Size) -> Iterator[dict[str, object]]:
    found = quoted.quoted_for(size.network, size.batch, size.sequence)
    if found is None:
        return
    source = f"{quoted.SOURCE}; {quoted.HARDWARE}; {quoted.SOFTWARE}; {quoted.DATE}"
    memory = found.memory_mb or (None,) * len(quoted.PROVIDERS)
    for name, ms, megabytes in zip(quoted.PROVIDERS, found.latency_ms, memory, strict=True):
        yield {
            "kind": "quoted",
            "model": size.network,
            "batch": size.batch,
            "sequence": size.sequence,
            "engine": name,
            "p50_ms": ms,
            "peak_rss_mb": megabytes,
            "source": source,
        }


def _with_quoted(table: Table, sizes: Sequence[Size], unit: str) -> Table:
    """Add the published figures in columns of their own, which say that they are quoted."""
    found = [quoted.quoted_for(size.network, size.batch, size.sequence) for size in sizes]
    if not any(q is not None and (unit == "ms" or q.memory_mb) for q in found):
        return table
    head = (*table.head, *(f"quoted: {name} {unit}" for name in quoted.PROVIDERS))
    rows = []
    for row, figure in zip(table.rows, found, strict=True):
        values = None if figure is None else figure.latency_ms
        if unit == "MB":
            values = None if figure is None else figure.memory_mb
        cells = ["" for _ in quoted.PROVIDERS] if values is None else [f"{v:g}" for v in values]
        rows.append((*row, *cells))
    note = f"{table.note}. {quoted.NOTE}"
    return replace(table, head=head, rows=_frozen(rows), note=note)


def _size_head(sizes: Sequence[Size]) -> list[str]:
    return (["sequence"] if any(s.sequence is not None for s in sizes) else []) + ["batch"]


def _size_cells(size: Size) -> list[str]:
    return ([] if size.sequence is None else [str(size.sequence)]) + [str(size.batch)]


def _number(row: Row | None, key: str) -> str:
    if row is None:
        return ""
    value = row["latency_ms"][key]
    return f"{value:.2f}" if value < 100.0 else f"{value:.0f}"


def _memory(row: Row | None) -> str:
    return "" if row is None or row["peak_rss_mb"] is None else f"{row['peak_rss_mb']:.0f}"


def _frozen(rows: Sequence[Sequence[str]]) -> tuple[tuple[str, ...], ...]:
    return tuple(tuple(row) for row in rows)
