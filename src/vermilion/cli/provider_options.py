"""Provider options on the command line: a file's checked, or the right ones printed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from vermilion.cli.fitted import Column, FittedTable, Verbatim
from vermilion.cli.output import Result
from vermilion.errors import OptionError

if TYPE_CHECKING:
    from rich.console import RenderableType

    from vermilion.hardware.options.option import Linted
    from vermilion.hardware.options.vitisai_build import BuiltOptions, Request

STYLES = {"ok": "green", "note": "cyan", "warning": "yellow", "error": "bold red"}


def lint_file(path: Path, release: str, device: str, precision: str) -> Result:
    """Check the options in a file; not ok where one is an error."""
    from vermilion.hardware.options.lint import lint_all
    from vermilion.hardware.options.option import Setting
    from vermilion.hardware.options.read import read_options
    from vermilion.hardware.targets.find import find_target

    reading = read_options(path)
    stated = reading.setting
    named = device or stated.device
    setting = Setting(
        build=release or stated.build,
        device=find_target(named).name if named else "",
        precision=precision or stated.precision,
        system=stated.system,
    )
    linted = lint_all(reading.option_sets, setting)
    errors = sum(one.errors for one in linted)
    if reading.unread and not errors:
        first = reading.unread[0]
        raise OptionError(
            f"could not read {first.what}, so nothing says that the options are right",
            where=first.where,
            hint="write them out there, or check them as JSON "
            '(`{"provider": "…", "options": {…}}`)',
        )
    data = {
        "errors": errors,
        "release": setting.build,
        "device": setting.device,
        "option_sets": [_row(one) for one in linted],
        "unread": [{"where": one.where, "what": one.what} for one in reading.unread],
    }
    as_json = path.suffix.lower() == ".json"
    unread = [f"{one.where}: could not read {one.what}" for one in reading.unread]
    return Result(data, lambda: _lint_view(linted, unread, as_json=as_json), ok=errors == 0)


def _row(linted: Linted) -> dict[str, object]:
    corrected = linted.corrected
    return {
        "where": linted.given.where,
        "provider": linted.given.provider,
        "options": dict(linted.given.options),
        "checked_against": linted.table.title if linted.table else "",
        "device": linted.setting.device,
        "problems": [problem.as_json() for problem in linted.problems],
        "corrected": {
            "provider": corrected.provider,
            "options": dict(corrected.options),
            "environment": dict(corrected.environment),
            "config": corrected.config,
        },
    }


def _lint_view(linted: Sequence[Linted], unread: Sequence[str], *, as_json: bool) -> RenderableType:
    from rich.console import Group
    from rich.text import Text

    from vermilion.hardware.options.lint import corrected_text

    views: list[RenderableType] = []
    for one in linted:
        against = one.table.title if one.table else "no table"
        views.append(Text(f"{one.given.where}: {one.given.provider}", style="bold"))
        device = f", {one.setting.device}" if one.setting.device else "; `--device` says more"
        views.append(f"checked against: {against}{device}")
        if not one.problems:
            views += ["nothing is wrong", ""]
            continue
        for problem in one.problems:
            label = (f"{problem.level}: ", STYLES[problem.level])
            views.append(Text.assemble(label, problem.what))
            if problem.fix:
                views.append(Text.assemble("  ", ("fix: ", "bold"), problem.fix))
        views += ["", "corrected:", Verbatim(corrected_text(one, as_json=as_json)), ""]
    views += [Text(line) for line in unread]
    return Group(*views)


def suggest_options(release: str, device: str, precision: str) -> Result:
    """Return the VitisAI provider's options for a device and a release, each with its reason.

    Raises: OptionError for numbers that there are not; UnsupportedError where the release does not
    do that on the device.
    """
    from vermilion.hardware.options.vitisai import NEWEST
    from vermilion.hardware.options.vitisai_build import Request, build_options
    from vermilion.hardware.targets.find import find_target

    if not device:
        raise OptionError("options are for a device", hint="add `--device strix`, say")
    if precision not in ("", "int8", "bf16"):
        raise OptionError(f"`{precision}` is no precision here", hint="`int8` or `bf16`")
    wanted = Request(
        device=find_target(device).name,
        release=release or NEWEST,
        precision="bf16" if precision == "bf16" else "int8",
        cache_dir="vitisai_cache",
        cache_key="DIGEST_OF_MODEL_AND_OPTIONS",
    )
    built = build_options(wanted)
    data = {
        "device": wanted.device,
        "release": wanted.release,
        "precision": wanted.precision,
        "options": dict(built.options),
        "environment": dict(built.environment),
        "config": dict(built.config) if built.config is not None else None,
        "reasons": dict(built.reasons),
    }
    return Result(data, lambda: _suggest_view(wanted, built))


def _suggest_view(wanted: Request, built: BuiltOptions) -> RenderableType:
    from rich.console import Group

    columns = (Column("option", 0, "name"), Column("value", 0, "name"), Column("why", 1, "words"))
    rows = []
    old = {"cacheDir": "cache_dir", "cacheKey": "cache_key", "encryptionKey": "encryption_key"}
    for name, value in built.options.items():
        rows.append((name, value, built.reasons.get(old.get(name, name), "")))
    for name, value in built.environment.items():
        rows.append((name, value, built.reasons.get(f"environment {name}", "")))
    rows += [(name, "", why) for name, why in built.reasons.items() if name.startswith("no ")]
    head = f"VitisAI on {wanted.device}, Ryzen AI {wanted.release}, {wanted.precision}"
    views: list[RenderableType] = [head, FittedTable(columns, rows)]
    if built.config is not None:
        views += ["", "the file that `config_file` names:", Verbatim(built.config_text().rstrip())]
    return Group(*views)
