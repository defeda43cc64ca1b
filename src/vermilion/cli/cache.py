"""`vermilion cache`: look at what is kept, check it, throw some away."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from vermilion.cli.fitted import Column, Facts, FittedTable, Verbatim
from vermilion.cli.flags import Verbs
from vermilion.cli.options import CacheDir, bytes_for_people, parse_size
from vermilion.cli.output import Result
from vermilion.cli.verb import Terminal, verb
from vermilion.errors import OptionError

if TYPE_CHECKING:
    from rich.console import RenderableType

    from vermilion.backends.vitisai.found import Stack
    from vermilion.runtime.vendor import VendorArtifact
    from vermilion.store.store import EntryCheck, EntryRow, Pruned, Store

# What is said of compiled models alone.
_NO_FACTS = {"digest": "", "target": "", "created": "", "parts": 0}

app = Verbs(help="List, check and prune the cache: compiled models, language models.")


@app.command("ls")
@verb("cache ls")
def ls(terminal: Terminal, *, cache_dir: CacheDir = None) -> Result:
    """List compiled models and what language models keep, those used last first."""
    cache = _store(cache_dir, may_lack=True)
    rows = cache.ls()
    data = {
        "cache_dir": cache.root,
        "size_bytes": sum(row.size_bytes for row in rows),
        "entries": [_row_as_json(row) for row in rows],
    }
    return Result(data, lambda: _list_view(cache.root, rows))


@app.command("verify")
@verb("cache verify")
def verify(
    terminal: Terminal,
    *,
    cache_dir: CacheDir = None,
    vendor: Annotated[
        Path | None,
        typer.Option(
            "--vendor",
            metavar="PATH",
            exists=True,
            help="Look at what AMD's provider wrote instead: a folder, `_ctx.onnx` or `.rai`.",
        ),
    ] = None,
) -> Result:
    """Read every byte of every compiled model, and compare it with what was written.

    The exit code is 1 if one is damaged; with `--vendor`, if it is not to be used here.
    """
    if vendor is not None:
        return _vendor_result(vendor)
    cache = _store(cache_dir)
    terminal.progress("reading", 0, 0)
    checks = cache.verify()
    damaged = sum(not check.is_whole for check in checks)
    entries = [{"key": c.key, "path": c.path, "problem": c.problem} for c in checks]
    data = {"cache_dir": cache.root, "damaged": damaged, "entries": entries}
    return Result(data, lambda: _verify_view(cache.root, checks), ok=damaged == 0)


@app.command("prune")
@verb("cache prune")
def prune(
    terminal: Terminal,
    *,
    older_than_days: Annotated[
        float | None,
        typer.Option("--older-than", metavar="DAYS", help="Remove what was not used for so long."),
    ] = None,
    max_size: Annotated[
        str | None,
        typer.Option(
            "--max-size", metavar="SIZE", help="Keep what was used last, up to `2GB` or `500MB`."
        ),
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="Remove every entry.")] = False,
    cache_dir: CacheDir = None,
) -> Result:
    """Remove what is kept, and what interrupted compilations left behind.

    One that a process is compiling at this moment is left alone.
    """
    if not everything and older_than_days is None and max_size is None:
        raise OptionError(
            "nothing says what to remove", hint="add `--older-than 30`, `--max-size 2GB` or `--all`"
        )
    pruned = _store(cache_dir).prune(
        older_than_days=older_than_days,
        max_bytes=None if max_size is None else parse_size(max_size),
        everything=everything,
    )
    for key in pruned.busy:
        terminal.warn(f"`{key}` is in use and was left")
    data = {"removed": pruned.keys, "freed_bytes": pruned.freed_bytes, "busy": pruned.busy}
    return Result(data, lambda: _prune_view(pruned))


def _store(cache_dir: Path | None, *, may_lack: bool = False) -> Store:
    """Return the cache; of the folder that is named, or the user's.

    Raises: OptionError where a name leads to no folder; one that is not there yet `may_lack`.
    """
    from vermilion.runtime.cache import NAMESPACES
    from vermilion.store.store import Store

    if (
        cache_dir is not None
        and not cache_dir.is_dir()
        and not (may_lack and not cache_dir.exists())
    ):
        what = "this is no folder" if cache_dir.exists() else "there is no such folder"
        raise OptionError(what, where=f"--cache-dir {cache_dir}", hint="check the path")
    return Store(cache_dir, NAMESPACES)


def _row_as_json(row: EntryRow) -> dict[str, object]:
    return {
        "key": row.key,
        "path": row.path,
        "size_bytes": row.size_bytes,
        "last_used": _moment(row).isoformat(),
        **_NO_FACTS,
        **row.facts,
        "kind": row.kind,
        "problem": row.problem,
    }


def _moment(row: EntryRow) -> datetime.datetime:
    return datetime.datetime.fromtimestamp(int(row.last_used), tz=datetime.UTC)


def _list_view(root: Path, rows: Sequence[EntryRow]) -> RenderableType:
    from rich.console import Group

    if not rows:
        return Verbatim(f"{root} holds no compiled models")
    columns = (
        Column("key", 0, "name"), Column("target", 1, "words"), Column("parts", 4),
        Column("size", 2), Column("last used", 3),
    )  # fmt: skip
    drawn = []
    for row in rows:
        used = _moment(row).astimezone().strftime("%Y-%m-%d %H:%M")
        target = row.problem or str(row.facts.get("target", row.kind))
        parts = str(row.facts.get("parts", ""))
        drawn.append((row.key, target, parts, bytes_for_people(row.size_bytes), used))
    total = bytes_for_people(sum(row.size_bytes for row in rows))
    return Group(Verbatim(f"{root}: {total}"), FittedTable(columns, drawn))


def _verify_view(root: Path, checks: Sequence[EntryCheck]) -> RenderableType:
    from rich.text import Text

    damaged = [check for check in checks if not check.is_whole]
    lines = [f"damaged: {check.key}: {check.problem}" for check in damaged]
    lines.append(f"{len(checks) - len(damaged)} of {len(checks)} entries in {root} are whole")
    return Text("\n".join(lines))


def _prune_view(pruned: Pruned) -> RenderableType:
    from rich.text import Text

    lines = [f"removed {key}" for key in pruned.keys]
    freed = bytes_for_people(pruned.freed_bytes)
    lines.append(f"{len(pruned.keys)} entries removed, {freed} freed")
    return Text("\n".join(lines))


def _vendor_result(path: Path) -> Result:
    """Read an artifact of AMD's provider; not ok where it is not to be used here."""
    from vermilion.runtime.vendor import read_vendor, why_not_reusable

    artifact = read_vendor(path)
    reasons = why_not_reusable(artifact, _stack())
    data = {"vendor": artifact.as_json(), "reusable": not reasons, "reasons": list(reasons)}
    return Result(data, lambda: _vendor_view(artifact, reasons), ok=not reasons)


def _stack() -> Stack | None:
    from vermilion.backends.base import Availability
    from vermilion.backends.vitisai.found import find_stack
    from vermilion.hardware.devices import detect_machine
    from vermilion.hardware.targets.find import find_target

    machine = detect_machine(probe_providers=False)
    for npu in machine.npus:
        if npu.target is not None:
            found = find_stack(find_target(npu.target), machine, probe=False)
            if not isinstance(found, Availability):
                return found
    return None


def _vendor_view(artifact: VendorArtifact, reasons: Sequence[str]) -> RenderableType:
    from rich.console import Group

    from vermilion.cli.placement import summary_view

    size = bytes_for_people(artifact.size_bytes)
    facts = [
        (artifact.kind, f"{artifact.path}: {len(artifact.files)} files, {size}"),
        ("parts", ", ".join(artifact.parts) or "none"),
    ]
    facts += [("written by", f"{name} {version}") for name, version in artifact.versions.items()]
    facts += [("report", f"{n} nodes on {device}") for device, n in artifact.report.items()]
    facts += [("left out", f"{count} × {reason}") for reason, count in artifact.reasons.items()]
    views: list[RenderableType] = [Facts(facts)]
    if artifact.summary is not None:
        views += ["", summary_view(artifact.summary, ran="not known: files do not say")]
    if reasons:
        views += ["", "not to be used here:", *(f"  {reason}" for reason in reasons)]
    return Group(*views)
