"""What `vermilion bench` prints for people."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from vermilion.cli.fitted import Column, FittedTable

if TYPE_CHECKING:
    from rich.console import RenderableType

    from vermilion.bench.measure import CaseResult, EngineResult
    from vermilion.bench.profile import CaseProfiles, Line, Profile
    from vermilion.bench.regress import Delta
    from vermilion.bench.tables import Table


def bench_view(found: Sequence[CaseResult], deltas: Sequence[Delta], pairs: int) -> RenderableType:
    """Draw every case as a table, and what changed against an earlier bench."""
    from rich.console import Group

    views: list[RenderableType] = []
    for case in found:
        rows = tuple(tuple(_cells(case, engine)) for engine in case.engines)
        ran = [
            f"{engine.engine.name}: {engine.placement}"
            for engine in case.engines
            if engine.placement
        ]
        views += [_title(case), FittedTable(_COLUMNS, rows), *ran, ""]
    views.append(
        f"{pairs} turns of each engine; × as fast: the peer's time ÷ vermilion's, the median over "
        "pairs of turns and its quartiles"
    )
    if deltas:
        from vermilion.bench.tables import delta_table

        views += ["", table_view(delta_table(deltas))]
    return Group(*views)


def _title(found: CaseResult) -> str:
    from vermilion.bench.peak import Peak

    case = found.case
    sizes = [f"batch {case.batch}"] if case.batch is not None else []
    sizes += [f"sequence {case.sequence}"] if case.sequence is not None else []
    sizes.append(f"{case.threads} thread{'s' if case.threads > 1 else ''}")
    cost = f", {case.gops:.2f} GOPs" if case.gops is not None else ""
    title = f"{case.label}, {case.precision}, {', '.join(sizes)}{cost}"
    if isinstance(found.peak, Peak):
        title += f"; measured peak {found.peak.gops_per_s:.0f} GOP/s ({found.peak.instruction})"
    return title


_COLUMNS = (
    Column("engine", 0, "name"), Column("p50 ms", 1), Column("p90", 7), Column("p99", 6),
    Column("min", 8), Column("× as fast", 2), Column("of peak", 4), Column("peak MB", 5),
    Column("load s", 10), Column("compile s", 9), Column("cosine", 3),
)  # fmt: skip


def _cells(found: CaseResult, engine: EngineResult) -> list[str]:
    from vermilion.bench.peak import Peak

    label, times = engine.engine.label, engine.latency
    if times is None:
        return [label, "not measured"]
    ratio = found.ratios.get(label)
    spread = "" if ratio is None else ratio.words
    share = ""
    same_precision = engine.engine.precision == found.case.precision
    if found.case.gops is not None and isinstance(found.peak, Peak) and same_precision:
        share = f"{found.case.gops / times.p50 * 1e3 / found.peak.gops_per_s:.0%}"
    return [
        f"{label} {engine.version}",
        *(f"{ms:.3f}" for ms in (times.p50, times.p90, times.p99, times.min)),
        spread,
        share,
        "" if engine.peak_rss_mb is None else f"{engine.peak_rss_mb:.0f}",
        "" if engine.load_s is None else f"{engine.load_s:.3f}",
        "" if engine.compile_s is None else f"{engine.compile_s:.2f}",
        f"{min(output.cosine for output in engine.outputs):.6f}",
    ]


def table_view(table: Table) -> RenderableType:
    """Draw a table of a report, under its title and above its note."""
    from rich.console import Group

    columns = [
        Column(
            head,
            0 if at >= len(table.head) - table.words else at,  # what the figures come to
            "number" if table.holds_numbers(at) else "words" if at else "name",
        )
        for at, head in enumerate(table.head)
    ]
    drawn = FittedTable(columns, table.rows)
    return Group(table.title, drawn, *([table.note] if table.note else []), "")


def profile_view(found: CaseProfiles, most_rows: int) -> RenderableType:
    """Draw the profiles of one case: for each engine its operators, kinds and devices."""
    from rich.console import Group

    views: list[RenderableType] = [found.title, ""]
    for profile in found.profiles:
        views += [_profile_title(profile), _lines(profile.by_step, most_rows, "operator")]
        views += ["", _lines(profile.by_kind, most_rows, "kind"), ""]
        views += [_lines(profile.by_device, most_rows, "device"), ""]
    return Group(*views)


def _profile_title(profile: Profile) -> str:
    return (
        f"{profile.engine}@{profile.precision} {profile.version}: a run takes "
        f"{profile.run_ms:.3f} ms; its steps, measured one by one, {profile.steps_ms:.3f} ms "
        f"({profile.runs} runs)"
    )


def _lines(lines: Sequence[Line], most_rows: int, what: str) -> RenderableType:
    names = {"operator": ("operator", "kind"), "kind": ("kind",), "device": ("device",)}[what]
    columns = [Column(name, at, "name") for at, name in enumerate(names)]
    columns += [Column("steps", 4), Column("ms", 1), Column("share", 2), Column("GOP/s", 3)]
    if what != "device":
        columns.append(Column("device", 5, "words"))
    rows = []
    for line in lines[:most_rows]:
        words = {"operator": (line.name, line.kind), "kind": (line.kind,)}
        rate = "" if line.gops_per_s is None else f"{line.gops_per_s:.0f}"
        cells = [*words.get(what, (line.device,)), str(line.steps), f"{line.ms:.3f}"]
        cells += [f"{line.share:.1%}", rate, *([line.device] if what != "device" else [])]
        rows.append(cells)
    rest = lines[most_rows:]
    if rest:
        steps, ms = sum(line.steps for line in rest), sum(line.ms for line in rest)
        share = sum(line.share for line in rest)
        blank = [""] * (len(names) - 1)
        rows.append([f"{len(rest)} more", *blank, str(steps), f"{ms:.3f}", f"{share:.1%}"])
    return FittedTable(columns, rows)
