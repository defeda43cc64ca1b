"""Findings on a `genai_config.json`: what stops it from loading, and what will surprise.

The texts of onnxruntime-genai 0.18 for the same faults are `JSON Error: … Unknown value` and
`Unknown provider name`, without the place or the way out.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterator, Mapping

from vermilion.clib.library import PROVIDER
from vermilion.errors import ModelError, VermilionError
from vermilion.hardware.checks import LEVELS, Finding, Level
from vermilion.hardware.options.gpu import PLUGIN
from vermilion.hardware.options.lint import lint
from vermilion.hardware.options.option import OptionSet, Setting
from vermilion.llm.genai_config import (
    DECODER_KEYS,
    MODEL_KEYS,
    OLD_KEYS,
    PROVIDERS,
    RYZENAI,
    SEARCH_KEYS,
    SESSION_TYPES,
    STAGE_KEYS,
    TOP_KEYS,
    GenaiConfig,
    is_there,
    leads_out,
    session_options,
)

# From this size on, a cache for the whole context is worth a word before it is allocated.
_LARGE_CACHE_BYTES = 2 << 30


def check_genai_config(config: GenaiConfig) -> tuple[Finding, ...]:
    """Return what is wrong with a folder's configuration, the worst first.

    Raises: ModelError where it is not even a decoder's configuration.
    """
    found = [
        *_keys(config),
        *_objects(config),
        *_files(config),
        *_measures(config),
        *_search(config),
    ]
    for where, options in session_options(config):
        found += _session(where, options)
        found += _packed_weights(config, options)
    return tuple(sorted(found, key=lambda one: LEVELS.index(one.level)))


def _keys(config: GenaiConfig) -> Iterator[Finding]:
    yield from _unknown("", config.data, TOP_KEYS)
    yield from _unknown("model.", config.model, MODEL_KEYS)
    yield from _unknown("model.decoder.", config.decoder, DECODER_KEYS)
    if not isinstance(config.model.get("type"), str):
        yield Finding("genai.type", "error", "`model.type` is missing", "write `llama`, say")
    if isinstance(config.decoder.get("pipeline"), list):
        for name, stage in config.stages():
            yield from _unknown(f"model.decoder.pipeline.{name}.", stage, STAGE_KEYS)
        if config.type != "decoder-pipeline":
            yield Finding(
                "genai.pipeline-type",
                "error",
                f"there is a pipeline, and `model.type` is `{config.type}`: it is not read",
                "write `decoder-pipeline`",
            )


def _objects(config: GenaiConfig) -> Iterator[Finding]:
    """Find what should be an object, or a list, and is none."""
    rows = {"model.decoder": config.decoder, **dict(config.stages())}
    for place, given in rows.items():
        for key, kind in (("session_options", dict), ("pipeline", list)):
            if key in given and not isinstance(given[key], kind):
                what = f"`{key}` of `{place}` is a {type(given[key]).__name__}"
                fix = "write `{}`" if kind is dict else "write a list of stages"
                yield Finding("genai.object", "error", what, fix)
    if isinstance(config.decoder.get("pipeline"), list) and not config.stages():
        yield Finding("genai.object", "error", "the pipeline has no stage", "write one")


def _unknown(place: str, given: Mapping[str, object], known: Collection[str]) -> Iterator[Finding]:
    for key in given:
        if key in known:
            continue
        near = difflib.get_close_matches(key, known, n=1, cutoff=0.7)
        fix = f"write `{near[0]}`" if near else "remove it"
        yield Finding("genai.key", "error", f"`{place}{key}` is no key of onnxruntime-genai", fix)


def _files(config: GenaiConfig) -> Iterator[Finding]:
    for name, stage in config.stages():
        file = stage.get("filename")
        if not isinstance(file, str):
            yield Finding("genai.filename", "error", f"`{name}` names no file", "write `filename`")
        elif leads_out(file):
            yield Finding(
                "genai.file-outside", "error", f"`{file}` leads out of the folder", "move it inside"
            )
        elif not is_there(config.folder, file):
            yield Finding(
                "genai.file-missing",
                "error",
                f"`{file}` is not in the folder",
                "copy it there, or build the folder again",
            )
    if not any((config.folder / name).is_file() for name in ("tokenizer.json", "tokenizer.model")):
        what = "the folder has no tokenizer"
        yield Finding("genai.tokenizer", "error", what, "copy `tokenizer.json` from the model")


def _measures(config: GenaiConfig) -> Iterator[Finding]:
    names = (
        *("num_attention_heads", "num_key_value_heads", "head_size"),
        *("num_hidden_layers", "hidden_size"),
    )
    for name in names:
        try:
            config.measure(name)
        except ModelError as error:
            yield Finding("genai.measure", "error", error.message, "copy it from `config.json`")
            return
    if config.measure("num_attention_heads") % config.measure("num_key_value_heads"):
        what = "`num_attention_heads` is no multiple of `num_key_value_heads`"
        yield Finding("genai.heads", "error", what, "copy both from `config.json`")


def _search(config: GenaiConfig) -> Iterator[Finding]:
    search = config.data.get("search")
    if not isinstance(search, dict):
        yield Finding("genai.search", "warning", "there is no `search`", "write `max_length`")
        return
    yield from _unknown("search.", search, SEARCH_KEYS)
    try:
        context = config.context_length()
    except ModelError as error:
        yield Finding("genai.context", "error", error.message, "copy it from `config.json`")
        return
    longest = search.get("max_length")
    if not isinstance(longest, int) or isinstance(longest, bool) or longest < 1:
        yield Finding("genai.max-length", "error", "`search.max_length` is no number", "write one")
        return
    if longest > context:
        yield Finding(
            "genai.max-length",
            "error",
            f"`search.max_length` is {longest:,}, the model's context {context:,}",
            f"write {context} or less",
        )
    yield from _cache(config, search, min(longest, context))


def _cache(config: GenaiConfig, search: Mapping[str, object], tokens: int) -> Iterator[Finding]:
    """A shared buffer is allocated for `max_length` at once: the usual reason to run out."""
    if search.get("past_present_share_buffer") is not True:
        return
    try:
        size = config.cache_bytes(tokens)
    except VermilionError:
        return  # told by the check of the measures
    if size >= _LARGE_CACHE_BYTES:
        yield Finding(
            "genai.cache-size",
            "warning",
            f"the cache of keys and values is allocated for {tokens:,} tokens:"
            f" {size / 1e9:.1f} GB in 32-bit floats",
            "set a smaller `search.max_length`",
        )


def _session(where: str, options: Mapping[str, object]) -> Iterator[Finding]:
    for key, value in options.items():
        if key in OLD_KEYS:
            yield Finding(
                "genai.old-era",
                "warning",
                f"`{where}.{key}` is for AMD's builds up to Ryzen AI 1.6; others reject it",
                "`vermilion llm config DIR --provider ryzenai --era 1.7` writes today's form",
            )
            continue
        expected = SESSION_TYPES.get(key, str)
        wrong_bool = isinstance(value, bool) and expected is not bool
        if not isinstance(value, expected) or wrong_bool:
            what = f"`{where}.{key}` is a {type(value).__name__}"
            names = {str: "text", bool: "true or false", int: "a number", list: "a list"}
            fix = names.get(expected, "text") if isinstance(expected, type) else "text"
            yield Finding("genai.session-type", "error", what, f"write {fix}")
    library = options.get("custom_ops_library")
    if isinstance(library, str) and ".." in library:
        what = f"`{where}.custom_ops_library` has `..` in it, which is refused"
        yield Finding("genai.library", "error", what, "put the library into the folder")
    entries = options.get("provider_options")
    if isinstance(entries, list):
        for entry in entries:
            yield from _entry(where, entry)


def _packed_weights(config: GenaiConfig, options: Mapping[str, object]) -> Iterator[Finding]:
    """Look for the packed weights of a hybrid model, which both eras name."""
    named = [options.get("external_data_file")]
    entries = options.get("provider_options")
    for entry in entries if isinstance(entries, list) else []:
        own = entry.get("RyzenAI") if isinstance(entry, dict) else None
        named += [own.get("external_data_file")] if isinstance(own, dict) else []
    for file in named:
        if isinstance(file, str) and (leads_out(file) or not is_there(config.folder, file)):
            yield Finding(
                "genai.packed-missing",
                "error",
                f"the packed weights `{file}` are not in the folder",
                "only a hybrid or NPU folder, made by the vendor's `model_generate`, has them",
            )


def _entry(where: str, entry: object) -> Iterator[Finding]:
    if not isinstance(entry, dict) or not entry:
        what = f"`{where}.provider_options` holds what is no object"
        yield Finding("genai.entry", "error", what, 'write `{"MIGraphX": {…}}`')
        return
    if "name" in entry:
        what = 'the form `{"name": …, "options": …}` is not read'
        yield Finding("genai.entry-form", "error", what, f'write `{{"{entry["name"]}": {{…}}}}`')
        return
    for name, options in entry.items():
        if not isinstance(options, dict):
            what = f"the options of `{name}` are no object"
            yield Finding("genai.entry", "error", what, f'write `{{"{name}": {{}}}}`')
            continue
        yield from _provider(str(name), options)


def _provider(name: str, options: Mapping[str, object]) -> Iterator[Finding]:
    if name == PROVIDER:  # our plugin, which is registered when the folder is opened
        return
    if name not in PROVIDERS:
        by_lower = {known.lower(): known for known in PROVIDERS}
        near = difflib.get_close_matches(name.lower(), by_lower, n=1, cutoff=0.7)
        what = f"`{name}` is no provider of onnxruntime-genai"
        fix = f"write `{by_lower[near[0]]}`" if near else "register a plugin of that name first"
        yield Finding("genai.provider", "error" if near else "warning", what, fix)
        return
    own = {key: value for key, value in options.items() if key != "device_filtering_options"}
    for key, value in own.items():
        if not isinstance(value, str):
            what = f"`{name}.{key}` is a {type(value).__name__}; every value must be text"
            yield Finding("genai.value-type", "error", what, f'write "{_as_text(value)}"')
    texts = {key: _as_text(value) for key, value in own.items()}
    if name == "CPU" and own:
        yield Finding("genai.cpu-options", "error", "the CPU takes no options", "remove them")
    elif name == "RyzenAI":
        yield from _ryzenai(texts)
    else:
        yield from _linted(name, texts)


def _ryzenai(options: Mapping[str, str]) -> Iterator[Finding]:
    for key, value in options.items():
        option = RYZENAI.find(key)
        if option is None:
            near = RYZENAI.nearest(key)
            fix = f"write `{near}`" if near else "remove it"
            yield Finding("genai.ryzenai-key", "error", f"`{key}` is no option of RyzenAI", fix)
        elif not option.takes(value):
            what = f"`{value}` is no value of `{key}`"
            yield Finding("genai.ryzenai-value", "error", what, f"write {option.expected}")
    longest = options.get("hybrid_opt_max_seq_length", "")
    chunked = options.get("hybrid_opt_chunk_context") == "1"
    is_long = longest.isdecimal() and (len(longest) > 9 or int(longest) > 4096)
    if is_long and not chunked:
        yield Finding(
            "genai.ryzenai-chunk",
            "error",
            f"{longest} tokens, and prompts over 4096 need chunks",
            "`hybrid_opt_chunk_context` = `1`, and `search.chunk_size` = 2048",
        )


def _linted(name: str, options: Mapping[str, str]) -> Iterator[Finding]:
    """Hold a GPU's entry against the table of its build: a full name is the plugin's."""
    is_plugin = name.endswith("ExecutionProvider") or name == "AMDGPU"
    given = OptionSet(PROVIDERS[name], options)
    for problem in lint(given, Setting(build=PLUGIN if is_plugin else "")).problems:
        level: Level = problem.level
        yield Finding(problem.id, level, f"{name}: {problem.what}", problem.fix)


def _as_text(value: object) -> str:
    return {True: "1", False: "0"}.get(value, str(value)) if isinstance(value, bool) else str(value)
