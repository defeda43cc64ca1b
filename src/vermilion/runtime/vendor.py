"""What AMD's own provider wrote: a cache folder, an EP-context model, a `.rai`.

Read only to say what they hold, whether the plan in them came true, and whether they still fit the
machine. The provider itself takes a cache that another version wrote, without a word
(https://github.com/microsoft/winml-cli/issues/1224).

Sources of the forms: the public copy of the provider's core (github.com/zmaychek84/vaip,
`context.json`, EPContext's attributes), AMD's pages on the compiled model's folder.
"""

from __future__ import annotations

import io
import json
import re
import tarfile
import zipfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import onnx

from vermilion.backends.vitisai.found import Stack
from vermilion.backends.vitisai.reports import read_ep_report
from vermilion.errors import ArtifactError, VermilionError
from vermilion.hardware.targets.npu import TARGET_OF_CODE
from vermilion.runtime.summary import HEADER, Summary, parse_summary

Kind = Literal["cache folder", "EP-context model", "rai file"]

_FINAL = "final-vaiml-pass-summary.txt"
_PRELIMINARY = "preliminary-vaiml-pass-summary.txt"
_TEXTS = (
    _FINAL,
    _PRELIMINARY,
    "context.json",
    "fail_safe_summary.json",
    "vitisai_ep_report.json",
    "aie_unsupported_original_ops_with_reasons.json",
)
_MAX_TEXT_BYTES = 16 << 20
_MAX_MEMBERS = 10_000
_PART = re.compile(r"(?:^|/)(vaiml_par_\d{1,6})/")
_VERSION_ATTRIBUTE = re.compile(r"version(_id)?_of_(\w{1,60})")


@dataclass(frozen=True)
class VendorArtifact:
    """What lies at `path`. `versions` is the compiler's packages: name → version or commit.

    `problems` are files that are damaged, and statements that contradict each other.
    """

    path: str
    kind: Kind
    files: tuple[str, ...]
    size_bytes: int
    parts: tuple[str, ...] = ()
    versions: Mapping[str, str] = field(default_factory=dict)
    summary: Summary | None = None
    preliminary: Summary | None = None
    report: Mapping[str, int] = field(default_factory=dict)
    planned_percent: float | None = None  # `fail_safe_summary.json`, what the front end hoped for
    reasons: Mapping[str, int] = field(default_factory=dict)
    problems: tuple[str, ...] = ()

    def as_json(self) -> dict[str, object]:
        """Return the keys that `cache verify --json` prints for it."""
        return {
            "path": self.path,
            "kind": self.kind,
            "files": len(self.files),
            "size_bytes": self.size_bytes,
            "parts": list(self.parts),
            "versions": dict(self.versions),
            "summary": self.summary.as_json() if self.summary else None,
            "preliminary": self.preliminary.as_json() if self.preliminary else None,
            "report": dict(self.report),
            "planned_percent": self.planned_percent,
            "reasons": dict(self.reasons),
            "problems": list(self.problems),
        }


def read_vendor(path: Path) -> VendorArtifact:
    """Say what an artifact of AMD's provider holds.

    Raises: ArtifactError where it is none.
    """
    if path.is_dir():
        return _from_folder(path)
    if not path.is_file():
        raise ArtifactError("there is no such file or folder", where=str(path))
    if path.suffix == ".onnx":
        return _from_context_model(path)
    return _from_archive(path)


def why_not_reusable(artifact: VendorArtifact, stack: Stack | None) -> tuple[str, ...]:
    """Return the reasons not to run this artifact here; empty where it certainly fits.

    What the vendor keeps with it says nothing of driver, firmware or device: such a cache cannot
    be known to fit, and AMD says not to use one across versions (documentation, modelrun.rst).
    """
    reasons = [f"damaged: {problem}" for problem in artifact.problems]
    if stack is None:
        reasons.append("there is no VitisAI provider here to run it")
        return tuple(reasons)
    written = next(
        (artifact.versions[name] for name in ("voe", "onnxruntime") if name in artifact.versions),
        "",
    )
    if written and written not in (stack.release, stack.provider_version):
        reasons.append(f"it was written by {written}, the provider here is {stack.release}")
    if artifact.summary is not None:
        device = artifact.summary.device
        if device and stack.device not in (device, TARGET_OF_CODE.get(device.split(" ")[0], "")):
            reasons.append(f"it was compiled for `{device}`, this machine has {stack.device}")
    reasons.append("it does not say for which driver and firmware it was compiled")
    return tuple(reasons)


class _Members:
    """Named texts of an artifact, wherever they lie, and what was wrong with them."""

    def __init__(self, names: Iterable[str], read: Callable[[str], bytes]) -> None:
        self.names = tuple(sorted(names))
        self.problems: list[str] = []
        self._read = read

    def text(self, ending: str) -> str | None:
        """Return the first member whose path ends so; None where there is none."""
        name = next((n for n in self.names if n == ending or n.endswith(f"/{ending}")), None)
        return None if name is None else self._read(name).decode("utf-8", errors="replace")

    def parsed(self, ending: str) -> object:
        """Return a JSON member, None where it is not there or is no JSON."""
        text = self.text(ending)
        if text is None:
            return None
        try:
            data: object = json.loads(text)
        except (ValueError, RecursionError):
            self.problems.append(f"`{ending}` is no JSON: it may be cut off")
            return None
        return data

    def summary(self, ending: str) -> Summary | None:
        text = self.text(ending)
        if text is None:
            return None
        try:
            summary = parse_summary(text)
        except ArtifactError as error:
            self.problems.append(f"`{ending}`: {error.message}")
            return None
        missing = _cut_off(text, summary)
        if missing:
            self.problems.append(f"`{ending}` is cut off: {missing}")
            return None
        return summary


def _cut_off(text: str, summary: Summary) -> str:
    """Say what a final summary lacks at its end, empty where it is whole.

    A preliminary one ends before what was offloaded, and is not looked at.
    """
    if HEADER not in text:
        return ""
    for line in ("Number of subgraphs offloaded by VAIML", "Number of subgraphs above max"):
        if line not in text:
            return f"it has no line `{line}`"
    if len(summary.subgraphs) != summary.subgraphs_offloaded:
        there = len(summary.subgraphs)
        return f"it describes {there} of {summary.subgraphs_offloaded} subgraphs"
    return ""


def _from_folder(folder: Path) -> VendorArtifact:
    files = [p for p in sorted(folder.rglob("*")) if p.is_file() and not p.is_symlink()]
    names = {path.relative_to(folder).as_posix(): path for path in files[:_MAX_MEMBERS]}

    def read(name: str) -> bytes:
        with names[name].open("rb") as file:
            return file.read(_MAX_TEXT_BYTES)

    members = _Members(names, read)
    if not _is_vendors(members.names):
        raise ArtifactError(
            "this is no folder of AMD's provider",
            where=str(folder),
            hint="it has no `context.json` and no `vaiml_par_0`",
        )
    size = sum(path.stat().st_size for path in files)
    return _described(str(folder), "cache folder", members, size)


def _is_vendors(names: tuple[str, ...]) -> bool:
    return any(
        name.endswith(("context.json", ".xmodel", _FINAL, _PRELIMINARY)) or _PART.search(name)
        for name in names
    )


def _from_archive(path: Path) -> VendorArtifact:
    """Read a `.rai`: its container is not documented, ZIP and TAR are tried."""
    size = path.stat().st_size
    try:
        if zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as archive:
                infos = {i.filename: i for i in archive.infolist()[:_MAX_MEMBERS]}

                def read(name: str) -> bytes:
                    with archive.open(infos[name]) as file:
                        return file.read(_MAX_TEXT_BYTES)

                return _described(str(path), "rai file", _Members(infos, read), size)
        with tarfile.open(path) as tar:
            return _described(str(path), "rai file", _tar_members(tar), size)
    except (OSError, tarfile.TarError, zipfile.BadZipFile, EOFError) as error:
        raise ArtifactError(
            "this is no archive that can be looked into; AMD's provider writes `.rai` files in a"
            " form that is not documented",
            where=str(path),
            hint="look at the cache folder that it was packed from",
        ) from error


def _tar_members(archive: tarfile.TarFile) -> _Members:
    """Read the texts that are looked at; the archive may be closed afterwards."""
    names: list[str] = []
    texts: dict[str, bytes] = {}
    for member in archive:
        if not member.isfile() or len(names) >= _MAX_MEMBERS:
            continue
        names.append(member.name)
        file = archive.extractfile(member) if member.name.endswith(_TEXTS) else None
        if file is not None:
            texts[member.name] = file.read(_MAX_TEXT_BYTES)
    return _Members(names, lambda name: texts.get(name, b""))


def _from_context_model(path: Path) -> VendorArtifact:
    """Read EPContext nodes; the cache inside the main one is a TAR.

    Source: the provider's core, vitisai_compile_model.cpp; ONNX Runtime, "EP Context Design".
    """
    try:
        proto = onnx.load_model(path, load_external_data=False)
    except Exception as error:  # protobuf's errors share no base that onnx exports
        raise ArtifactError("this is no ONNX model", where=str(path)) from error
    nodes = [node for node in proto.graph.node if node.op_type == "EPContext"]
    if not nodes:
        raise ArtifactError("the model has no EPContext node", where=str(path))
    versions = {k: v for node in nodes for k, v in _versions_of_node(node).items()}
    sources = {_text(node, "source") for node in nodes}
    problems = [
        f"it was written by `{source}`, not by VitisAI"
        for source in sorted(sources)
        if source and "VitisAI" not in source
    ]
    main = next((node for node in nodes if _attribute(node, "main_context", 1)), nodes[0])
    members, found = _context_members(main, path)
    problems += found
    size = path.stat().st_size
    described = _described(str(path), "EP-context model", members, size)
    names = tuple(_text(node, "partition_name") or node.name or "?" for node in nodes)
    return VendorArtifact(
        **{
            **vars(described),
            "parts": described.parts or names,
            "versions": {**described.versions, **versions},
            "problems": (*problems, *described.problems),
        }
    )


def _context_members(main: onnx.NodeProto, path: Path) -> tuple[_Members, list[str]]:
    content = _attribute(main, "ep_cache_context", None)
    nothing = _Members((), lambda _: b"")
    if not isinstance(content, bytes):
        return nothing, ["its main node holds no cache (`ep_cache_context`)"]
    if not _attribute(main, "embed_mode", 1):
        name = content.decode("utf-8", errors="replace")
        beside = path.parent / Path(name).name
        if Path(name).name != name or not beside.is_file():
            return nothing, [f"its cache is in `{name}`, which is not beside it"]
        content = beside.read_bytes()
    try:
        with tarfile.open(fileobj=io.BytesIO(content)) as tar:
            return _tar_members(tar), []
    except (OSError, tarfile.TarError, EOFError):
        return nothing, ["its cache is no TAR: it may be compressed or damaged"]


def _versions_of_node(node: onnx.NodeProto) -> dict[str, str]:
    found: dict[str, str] = {}
    for attribute in node.attribute:
        match = _VERSION_ATTRIBUTE.fullmatch(attribute.name)
        if match:
            value = _text(node, attribute.name)
            found[match[2]] = " ".join(filter(None, (found.get(match[2]), value)))
    return found


def _attribute(node: onnx.NodeProto, name: str, default: object) -> object:
    found = next((a for a in node.attribute if a.name == name), None)
    return default if found is None else onnx.helper.get_attribute_value(found)


def _text(node: onnx.NodeProto, name: str) -> str:
    value = _attribute(node, name, b"")
    return value.decode("utf-8", errors="replace") if isinstance(value, bytes) else str(value)


def _described(path: str, kind: Kind, members: _Members, size_bytes: int) -> VendorArtifact:
    final, preliminary = members.summary(_FINAL), members.summary(_PRELIMINARY)
    report = _report(members)
    versions = _versions(members.parsed("context.json"))
    planned = _planned(members.parsed("fail_safe_summary.json"))
    unsupported = members.parsed("aie_unsupported_original_ops_with_reasons.json")
    problems = [*members.problems, *_contradictions(final, preliminary, planned, report)]
    parts = sorted({match[1] for name in members.names if (match := _PART.search(name))})
    return VendorArtifact(
        path=path,
        kind=kind,
        files=members.names,
        size_bytes=size_bytes,
        parts=tuple(parts),
        versions=versions,
        summary=final,
        preliminary=preliminary,
        report=report,
        planned_percent=planned,
        reasons=_reasons(unsupported),
        problems=tuple(problems),
    )


def _report(members: _Members) -> Mapping[str, int]:
    text = members.text("vitisai_ep_report.json")
    if text is None:
        return {}
    try:
        return read_ep_report(text).devices
    except VermilionError as error:
        members.problems.append(error.message)
        return {}


def _versions(context: object) -> dict[str, str]:
    """Return package → version or commit: `config.version.versionInfos` of `context.json`."""
    for key in ("config", "version", "versionInfos"):
        context = context.get(key) if isinstance(context, dict) else None
    rows = context if isinstance(context, list) else []
    return {
        str(row["packageName"]): str(row.get("version") or row.get("commit") or "")
        for row in rows
        if isinstance(row, dict) and row.get("packageName")
    }


def _planned(summary: object) -> float | None:
    offload = summary.get("offload_map") if isinstance(summary, dict) else None
    share = offload.get("AIE") if isinstance(offload, dict) else None
    return float(share) if isinstance(share, int | float) else None


def _reasons(rows: object) -> dict[str, int]:
    counts: dict[str, int] = {}
    for row in rows if isinstance(rows, list) else []:
        if isinstance(row, dict):
            reason = str(row.get("reason") or row.get("Message") or "no reason given")
            text = f"{row.get('op_type', '?')}: {reason}"
            counts[text] = counts.get(text, 0) + 1
    return counts


def _contradictions(
    final: Summary | None,
    preliminary: Summary | None,
    planned: float | None,
    report: Mapping[str, int],
) -> Iterable[str]:
    """Yield what the files say against each other: a plan of 100 % of which nothing came."""
    offloaded = final.offloaded_operators if final is not None else None
    if planned and offloaded == 0:
        yield f"the front end planned {planned:g} % on the NPU, and nothing was offloaded"
    if preliminary is not None and preliminary.supported_operators == 0 and (planned or offloaded):
        yield "the preliminary summary supports no operator, though a plan says otherwise"
    on_npu = report.get("NPU", report.get("DPU"))
    if report and not on_npu and offloaded:
        yield f"the summary offloads {offloaded} operators, the provider's report has none there"
