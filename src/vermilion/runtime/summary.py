"""The compilation summary: the vendor's text form, so that existing parsers read it, and JSON.

Source of names, order and number formats: AMD, "Compiled Model Output", and the summaries
printed in AMD's public Versal AI Edge Gen 2 tutorials (ResNet-18, ResNet-50, YOLOv8m).
"""

from __future__ import annotations

import platform
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field

from vermilion.errors import ArtifactError
from vermilion.runtime.fields import Fields, parse_json

HEADER = "--------- Final Summary of VAIML Pass ----------"

_OPS_PER_GOP = 1e9
_HINT = "this is not a summary of a compilation, or one of a form that is not known yet"


@dataclass(frozen=True)
class Fallback:
    """How many supported subgraphs went to the CPU after all, by cause."""

    compile_error: int = 0
    below_gops_threshold: int = 0
    above_max_subgraphs: int = 0


@dataclass(frozen=True)
class SubgraphStats:
    """One offloaded subgraph. `ops` are operations (two for a multiply-accumulate)."""

    name: str
    type: str
    operators: int
    gops: float
    ops: int
    # Share of the operations by number format (`fp32`, `int8`), where the compiler says.
    format_percent: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Summary:
    """What became of a model's operators. *Supported*: could run on the device. *Offloaded*: does.

    Units: GOPs are 10^9 operations, one multiply-accumulate being two.
    """

    model: str
    model_signature: str
    device: str
    model_data_type: str
    device_data_type: str
    operators: int
    gops: float
    supported_operators: int
    supported_gops: float
    offloaded_operators: int
    offloaded_gops: float
    subgraphs_supported: int
    subgraphs_offloaded: int
    fallback: Fallback = Fallback()
    subgraphs: tuple[SubgraphStats, ...] = ()
    threshold_gops_percent: float = 20
    max_subgraphs: int = 7
    os: str = field(default_factory=lambda: operating_system())
    # The vendor compiler's commit; empty where the form has none. Ours says that it has none.
    vaip_commit: str = ""

    def to_text(self) -> str:
        """Return `final-vaiml-pass-summary.txt`."""
        blocks = [line for subgraph in self.subgraphs for line in self._subgraph_lines(subgraph)]
        return "\n".join([*self._model_lines(), *self._count_lines(), *blocks]) + "\n"

    def as_json(self) -> dict[str, object]:
        """Return the same as one JSON object."""
        rows = asdict(self)
        rows["subgraphs"] = [asdict(subgraph) for subgraph in self.subgraphs]
        return rows

    def _model_lines(self) -> list[str]:
        commit = [f"VAIP commit: {self.vaip_commit}"] if self.vaip_commit else []
        return [
            HEADER,
            f"OS: {self.os}",
            *commit,
            f"Model: {self.model}",
            f"Model signature: {self.model_signature}",
            f"Device: {self.device}",
            f"Model data type: {self.model_data_type}",
            f"Device data type: {self.device_data_type}",
            f"Number of operators in the model: {self.operators}",
            f"GOPs of the model: {self.gops:.6g}",
        ]

    def _count_lines(self) -> list[str]:
        below = f"below {self.threshold_gops_percent:g}% GOPs threshold"
        above = f"above max number of subgraphs allowed({self.max_subgraphs})"
        return [
            f"Number of operators supported by VAIML: {self._operators(self.supported_operators)}",
            f"GOPs supported by VAIML: {self._gops(self.supported_gops)}",
            f"Number of subgraphs supported by VAIML: {self.subgraphs_supported}",
            f"Number of operators offloaded by VAIML: {self._operators(self.offloaded_operators)}",
            f"GOPs offloaded by VAIML: {self._gops(self.offloaded_gops)}",
            f"Number of subgraphs offloaded by VAIML: {self.subgraphs_offloaded}",
            "Number of subgraphs with compilation errors (fall back to CPU): "
            f"{self.fallback.compile_error}",
            f"Number of subgraphs {below} (fall back to CPU): {self.fallback.below_gops_threshold}",
            f"Number of subgraphs {above}: {self.fallback.above_max_subgraphs} (fall back to CPU)",
            "Stats for offloaded subgraphs",
        ]

    def _subgraph_lines(self, subgraph: SubgraphStats) -> list[str]:
        return [
            f"Subgraph {subgraph.name} stats:",
            f"    Type: {subgraph.type}",
            f"    Operators: {self._operators(subgraph.operators)}",
            f"    GOPs : {self._gops(subgraph.gops)}  OPs: {subgraph.ops:,}",
            *(
                f"    {number_format} ops %: {percent:.3f}"
                for number_format, percent in subgraph.format_percent.items()
            ),
        ]

    def _operators(self, count: int) -> str:
        return f"{count} ({_percent(count, self.operators):.3f}%)"

    def _gops(self, gops: float) -> str:
        return f"{gops:.3f} ({_percent(gops, self.gops):.3f}%)"


def operating_system() -> str:
    """Return the system in the vendor's spelling: `Linux X64`, `Windows X64`."""
    machine = platform.machine().lower()
    words = {"x86_64": "X64", "amd64": "X64", "aarch64": "ARM64", "arm64": "ARM64"}
    return f"{platform.system()} {words.get(machine, machine)}"


def parse_summary(text: str) -> Summary:
    """Read a summary as text: final, preliminary, the form without a commit, or the old one.

    Numbers that the text rounds are given as near to the truth as value and percentage allow.

    Raises: ArtifactError where the text is no such summary.
    """
    lines = [line.strip() for line in text.splitlines()]
    values = _values(lines)
    gops = _float(values, "GOPs of the model")
    supported = _pair(values, "Number of operators supported by VAIML")
    offloaded = _pair(values, "Number of operators offloaded by VAIML", "0")
    errors, below, above, threshold, limit = _fallbacks(lines)
    return Summary(
        model=values.get("model", ""),
        model_signature=values.get("model signature", ""),
        device=values.get("device") or values.get("target device", ""),
        model_data_type=values.get("model data type", ""),
        device_data_type=values.get("device data type", ""),
        operators=int(_float(values, "Number of operators in the model")),
        gops=gops,
        supported_operators=int(supported[0]),
        supported_gops=_refined(_pair(values, "GOPs supported by VAIML"), gops),
        offloaded_operators=int(offloaded[0]),
        offloaded_gops=_refined(_pair(values, "GOPs offloaded by VAIML", "0"), gops),
        subgraphs_supported=int(_float(values, "Number of subgraphs supported by VAIML", "0")),
        subgraphs_offloaded=int(_float(values, "Number of subgraphs offloaded by VAIML", "0")),
        fallback=Fallback(errors, below, above),
        subgraphs=_subgraphs(lines, gops),
        threshold_gops_percent=threshold,
        max_subgraphs=limit,
        os=values.get("os", ""),
        vaip_commit=values.get("vaip commit", ""),
    )


def summary_from_json(data: bytes, where: str) -> Summary:
    """Read the summary's part of `summary.json`."""
    fields = Fields(parse_json(data, where), where)
    fallback = fields.nested("fallback")
    return Summary(
        model=fields.text("model"),
        model_signature=fields.text("model_signature"),
        device=fields.text("device"),
        model_data_type=fields.text("model_data_type"),
        device_data_type=fields.text("device_data_type"),
        operators=fields.integer("operators"),
        gops=fields.number("gops"),
        supported_operators=fields.integer("supported_operators"),
        supported_gops=fields.number("supported_gops"),
        offloaded_operators=fields.integer("offloaded_operators"),
        offloaded_gops=fields.number("offloaded_gops"),
        subgraphs_supported=fields.integer("subgraphs_supported"),
        subgraphs_offloaded=fields.integer("subgraphs_offloaded"),
        fallback=Fallback(
            fallback.integer("compile_error"),
            fallback.integer("below_gops_threshold"),
            fallback.integer("above_max_subgraphs"),
        ),
        subgraphs=tuple(_subgraph_from_json(item) for item in fields.objects("subgraphs")),
        threshold_gops_percent=fields.number("threshold_gops_percent"),
        max_subgraphs=fields.integer("max_subgraphs"),
        os=fields.text("os"),
        vaip_commit=fields.text("vaip_commit"),
    )


def _subgraph_from_json(fields: Fields) -> SubgraphStats:
    formats = fields.nested("format_percent")
    return SubgraphStats(
        name=fields.text("name"),
        type=fields.text("type"),
        operators=fields.integer("operators"),
        gops=fields.number("gops"),
        ops=fields.integer("ops"),
        format_percent={name: formats.number(name) for name in formats.keys_left()},
    )


def _percent(part: float, whole: float) -> float:
    return 100.0 * part / whole if whole else 0.0


def _values(lines: list[str]) -> dict[str, str]:
    """Return `Key: value` lines up to the subgraphs; the first of two counts."""
    found: dict[str, str] = {}
    for line in lines:
        if line.startswith("Stats for offloaded subgraphs"):
            break
        key, colon, value = line.partition(":")
        if colon:
            found.setdefault(key.strip().lower(), value.strip())
    return found


_NUMBER = r"(\d{1,18}(?:\.\d{1,18})?(?:[eE][+-]?\d{1,2})?)"
_PAIR = re.compile(rf"{_NUMBER}(?:\s*\(\s*{_NUMBER}\s*%\))?(?!\d).*")


def _pair(
    values: Mapping[str, str], key: str, default: str | None = None
) -> tuple[float, float | None]:
    """Return the value and its percentage from `49 (100.000%)` or `49(100.000%)`."""
    text = values.get(key.lower(), default)
    if text is None:
        raise ArtifactError(f"the summary has no line `{key}`", hint=_HINT)
    match = _PAIR.fullmatch(text)
    if not match:
        raise ArtifactError(f"the summary says `{key}: {text[:40]}`", hint=_HINT)
    return float(match[1]), None if match[2] is None else float(match[2])


def _float(values: Mapping[str, str], key: str, default: str | None = None) -> float:
    return _pair(values, key, default)[0]


def _refined(pair: tuple[float, float | None], whole: float) -> float:
    """Return what both the value, rounded to 0.001, and the percentage, rounded to 0.001, allow."""
    value, percent = pair
    if percent is None or not whole:
        return value
    middle, reach = percent / 100 * whole, 0.0005 / 100 * whole
    low, high = max(value - 0.0005, middle - reach), min(value + 0.0005, middle + reach)
    return (low + high) / 2 if low <= high else value


_ERRORS = re.compile(
    r"Number of subgraphs with compilation (?:errors?|issues?)\b[^:]*:\s*(\d{1,18}).*"
)
_BELOW = re.compile(
    r"Number of subgraphs below (?:GOPs% \()?(\d{1,9}(?:\.\d{1,9})?)%[^:]*:\s*(\d{1,18}).*"
)
_ABOVE = re.compile(
    r"Number of subgraphs above max [^(:]*\(\s*(\d{1,18})\s*\)[^:]*:\s*(\d{1,18}).*"
)


def _fallbacks(lines: list[str]) -> tuple[int, int, int, float, int]:
    """Return the three counters, then the threshold and the limit that the lines name."""
    errors, below, above = (_first(pattern, lines) for pattern in (_ERRORS, _BELOW, _ABOVE))
    return (
        int(errors[1]) if errors else 0,
        int(below[2]) if below else 0,
        int(above[2]) if above else 0,
        float(below[1]) if below else 20,
        int(above[1]) if above else 7,
    )


def _first(pattern: re.Pattern[str], lines: list[str]) -> re.Match[str] | None:
    return next(filter(None, map(pattern.fullmatch, lines)), None)


_SUBGRAPH = re.compile(r"Subgraph (\S+) stats:")
_STAT_OPS = re.compile(rf"GOPs\s*:\s*{_NUMBER}[^O]*(?:OPs:\s*([\d,]{{1,24}}))?.*")
_STAT_FORMAT = re.compile(rf"(\w+) ops %:\s*{_NUMBER}.*")


def _subgraphs(lines: list[str], model_gops: float) -> tuple[SubgraphStats, ...]:
    starts = [at for at, line in enumerate(lines) if _SUBGRAPH.fullmatch(line)]
    ends = [*starts[1:], len(lines)] if starts else []
    return tuple(
        _subgraph(lines[start:end], model_gops) for start, end in zip(starts, ends, strict=True)
    )


def _subgraph(lines: list[str], model_gops: float) -> SubgraphStats:
    title = _SUBGRAPH.fullmatch(lines[0])
    values = _values(lines[1:])
    ops = _first(_STAT_OPS, lines[1:])
    if title is None or ops is None:
        raise ArtifactError(f"the summary has no GOPs below `{lines[0]}`", hint=_HINT)
    gops = _refined(_pair(values, "GOPs"), model_gops)
    count = int(ops[2].replace(",", "")) if ops[2] else round(gops * _OPS_PER_GOP)
    formats = filter(None, map(_STAT_FORMAT.fullmatch, lines[1:]))
    return SubgraphStats(
        name=title[1],
        type=values.get("type", ""),
        operators=int(_float(values, "Operators")),
        gops=count / _OPS_PER_GOP if ops[2] else gops,
        ops=count,
        format_percent={match[1]: float(match[2]) for match in formats},
    )
