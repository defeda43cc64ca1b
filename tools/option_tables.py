"""The tables of provider options and of modelled latencies, from the code; see `tables.py`."""

from __future__ import annotations

import statistics
from collections.abc import Mapping

from vermilion.backends.npu_cost import BF16_ERRORS, INT8_ERRORS, Latency
from vermilion.backends.npu_published import BF16_MS, INT8_MS
from vermilion.errors import UnsupportedError
from vermilion.hardware.options.gpu import AMDGPU, MIGRAPHX, PLUGIN, TABLES
from vermilion.hardware.options.gpu_rules import plugin_name
from vermilion.hardware.options.option import Option, OptionTable
from vermilion.hardware.options.vitisai import RELEASES, all_options
from vermilion.hardware.options.vitisai_build import Precision, Request, build_options
from vermilion.hardware.targets.npu import TARGETS

_DEVICES = tuple(t.name for t in TARGETS if t.npu is not None and t.npu.first_release)
_PRECISIONS: tuple[Precision, ...] = ("int8", "bf16")


def table(head: list[str], rows: list[list[str]]) -> str:
    """Return a Markdown table; a bar inside a cell is escaped."""
    escaped = [[cell.replace("|", "\\|") for cell in row] for row in rows]
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in escaped)])


def options_page() -> str:
    """Return every provider's options by release or build, and what is built for each device."""
    sections = [
        "# Provider options",
        "Made by `python tools/tables.py` from what `vermilion doctor --options` checks against.",
        "## VitisAI: what each release of Ryzen AI takes",
        "Source: Ryzen AI Software documentation, modelrun.rst and relnotes.rst by release. Empty"
        " since and until: in every release. Names that no release documents are known from a"
        " public copy of the provider's core.",
        table(
            ["option", "values", "default", "since", "until", "what it does"],
            [_vitisai_row(option) for option in all_options()],
        ),
        "## VitisAI: what Vermilion sets, by device and release",
        "On Windows, with a cache folder. `bf16` also writes the file that `config_file` names.",
        table(["device", "release", "data type", "options", "environment"], _built_rows()),
    ]
    sections += [
        "## MIGraphX: one option in every build",
        "What an option is called in each build; empty where the build does not take it.",
        _builds_table(),
    ]
    for one in TABLES:
        sections += [f"## {one.title}", *_gpu_section(one)]
    return "\n\n".join(sections)


def latency_table() -> str:
    """Return published, predicted and error of each network, left out of its own fit."""
    rows = []
    for release, published in INT8_MS.items():
        rows += _latency_rows("INT8", release, published, INT8_ERRORS[release])
    for release, published in BF16_MS.items():
        rows += _latency_rows("BF16", release, published, BF16_ERRORS[release])
    return table(["data type", "release", "network", "published ms", "modelled ms", "error"], rows)


def error_table() -> str:
    """Return the middle and the worst error by release."""
    rows = []
    for kind, tables in (("INT8", INT8_ERRORS), ("BF16", BF16_ERRORS)):
        for release, errors in tables.items():
            middle = statistics.median(abs(error) for error in errors.values())
            shown = Latency(1.0, 0.0, 0.0, 0.0, 0, 0, release, errors, "")
            worst, by = shown.worst_error
            rows.append(
                [
                    *(kind, release, f"{100 * middle:.0f}%", f"{worst}, {100 * by:+.0f}%"),
                    f"{shown.low_ms:.2f} to {shown.high_ms:.2f} times",
                    f"{shown.coverage:.0%}",
                ]
            )
    head = ["data type", "release", "error in the middle", "worst", "interval", "holds another"]
    return table(head, rows)


def _latency_rows(
    kind: str, release: str, published: Mapping[str, float], errors: Mapping[str, float]
) -> list[list[str]]:
    return [
        [kind, release, name, f"{ms:g}", f"{ms * (1 + errors[name]):.2f}", f"{errors[name]:+.0%}"]
        for name, ms in published.items()
    ]


def _vitisai_row(option: Option) -> list[str]:
    names = ", ".join(f"`{name}`" for name in (option.name, *option.other_spellings))
    meaning = option.meaning if option.is_documented else f"{option.meaning} (undocumented)"
    return [names, option.expected, option.default, option.since, option.until, meaning]


def _built_rows() -> list[list[str]]:
    return [
        [device, release, precision, *_built(device, release, precision)]
        for device in _DEVICES
        for release in RELEASES
        for precision in _PRECISIONS
    ]


def _built(device: str, release: str, precision: Precision) -> tuple[str, str]:
    try:
        built = build_options(Request(device, release, precision, cache_dir="CACHE"))
    except UnsupportedError as error:
        return f"refused: {error.message}", ""
    pairs = [f"`{name}` = `{value}`" for name, value in built.options.items()]
    environment = [f"`{name}` = `{value}`" for name, value in built.environment.items()]
    return ", ".join(pairs), ", ".join(environment)


def _builds_table() -> str:
    """Return a row an option, built-in names first, and a column a build."""
    builds = [t for t in TABLES if t.provider in (MIGRAPHX, AMDGPU)]
    names: dict[str, str] = {}  # in the plugin → in the built-in provider, either may be missing
    for one in builds:
        for option in one.options:
            if one.build == PLUGIN:
                names.setdefault(option.name, "")
            else:
                names[plugin_name(option.name) or option.name] = option.name
    rows = []
    for plugin, built_in in sorted(names.items(), key=lambda pair: (not pair[1], pair[1], pair[0])):
        spelt = [plugin if one.build == PLUGIN else built_in for one in builds]
        found = [one.find(name) if name else None for one, name in zip(builds, spelt, strict=True)]
        rows.append([f"`{option.name}`" if option else "" for option in found])
    heads = [f"{'umbrella, ' if t.provider == AMDGPU else ''}{t.build}" for t in builds]
    return table(heads, rows)


def _gpu_section(one: OptionTable) -> list[str]:
    rows = [
        [
            ", ".join(f"`{name}`" for name in (option.name, *option.other_spellings)),
            option.expected,
            option.default,
            option.meaning,
        ]
        for option in one.options
    ]
    parts = [
        f"Build `{one.build}`. Source: {one.source}.",
        table(["option", "values", "default", "what it does"], rows),
    ]
    if one.removed:
        gone = [f"`{old}`" + (f" (now `{new}`)" if new else "") for old, new in one.removed.items()]
        parts.append(f"Removed: {', '.join(gone)}.")
    return parts
