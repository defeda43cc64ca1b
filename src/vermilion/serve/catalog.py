"""The models that a server has: by name and version, where they lie, and whether they are loaded.

Paths come from who starts the server alone. A request names a model, which is looked up here.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol

from vermilion.errors import OptionError, VermilionError, first_line
from vermilion.files import near_name
from vermilion.serve.refusals import NotReadyError, NotServedError

Kind = Literal["network", "language", "encoder"]
State = Literal["UNAVAILABLE", "LOADING", "READY", "UNLOADING"]

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_CLOSING_S = 1.0
_SUFFIXES = (".onnx", ".rai", ".gguf")


@dataclass(frozen=True)
class Place:
    """Where a model lies, and what it is. `target` stands behind its name, `@target`."""

    kind: Kind
    path: Path
    target: str = ""
    is_compiled: bool = False


class Served(Protocol):
    """A model that is loaded."""

    @property
    def is_ready(self) -> bool:
        """Whether it answers: a process of it lives, and has run the model."""
        ...

    @property
    def is_open(self) -> bool:
        """Whether it takes requests: those that come while a process is started again wait."""
        ...

    @property
    def reason(self) -> str:
        """Why it is not ready; nothing where it is."""
        ...

    def close(self, *, now: bool = False) -> None:
        """Let go of it: when what it computes is finished, or at once."""
        ...


@dataclass(eq=False)
class Version:
    """One version of a model: `doing` says what is done to it, `refused` why it did not load."""

    name: str
    number: str
    place: Place
    doing: Literal["", "LOADING", "UNLOADING"] = ""
    refused: str = ""
    served: Served | None = None
    lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def state(self) -> State:
        """What the model itself says now: no word that is kept outlives its processes."""
        served = self.served
        if self.doing:
            return self.doing
        if served is None or not served.is_open:
            return "UNAVAILABLE"
        return "READY" if served.is_ready else "LOADING"

    @property
    def reason(self) -> str:
        """Why it is not ready, where that is known."""
        served = self.served
        return self.refused if served is None else served.reason


Open = Callable[[str, Place], Served]


class Catalog:
    """All models. For several threads."""

    def __init__(self, places: Mapping[str, Mapping[str, Place]], open_place: Open) -> None:
        """Take places by name and version; nothing is loaded yet."""
        self._open = open_place
        self._models = {
            name: {number: Version(name, number, place) for number, place in versions.items()}
            for name, versions in places.items()
        }

    def names(self) -> list[str]:
        """Return the names of all models."""
        return list(self._models)

    def versions(self, name: str) -> list[Version]:
        """Return a model's versions, the newest last. Raises: NotServedError."""
        if name not in self._models:
            raise NotServedError(f"there is no model `{name[:128]}`")
        return list(self._models[name].values())

    def version(self, name: str, number: str = "") -> Version:
        """Return a version, the newest where none is named. Raises: NotServedError."""
        versions = self.versions(name)
        if not number:
            return versions[-1]
        found = next((one for one in versions if one.number == number), None)
        if found is None:
            known = ", ".join(one.number for one in versions)
            raise NotServedError(
                f"`{name}` has no version `{number[:128]}`", hint=f"it has {known}"
            )
        return found

    def served(self, name: str, number: str = "") -> Served:
        """Return a model that takes requests. Raises: NotServedError, NotReadyError."""
        version = self.version(name, number)
        served = version.served
        if served is None or not served.is_open:
            reason = version.reason or version.state.lower()
            raise NotReadyError(f"`{name}` is not ready: {reason}")
        return served

    def all(self) -> Iterator[Version]:
        """Yield every version of every model."""
        for versions in self._models.values():
            yield from versions.values()

    def is_ready(self) -> bool:
        """Whether every model that was to be loaded answers."""
        wanted = [one for one in self.all() if one.state != "UNAVAILABLE" or one.reason]
        return all(one.state == "READY" for one in wanted)

    def expect_all(self) -> None:
        """Note that all models are about to be loaded: until they are, the server is not ready."""
        for version in self.all():
            version.doing = "LOADING"

    def load(self, name: str) -> None:
        """Load all versions of a model that are not. Raises: NotServedError, VermilionError."""
        failed: VermilionError | None = None
        for version in self.versions(name):
            with version.lock:
                try:
                    if version.served is None or not version.served.is_open:
                        self._load(version)
                except VermilionError as error:
                    version.refused = error.message
                    failed = failed or error
                except Exception as error:
                    version.refused = f"a fault of the server: {first_line(error)}"
                    raise
                finally:
                    version.doing = ""
        if failed is not None:
            raise failed

    def unload(self, name: str) -> None:
        """Unload all versions of a model. Raises: NotServedError."""
        for version in self.versions(name):
            with version.lock:
                version.doing = "UNLOADING"
                try:
                    _close(version)
                finally:
                    version.doing, version.refused = "", ""

    def _load(self, version: Version) -> None:
        version.doing, version.refused = "LOADING", ""
        _close(version)
        version.served = self._open(version.name, version.place)

    def close(self) -> None:
        """Let go of all of them at once; one that is being loaded ends with the process."""
        for version in self.all():
            if version.lock.acquire(timeout=_CLOSING_S):
                try:
                    _close(version, now=True)
                finally:
                    version.lock.release()


def _close(version: Version, *, now: bool = False) -> None:
    served, version.served = version.served, None
    if served is not None:
        served.close(now=now)


def find_models(words: Sequence[str]) -> dict[str, dict[str, Place]]:
    """Return what the command line names: `MODEL`, `FOLDER` of models or `NAME=PATH`.

    Raises: OptionError for what is no model, and for two of one name.
    """
    found: dict[str, dict[str, Place]] = {}
    for word in words:
        name, equals, rest = word.partition("=")
        if not equals or Path(word).exists():
            name, rest = "", word
        path, target = _placed(rest)
        if not path.exists():
            hint = near_name(path)
            raise OptionError("there is no such model or folder", where=str(path), hint=hint)
        models = _models_at(path, target, name)
        if not models:
            raise OptionError(
                "no model is here",
                where=str(path),
                hint="an ONNX file, a `.rai`, a GGUF file, a folder of one of them, or a folder of "
                "models: `NAME/1/model.onnx`, `NAME.onnx`",
            )
        for own, versions in models.items():
            if not _NAME.fullmatch(own):
                raise OptionError(
                    f"`{own}` is no name for a model: letters, digits, `.`, `_` and `-`",
                    where=str(path),
                    hint="give it one: `NAME=PATH`",
                )
            if own in found:
                raise OptionError(
                    f"two models are called `{own}`", hint="give them names: `NAME=PATH`"
                )
            found[own] = versions
    return found


def _placed(word: str) -> tuple[Path, str]:
    """Take a path and what stands behind its `@` apart."""
    if "@" not in word:
        return Path(word), ""
    from vermilion.runtime.placement_line import named_place

    return named_place(word)


def _models_at(path: Path, target: str, name: str) -> dict[str, dict[str, Place]]:
    place = _place(path, target)
    if place is not None:
        return {name or _name_of(path): {"1": place}}
    if not path.is_dir():
        return {}
    versions = _versions(path, target)
    if versions:
        return {name or path.name: versions}
    found: dict[str, dict[str, Place]] = {}
    for child in sorted(path.iterdir()):
        own = _place(child, target)
        if own is not None:
            found[_name_of(child)] = {"1": own}
        elif child.is_dir() and (several := _versions(child, target)):
            found[child.name] = several
    if name and found:
        raise OptionError(
            f"`{name}` is a name for one model, and the folder has {len(found)}", where=str(path)
        )
    return found


def _versions(folder: Path, target: str) -> dict[str, Place]:
    """Return the versions of a model: folders whose names are numbers, the newest last."""
    children = [child for child in folder.iterdir() if re.fullmatch(r"[0-9]{1,18}", child.name)]
    found = {}
    for child in sorted(children, key=lambda one: int(one.name)):
        place = _place(child, target)
        if place is not None:
            found[child.name] = place
    return found


def _name_of(path: Path) -> str:
    return path.stem if path.suffix in _SUFFIXES else path.name


def _place(path: Path, target: str) -> Place | None:
    """Return what a path is; None where it is no model."""
    if path.is_file():
        if path.suffix == ".gguf":
            return _language(path, target)
        if path.suffix == ".rai":
            return _compiled(path, target)
        return Place("network", path, target) if path.suffix in _SUFFIXES else None
    if not path.is_dir():
        return None
    if (path / "manifest.json").is_file():
        return _compiled(path, target)
    if (path / "genai_config.json").is_file():
        return _language(path, target)
    has_tokenizer = (path / "tokenizer.json").is_file()
    for file in ("model.onnx", "onnx/model.onnx"):
        if has_tokenizer and (path / file).is_file():
            return Place("encoder", path, target)
    if (path / "config.json").is_file() and any(path.glob("*.safetensors")):
        return _language(path, target)
    if (path / "model.onnx").is_file():
        return Place("network", path / "model.onnx", target)
    if (path / "model.rai").is_file():
        return _compiled(path / "model.rai", target)
    return None


def _language(path: Path, target: str) -> Place:
    if target:
        raise OptionError(
            f"a language model runs on this machine's CPU, not on `{target}`",
            where=str(path),
            hint=f"leave `@{target}` out",
        )
    return Place("language", path)


def _compiled(path: Path, target: str) -> Place:
    if target:
        raise OptionError(
            f"the model is compiled, and runs where it was compiled for, not on `{target}`",
            where=str(path),
            hint=f"leave `@{target}` out, or serve the ONNX file",
        )
    return Place("network", path, is_compiled=True)


def check_dims(places: Mapping[str, Mapping[str, Place]], dims: Mapping[str, object]) -> None:
    """Raise OptionError where sizes are given (`--dim`) and a model has no dynamic ones."""
    if not dims:
        return
    for name, versions in places.items():
        for place in versions.values():
            if place.kind == "language" or place.is_compiled:
                what = "a language model" if place.kind == "language" else "compiled"
                raise OptionError(
                    f"`--dim {next(iter(dims))}` is for ONNX files, and `{name}` is {what}",
                    where=str(place.path),
                    hint="serve it without `--dim`; a server of its own can have the others",
                )
