from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import llm_folders
from vermilion.errors import ModelError, OptionError, VermilionError
from vermilion.llm.genai_check import check_genai_config
from vermilion.llm.genai_config import GenaiConfig, read_genai_config
from vermilion.llm.genai_write import ProviderRequest, with_provider, write_genai_config

Data = dict[str, Any]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return llm_folders.oga_folder(tmp_path / "oga")


def session(data: Data) -> Data:
    options: Data = data["model"]["decoder"]["session_options"]
    return options


def found(folder: Path, change: Callable[[Data], object]) -> dict[str, str]:
    """Return the findings on a configuration that was changed, by their id."""
    data = copy.deepcopy(llm_folders.genai_data())
    change(data)
    return {
        one.id: f"{one.what}; {one.fix}" for one in check_genai_config(GenaiConfig(folder, data))
    }


def with_entry(entry: object) -> Callable[[Data], object]:
    return lambda data: session(data).update(provider_options=[entry])


def test_what_the_builder_writes_is_sound(folder: Path) -> None:
    config = read_genai_config(folder)
    assert check_genai_config(config) == ()
    assert config.model_files() == ("model.onnx",)
    assert config.cache_bytes(128) == 2 * 2 * 2 * 16 * 128 * 4


FAULTS: dict[str, tuple[Callable[[Data], object], str, str]] = {
    "a key that is none": (
        lambda d: d["model"].update(contxt_length=4096),
        "genai.key",
        "write `context_length`",
    ),
    "a search that is longer than the context": (
        lambda d: d["search"].update(max_length=4096),
        "genai.max-length",
        "write 128 or less",
    ),
    "a number as text of the session": (
        lambda d: session(d).update({"session.intra_op.allow_spinning": 0}),
        "genai.session-type",
        "write text",
    ),
    "threads as text": (
        lambda d: session(d).update(intra_op_num_threads="2"),
        "genai.session-type",
        "write a number",
    ),
    "a file that is not there": (
        lambda d: d["model"]["decoder"].update(filename="other.onnx"),
        "genai.file-missing",
        "not in the folder",
    ),
    "a file outside": (
        lambda d: d["model"]["decoder"].update(filename="../model.onnx"),
        "genai.file-outside",
        "leads out",
    ),
    "heads that do not divide": (
        lambda d: d["model"]["decoder"].update(num_key_value_heads=3),
        "genai.heads",
        "no multiple",
    ),
    "keys up to 1.6": (
        lambda d: session(d).update(config_entries={"dd_cache": "x"}),
        "genai.old-era",
        "--era 1.7",
    ),
    "the form of a fork": (
        with_entry({"name": "MIGraphX", "options": {"device_id": "0"}}),
        "genai.entry-form",
        '{"MIGraphX": {…}}',
    ),
    "a name in the wrong case": (with_entry({"migraphx": {}}), "genai.provider", "`MIGraphX`"),
    "a number as an option": (
        with_entry({"MIGraphX": {"device_id": 0}}),
        "genai.value-type",
        'write "0"',
    ),
    "the plugin's spelling for the built-in": (
        with_entry({"MIGraphX": {"fp16_enable": "1"}}),
        "gpu.prefix",
        "`migraphx_fp16_enable`",
    ),
    "the built-in's spelling for the plugin": (
        with_entry({"MIGraphXExecutionProvider": {"migraphx_model_cache_dir": "c"}}),
        "gpu.prefix",
        "`cache_dir`",
    ),
    "options of the CPU": (with_entry({"CPU": {"x": "1"}}), "genai.cpu-options", "no options"),
    "an unknown option of RyzenAI": (
        with_entry({"RyzenAI": {"hybrid_opt_free_after_prefil": "1"}}),
        "genai.ryzenai-key",
        "hybrid_opt_free_after_prefill",
    ),
    "long prompts without chunks": (
        with_entry({"RyzenAI": {"hybrid_opt_max_seq_length": "16384"}}),
        "genai.ryzenai-chunk",
        "chunk_size",
    ),
    "packed weights that are not there": (
        with_entry({"RyzenAI": {"external_data_file": "model_jit.pb.bin"}}),
        "genai.packed-missing",
        "model_jit.pb.bin",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_each_fault_is_found_with_what_mends_it(folder: Path, fault: str) -> None:
    change, id, words = FAULTS[fault]
    findings = found(folder, change)
    assert words in findings[id]


def test_a_cache_for_a_long_context_is_told(folder: Path) -> None:
    def long(data: Data) -> None:
        data["model"]["context_length"] = data["search"]["max_length"] = 1 << 24

    assert "8.6 GB" in found(folder, long)["genai.cache-size"]


def test_folders_and_files_that_are_none(tmp_path: Path, folder: Path) -> None:
    with pytest.raises(OptionError, match="no such folder"):
        read_genai_config(tmp_path / "none")
    llm_folders.config_file(tmp_path)
    with pytest.raises(OptionError, match="no folder of onnxruntime-genai") as caught:
        read_genai_config(tmp_path)
    assert "llm build" in caught.value.hint
    for text, words in (("{", "no JSON"), ("[1]", "no object"), ("[" * 100_000, "no JSON")):
        (folder / "genai_config.json").write_text(text)
        with pytest.raises(ModelError, match=words):
            read_genai_config(folder)
    (folder / "genai_config.json").write_text("{}")
    with pytest.raises(ModelError, match="no `model`"):
        check_genai_config(read_genai_config(folder))


WRITTEN: dict[str, tuple[ProviderRequest, list[Data]]] = {
    "cpu": (ProviderRequest("cpu"), []),
    "built-in": (
        ProviderRequest("migraphx", device_id=1, fp16=True, cache_dir="cache"),
        [
            {
                "MIGraphX": {
                    "device_id": "1",
                    "migraphx_fp16_enable": "1",
                    "migraphx_model_cache_dir": "cache",
                }
            }
        ],
    ),
    "plugin": (
        ProviderRequest("migraphx", "plugin", fp16=True, exhaustive_tune=True, cache_dir="cache"),
        [
            {
                "MIGraphXExecutionProvider": {
                    "device_id": "0",
                    "fp16_enable": "1",
                    "exhaustive_tune": "1",
                    "cache_dir": "cache",
                }
            }
        ],
    ),
    "umbrella": (
        ProviderRequest("amdgpu", cache_dir="cache"),
        [{"AMDGPU": {"device_id": "0", "cache_dir": "cache"}}],
    ),
    "ryzenai": (
        ProviderRequest("ryzenai"),
        [
            {
                "RyzenAI": {
                    "external_data_file": "model.pb.bin",
                    "hybrid_opt_free_after_prefill": "1",
                    "hybrid_opt_max_seq_length": "128",
                }
            }
        ],
    ),
}


@pytest.mark.parametrize("name", WRITTEN)
def test_entries_are_written_in_each_build_s_spelling(folder: Path, name: str) -> None:
    request, entries = WRITTEN[name]
    (folder / "model.pb.bin").write_bytes(b"")
    write_genai_config(with_provider(read_genai_config(folder), request))
    config = read_genai_config(folder)
    assert session(dict(config.data))["provider_options"] == entries
    assert not [one for one in check_genai_config(config) if one.level == "error"]
    again = with_provider(config, request)
    assert again.data == config.data
    assert sorted(p.name for p in folder.iterdir()) == [
        "genai_config.json",
        "model.onnx",
        "model.pb.bin",
        "tokenizer.json",
    ]


def test_one_era_takes_the_place_of_the_other(folder: Path) -> None:
    config = read_genai_config(folder)
    old = with_provider(config, ProviderRequest("ryzenai", era="1.6"))
    options = session(dict(old.data))
    assert options["config_entries"]["hybrid_opt_max_seq_length"] == "128"
    assert options["custom_ops_library"] == "onnx_custom_ops.dll"
    new = session(dict(with_provider(old, ProviderRequest("ryzenai")).data))
    assert set(new) == {"log_id", "provider_options"}
    cpu = session(dict(with_provider(old, ProviderRequest("cpu")).data))
    assert cpu == {"log_id": "onnxruntime-genai", "provider_options": []}


def test_long_sequences_are_read_in_chunks(folder: Path) -> None:
    data = llm_folders.genai_data()
    data["model"]["context_length"] = 32768
    config = GenaiConfig(folder, data)
    written = with_provider(config, ProviderRequest("ryzenai", max_length=16384)).data
    assert json.loads(json.dumps(written))["search"]["chunk_size"] == 2048
    entry = session(dict(written))["provider_options"][0]["RyzenAI"]
    assert entry["hybrid_opt_chunk_context"] == "1"
    with pytest.raises(OptionError, match="over the model's context"):
        with_provider(config, ProviderRequest("ryzenai", max_length=65536))


def test_one_stage_of_a_pipeline(folder: Path) -> None:
    data = llm_folders.genai_data()
    decoder = data["model"]["decoder"]
    file = decoder.pop("filename")
    decoder["pipeline"] = [
        {"prefill": {"filename": file, "run_on_token_gen": False}},
        {"decode": {"filename": file, "run_on_prompt": False}},
    ]
    data["model"]["type"] = "decoder-pipeline"
    config = GenaiConfig(folder, data)
    assert check_genai_config(config) == ()
    request = ProviderRequest("migraphx", stage="prefill")
    stages = dict(with_provider(config, request).stages())
    assert "MIGraphX" in str(stages["prefill"])
    assert "session_options" not in stages["decode"]
    with pytest.raises(OptionError, match="no stage"):
        with_provider(config, ProviderRequest("migraphx", stage="middle"))


def test_requests_that_make_no_sense() -> None:
    for wrong in (
        {"provider": "rocm"},
        {"provider": "cpu", "fp16": True},
        {"provider": "amdgpu", "fp16": True},
        {"provider": "migraphx", "build": "1.27"},
        {"provider": "ryzenai", "era": "1.5"},
        {"provider": "migraphx", "device_id": -1},
    ):
        with pytest.raises(OptionError):
            ProviderRequest(**wrong)  # type: ignore[arg-type]


STRANGE = (None, True, -1, 0, 1 << 70, 2.5, "", "../x", "x" * 3000, [], [None], {}, {"name": 1})


def places(value: object, path: tuple[object, ...] = ()) -> Iterator[tuple[object, ...]]:
    """Yield the path of every value inside a JSON value."""
    items: Any = value.items() if isinstance(value, dict) else ()
    items = enumerate(value) if isinstance(value, list) else items
    for key, inner in items:
        yield (*path, key)
        yield from places(inner, (*path, key))


def test_a_strange_value_anywhere_is_a_finding_or_one_clear_error(folder: Path) -> None:
    sound = llm_folders.genai_data()
    session(sound)["provider_options"] = [
        {"MIGraphX": {"device_id": "0"}, "device_filtering_options": {}},
        {"RyzenAI": {"hybrid_opt_max_seq_length": "4096"}},
    ]
    told = 0
    for path in places(sound):
        for strange in STRANGE:
            data = copy.deepcopy(sound)
            place: Any = data
            for step in path[:-1]:
                place = place[step]
            place[path[-1]] = strange
            config = GenaiConfig(folder, data)
            try:
                told += len(check_genai_config(config))
                with_provider(config, ProviderRequest("migraphx"))
                with_provider(config, ProviderRequest("ryzenai"))
            except VermilionError:
                told += 1
    assert told > 500
