"""What options ask for: read once, with the words for all that has no meaning here.

Loads no ONNX Runtime: whoever passes no options has none of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from vermilion.ort.facts import (
    CONFIG_ENTRIES,
    DEFAULTS,
    KEYWORDS,
    RUN_CONFIG_ENTRIES,
    RUN_OPTIONS,
    SESSION_OPTIONS,
    Fact,
    fact_of,
)

_WARNING = 2  # ONNX Runtime's severity, and its default

# Of options that ONNX Runtime's own class made, which tells of an entry only by its name.
_ASKED_FOR = (
    "session.load_model_format",
    "session.record_ep_graph_assignment_info",
    "session.model_external_initializers_file_folder_path",
    "session.intra_op.allow_spinning",
    "session.inter_op.allow_spinning",
    "session.set_denormal_as_zero",
    "session.disable_prepacking",
    "session.use_env_allocators",
    "session.use_device_allocator_for_initializers",
    "session.intra_op_thread_affinities",
    "session.disable_quant_qdq",
    "session.qdqisint8allowed",
    "ep.context_enable",
)


@dataclass(frozen=True)
class Asked:
    """What a session's options ask for.

    `reasons` say why ONNX Runtime itself has to run the model, `notes` what does not apply.
    """

    threads: int = 0
    sizes: Mapping[str, int] = field(default_factory=dict)
    sizes_by_denotation: Mapping[str, int] = field(default_factory=dict)
    is_profiled: bool = False
    profile_prefix: str = ""
    severity: int = _WARNING
    log_id: str = ""
    writes_optimized: bool = False
    records_assignment: bool = False
    enable_fallback: bool = True
    reasons: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def read_options(options: Any, keywords: Mapping[str, Any]) -> Asked:
    """Read `SessionOptions` and what else was given to `InferenceSession`.

    Raises: TypeError for options that are none, as ONNX Runtime does.
    """
    notes = list(_keyword_notes(keywords))
    enable_fallback = int(keywords.get("enable_fallback", 1)) == 1
    if options is None:
        return Asked(notes=tuple(notes), enable_fallback=enable_fallback)
    _check_kind(options, "SessionOptions")
    entries = _entries(options)
    called: list[str] = list(getattr(options, "called", ()))
    if not hasattr(options, "called") and options.has_providers():
        called.append("add_provider")
    reasons = [f"`{name}` {SESSION_OPTIONS[name].words}" for name in dict.fromkeys(called)]
    for entry, value in entries.items():
        fact = fact_of(entry, CONFIG_ENTRIES)
        if fact is not None and fact.kind == "onnxruntime":
            reasons.append(f"`{entry}` {fact.words}")
        elif entry == "session.load_model_format" and value == "ORT":
            reasons.append(f"`{entry}` is `ORT`")
        else:
            notes += _note(entry, fact)
    for name, usual in DEFAULTS.items():
        given: Any = getattr(options, name, usual)
        if getattr(given, "name", given) != usual and not _is_one_thread(name, given):
            notes += _note(name, SESSION_OPTIONS[name])
    severity = int(options.log_severity_level)
    return Asked(
        threads=int(options.intra_op_num_threads),
        sizes=dict(getattr(options, "sizes_by_name", {})),
        sizes_by_denotation=dict(getattr(options, "sizes_by_denotation", {})),
        is_profiled=bool(options.enable_profiling),
        profile_prefix=str(options.profile_file_prefix),
        severity=_WARNING if severity < 0 else severity,
        log_id=str(options.logid),
        writes_optimized=bool(options.optimized_model_filepath),
        records_assignment=entries.get("session.record_ep_graph_assignment_info") == "1",
        enable_fallback=enable_fallback,
        reasons=tuple(reasons),
        notes=tuple(notes),
    )


@dataclass(frozen=True)
class AskedOfRun:
    """What the options of one run ask for; as above."""

    reasons: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def read_run_options(options: Any) -> AskedOfRun:
    """Read `RunOptions`. Raises: TypeError for what is none, as ONNX Runtime does."""
    _check_kind(options, "RunOptions")
    called = dict.fromkeys(getattr(options, "called", ()))
    reasons = [f"`{name}` {RUN_OPTIONS[name].words}" for name in called]
    notes: list[str] = []
    if options.only_execute_path_to_fetches:
        name = "only_execute_path_to_fetches"
        notes += _note(name, RUN_OPTIONS[name])
    for entry in getattr(options, "entries", ()):
        notes += _note(entry, fact_of(entry, RUN_CONFIG_ENTRIES))
    return AskedOfRun(tuple(reasons), tuple(notes))


def does_not_apply(name: str, words: str) -> str:
    """Return what is said of a name without a meaning here."""
    return f"`{name}` does not apply: {words}"


def _note(name: str, fact: Fact | None) -> Iterable[str]:
    if fact is None:
        return [f"`{name}` is unknown, here and to ONNX Runtime's documentation: it is not used"]
    return [does_not_apply(name, fact.words)] if fact.kind == "named" else []


def _is_one_thread(name: str, value: object) -> bool:
    """Say whether it is the usual way to write that operators do not run side by side."""
    return name == "inter_op_num_threads" and value == 1


def _keyword_notes(keywords: Mapping[str, Any]) -> Iterable[str]:
    for name, value in keywords.items():
        fact = KEYWORDS.get(name)
        if fact is None:
            yield f"`{name}` is no argument of a session: it is not used"
        elif value:
            yield from _note(name, fact)


def _entries(options: Any) -> Mapping[str, str]:
    told: Mapping[str, str] | None = getattr(options, "entries", None)
    if told is not None:
        return told
    found = {}
    for key in _ASKED_FOR:
        try:
            found[key] = str(options.get_session_config_entry(key))
        except RuntimeError:  # it was not added
            continue
    return found


def _check_kind(options: Any, name: str) -> None:
    if not any(kind.__name__ == name for kind in type(options).__mro__):
        raise TypeError(f"options are ONNX Runtime's `{name}` or None, not {type(options)}")
