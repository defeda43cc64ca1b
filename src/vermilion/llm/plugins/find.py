"""Looking operators up in the plugins that are there, each look-up told to whoever asks."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from vermilion.errors import ArtifactError, OptionError
from vermilion.llm.plugins.archive import Entry, Plugin, read_plugin
from vermilion.llm.plugins.identity import Identity, key_of
from vermilion.llm.plugins.programs import Programs

ROOT_VARIABLE = "DD_PLUGINS_ROOT"
TRACING_VARIABLE = "DD_PLUGINS_TRACING"
DEFAULT_FOLDER = "dd_plugins"

_MOST_SHOWN = 8

Trace = Callable[[str], None]


@dataclass(frozen=True)
class Found:
    """Where an operator's code is."""

    identity: Identity
    plugin: Plugin
    entry: Entry

    @property
    def data(self) -> bytes:
        """Its machine code."""
        return self.plugin.object_of(self.entry)


@dataclass(frozen=True)
class Missing:
    """An operator that no plugin has, and what was met instead."""

    identity: Identity
    reason: str


@dataclass(frozen=True)
class Plugins:
    """The plugins of one folder."""

    root: Path
    plugins: tuple[Plugin, ...]

    def find(self, identity: Identity, trace: Trace) -> Found | Missing:
        """Look one operator up: first plugin first."""
        key = key_of(identity)
        stale = foreign = ""
        for plugin in self.plugins:
            for entry in plugin.entries:
                if entry.key != key:
                    if entry.identity.as_json() == identity.as_json():
                        stale = f"`{plugin.path.name}` has it from another version"
                    continue
                if not plugin.is_signed_here:
                    foreign = f"`{plugin.path.name}` was compiled elsewhere: its code is not run"
                    continue
                trace(f"{identity.words()}: {plugin.path.name}, {entry.member}")
                return Found(identity, plugin, entry)
        reason = foreign or stale or "in no plugin"
        trace(f"{identity.words()}: missing, {reason}")
        return Missing(identity, reason)

    def programs(self, architecture: str, trace: Trace) -> Programs | None:
        """Return the engine's programs for an architecture, None where no plugin has them."""
        for plugin in self.plugins:
            for one in plugin.programs:
                if one.architecture == architecture and plugin.is_signed_here:
                    trace(f"the engine's programs: {plugin.path.name}, {len(one.files)} files")
                    return one
        trace("the engine's programs: in no plugin, it compiles them when it opens the model")
        return None

    def find_all(
        self, identities: Iterable[Identity], trace: Trace
    ) -> tuple[list[Found], list[Missing]]:
        """Look several up."""
        looked = [self.find(identity, trace) for identity in identities]
        found = [one for one in looked if isinstance(one, Found)]
        return found, [one for one in looked if isinstance(one, Missing)]


def plugin_root(environment: Mapping[str, str] | None = None) -> Path:
    """Return the folder that is searched: `DD_PLUGINS_ROOT`, or `dd_plugins` in the current one."""
    values = os.environ if environment is None else environment
    return Path(values.get(ROOT_VARIABLE) or DEFAULT_FOLDER)


def is_tracing(environment: Mapping[str, str] | None = None) -> bool:
    """Say whether `DD_PLUGINS_TRACING` asks for every look-up to be told."""
    values = os.environ if environment is None else environment
    return values.get(TRACING_VARIABLE, "0") not in ("", "0")


def open_plugins(root: Path, trace: Trace) -> Plugins:
    """Read every plugin of a folder; a folder that is not there holds none.

    Raises: OptionError for a root that is no folder; ArtifactError for a plugin that is damaged
    or foreign.
    """
    if root.is_file():
        raise OptionError(
            "the plugins' root is a file, not the folder that holds them",
            where=str(root),
            hint=f"set `{ROOT_VARIABLE}` to {root.parent}",
        )
    if not root.is_dir():
        trace(f"no folder {root}: no plugins")
        return Plugins(root, ())
    plugins = []
    for path in sorted(root.glob("*.zip")):
        plugin = read_plugin(path)
        trace(f"{path}: {len(plugin.entries)} operators, written by Vermilion {plugin.made_by}")
        plugins.append(plugin)
    return Plugins(root, tuple(plugins))


def missing_error(missing: Sequence[Missing], root: Path, command: str) -> ArtifactError:
    """Return the error for operators that no plugin has, with the command that compiles them."""
    shapes: dict[str, list[Missing]] = {}
    for one in missing:
        shapes.setdefault(one.identity.shape_words(), []).append(one)
    shown = [_shape_line(words, group) for words, group in list(shapes.items())[:_MOST_SHOWN]]
    more = f"; and {len(shapes) - _MOST_SHOWN} shapes more" if len(shapes) > _MOST_SHOWN else ""
    return ArtifactError(
        f"{len(shapes)} operator shapes are not compiled: {'; '.join(shown)}{more}",
        where=str(root),
        hint=f"compile them: `{command}`, and put the plugin into {root}",
    )


def _shape_line(words: str, group: Sequence[Missing]) -> str:
    rows = ", ".join(str(one.identity.rows) for one in group)
    reasons = "; ".join(dict.fromkeys(one.reason for one in group))
    return f"{words} for {rows} rows: {reasons}"
