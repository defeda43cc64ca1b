"""`genai_config.json`: the one file that says how onnxruntime-genai runs a folder."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import cast

from vermilion.errors import ModelError, OptionError
from vermilion.llm.json_file import read_object

NAME = "genai_config.json"


@dataclass(frozen=True)
class GenaiConfig:
    """A folder's configuration, as written. The folder may be moved, so names are relative."""

    folder: Path
    data: Mapping[str, object]

    @property
    def where(self) -> str:
        """The file, for messages."""
        return str(self.folder / NAME)

    @property
    def model(self) -> Mapping[str, object]:
        """The object `model`."""
        return _object(self.data, "model", self.where)

    @property
    def decoder(self) -> Mapping[str, object]:
        """The object `model.decoder`."""
        return _object(self.model, "decoder", self.where)

    @property
    def type(self) -> str:
        """The kind of model: `llama`, `phi3`, `decoder-pipeline` …."""
        return str(self.model.get("type", ""))

    def stages(self) -> tuple[tuple[str, Mapping[str, object]], ...]:
        """Return the sessions that are opened, by name: the pipeline's, or the one decoder."""
        pipeline = self.decoder.get("pipeline")
        if not isinstance(pipeline, list):
            return (("decoder", self.decoder),)
        return tuple(
            (str(name), cast("Mapping[str, object]", stage))
            for entry in pipeline
            if isinstance(entry, dict)
            for name, stage in entry.items()
            if isinstance(stage, dict)
        )

    def model_files(self) -> tuple[str, ...]:
        """Return the ONNX files, relative to the folder.

        Raises: ModelError if there is none, or one leads out of the folder.
        """
        files = tuple(
            str(stage["filename"])
            for _, stage in self.stages()
            if isinstance(stage.get("filename"), str)
        )
        if not files:
            raise ModelError(
                "the configuration names no model: `model.decoder.filename` is missing",
                where=self.where,
                hint="build the folder again with `vermilion llm build`",
            )
        for file in files:
            if leads_out(file):
                raise ModelError(f"`{file}` leads out of the folder", where=self.where)
        return files

    def measure(self, name: str) -> int:
        """Return a whole number above zero of the decoder.

        Raises: ModelError if it is none.
        """
        return _positive(self.decoder.get(name), f"model.decoder.{name}", self.where)

    def head_size(self) -> int:
        """Return the size of an attention head."""
        return self.measure("head_size")

    def context_length(self) -> int:
        """Return the most tokens that the model was made for."""
        value = self.model.get("context_length")
        return _positive(value, "model.context_length", self.where)

    def cache_bytes(self, tokens: int, element_bytes: int = 4) -> int:
        """Return the size of the cache of keys and values for so many tokens."""
        heads, size = self.measure("num_key_value_heads"), self.head_size()
        return 2 * self.measure("num_hidden_layers") * heads * size * tokens * element_bytes


def read_genai_config(folder: Path) -> GenaiConfig:
    """Read a folder's configuration; what it says is checked by whoever uses it.

    Raises: OptionError for a folder that has none; ModelError if it is damaged.
    """
    if folder.name == NAME and folder.is_file():
        folder = folder.parent
    if folder.is_file():
        raise OptionError(
            "this is a file, and a folder of onnxruntime-genai is wanted",
            where=str(folder),
            hint=f"build one of it: `vermilion llm build {folder} -o FOLDER`"
            if folder.suffix == ".gguf"
            else f"give the folder that has `{NAME}`",
        )
    if not folder.is_dir():
        raise OptionError("no such folder", where=str(folder), hint="check the path")
    if not (folder / NAME).is_file():
        raise OptionError(
            f"this is no folder of onnxruntime-genai: it has no `{NAME}`",
            where=str(folder),
            hint=_other_folder(folder),
        )
    return GenaiConfig(folder, read_object(folder / NAME))


def session_options(config: GenaiConfig) -> Iterator[tuple[str, Mapping[str, object]]]:
    """Yield every object of session options, with the words that say where it stands."""
    own = config.decoder.get("session_options")
    if isinstance(own, dict):
        yield "model.decoder.session_options", own
    if isinstance(config.decoder.get("pipeline"), list):
        for name, stage in config.stages():
            options = stage.get("session_options")
            if isinstance(options, dict):
                yield f"model.decoder.pipeline.{name}.session_options", options


def leads_out(file: str) -> bool:
    """Say whether a relative name is none, or climbs out of its folder."""
    name = PurePosixPath(file.replace("\\", "/"))
    return name.is_absolute() or ".." in name.parts or ":" in file or not name.parts


def is_there(folder: Path, file: str) -> bool:
    """Say whether a file is in the folder; a name that no file can have is not."""
    try:
        return (folder / file).is_file()
    except (OSError, ValueError):
        return False


def _other_folder(folder: Path) -> str:
    if (folder / "config.json").is_file():
        return f"this is a Hugging Face model: `vermilion llm build {folder} -o DIR` first"
    return "build one with `vermilion llm build`"


def _object(data: Mapping[str, object], key: str, where: str) -> Mapping[str, object]:
    value = data.get(key)
    if not isinstance(value, dict):
        raise ModelError(
            f"the configuration has no `{key}`",
            where=where,
            hint="it was not written by onnxruntime-genai's model builder, or is damaged",
        )
    return cast("Mapping[str, object]", value)


def _positive(value: object, name: str, where: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 < value < 1 << 31:
        raise ModelError(
            f"`{name}` is {value!r}, not a whole number above zero",
            where=where,
            hint="build the folder again",
        )
    return value
