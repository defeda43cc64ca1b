"""The native decoder against ONNX Runtime on the same small folders: real graphs, real code."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from numpy.typing import NDArray

import small_decoders
from small_decoders import CONTEXT, VOCABULARY, Options, decoder_folder, decoder_model, feeds
from vermilion.codegen.isa import isa_of
from vermilion.errors import ModelError, OptionError, UnsupportedError
from vermilion.hardware.targets.find import find_target
from vermilion.ir.execute import open_session
from vermilion.llm.engine.decoder import MANY_ROWS, NativeDecoder
from vermilion.llm.engine.open_native import open_native_decoder

# Sums in another order, and an exponential that is off by two units in the last place: 1e-5 of the
# largest logit leaves room for two layers.
EXACT = 1e-5
# Eight-bit activations, on both sides but not rounded alike: 1/254 of the largest of a block at
# most, over two layers of four products.
QUANTIZED = 0.05

Logits = NDArray[np.float32]


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("code")


def tokens_of(batch: int, count: int) -> NDArray[np.int64]:
    return np.random.default_rng(count).integers(0, VOCABULARY, (batch, count))


def expected(options: Options, tokens: NDArray[np.int64]) -> Logits:
    session = open_session(ir.from_proto(decoder_model(options)), threads=1)
    (logits,) = session.run(["logits"], feeds(options, tokens))
    return np.asarray(logits)


def difference(found: Logits, wanted: Logits) -> float:
    return float(np.abs(found - wanted).max() / np.abs(wanted).max())


def opened(folder: Path, cache: Path, options: Options, **more: object) -> NativeDecoder:
    settings = {"threads": 1, "prefill": "fp32", **more}
    if settings["prefill"] in ("bf16", "bfp16") and not isa_of(find_target("cpu")).has_bf16:
        pytest.skip("this machine has no AVX-512 BF16")
    return open_native_decoder(decoder_folder(folder, options), cache=cache, **settings)  # type: ignore[arg-type]


FAMILIES = {
    "plain": Options(bits=32),
    "windowed": Options(bits=32, window=7),
    "bounded": Options(bits=32, softcap=3.0, logits_bound=2.0, embedding_factor=3.0),
    "normed heads": Options(bits=32, has_head_norms=True),
    "split": Options(bits=32, is_split=True, has_bias=True),
    "half turned": Options(bits=32, head_size=32, turned=16, has_bias=True),
    "gelu": Options(bits=32, activation="gelu_tanh", has_post_norms=True),
    "exact gelu": Options(bits=32, activation="gelu"),
}


@pytest.mark.parametrize("options", FAMILIES.values(), ids=FAMILIES.keys())
def test_plain_numbers_are_exact(options: Options, tmp_path: Path, cache: Path) -> None:
    tokens = tokens_of(2, 83)  # over one block of keys, in chunks of 64 positions of two
    wanted = expected(options, tokens)
    decoder = opened(tmp_path, cache, options)
    state = decoder.start(2, 90)
    assert difference(state.forward(tokens[:, :80], True), wanted[:, :80]) < EXACT
    for at in range(80, 83):  # and token by token after it
        assert difference(state.forward(tokens[:, at : at + 1]), wanted[:, at]) < EXACT


CODES = {
    "4 bits": Options(),
    "tied": Options(is_tied=True),
    "zero points": Options(has_zeros=True),
    "blocks of 16": Options(block=16),
    "blocks of 128": Options(block=128),  # deeper than a row: the rest is zeros
    "8 bits": Options(bits=8),
    "8 bits, zero points": Options(bits=8, has_zeros=True, block=16),
}


@pytest.mark.parametrize("options", CODES.values(), ids=CODES.keys())
def test_codes_are_within_eight_bit_activations(
    options: Options, tmp_path: Path, cache: Path
) -> None:
    tokens = tokens_of(1, 40)
    wanted = expected(options, tokens)
    decoder = opened(tmp_path, cache, options, prefill="int8")
    state = decoder.start(1, 64)
    together = state.forward(tokens, True)
    assert difference(together, wanted) < QUANTIZED
    state.rewind(0)
    apart = np.stack([state.forward(tokens[:, at : at + 1]) for at in range(40)], axis=1)
    # Whole numbers: prompts and tokens agree. A cache in float32 keeps the last bits in which their
    # attention differs, and one of them may round a row to another whole number.
    limit = EXACT if isa_of(find_target("cpu")).has_bf16 else QUANTIZED
    assert difference(apart, together) < limit


# bfloat16 keeps 8 bits: 1/256 of each number; a shared exponent keeps 7 of the largest of eight.
@pytest.mark.parametrize(("prefill", "limit"), [("bf16", 0.02), ("bfp16", 0.06), ("fp32", 0.01)])
@pytest.mark.parametrize("bits", [4, 8, 32])
def test_prefill_in_other_numbers(
    prefill: str, limit: float, bits: int, tmp_path: Path, cache: Path
) -> None:
    options = Options(bits=bits, has_zeros=bits == 4)  # type: ignore[arg-type]
    tokens = tokens_of(1, 70)
    decoder = opened(tmp_path, cache, options, prefill=prefill)
    found = decoder.start(1, 70).forward(tokens, True)
    assert difference(found, expected(options, tokens)) < limit + QUANTIZED * (bits != 32)


def test_a_decoder_of_one_layer(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What its last attention is added to are the embedded tokens themselves."""
    monkeypatch.setattr(small_decoders, "LAYERS", 1)
    options = Options(bits=32)
    tokens = tokens_of(3, 30)
    wanted = expected(options, tokens)
    state = opened(tmp_path, cache, options).start(3, 30)
    assert difference(state.forward(tokens[:, :20]), wanted[:, 19]) < EXACT
    assert difference(state.forward(tokens[:, 20:29], True), wanted[:, 20:29]) < EXACT
    assert difference(state.forward(tokens[:, 29:]), wanted[:, 29]) < EXACT


@pytest.mark.parametrize("prefill", ["bf16", "bfp16", "int8", "fp32"])
def test_the_last_position_alone_has_the_logits_that_it_has_among_all(
    prefill: str, tmp_path: Path, cache: Path
) -> None:
    tokens = tokens_of(3, 53)
    decoder = opened(tmp_path, cache, Options(), prefill=prefill)
    every = decoder.start(3, 53).forward(tokens, True)
    assert np.array_equal(decoder.start(3, 53).forward(tokens), every[:, -1])


def test_rewind_and_reorder(tmp_path: Path, cache: Path) -> None:
    options = Options(bits=32)
    tokens = tokens_of(3, 70)
    decoder = opened(tmp_path, cache, options)
    state = decoder.start(3, 80)
    state.forward(tokens[:, :69])
    rows = np.array([2, 0, 0])
    state.reorder(rows)
    wanted = expected(options, tokens[rows])
    assert difference(state.forward(tokens[rows, 69:]), wanted[:, 69]) < EXACT
    state.rewind(66)
    assert state.length == 66
    assert difference(state.forward(tokens[rows, 66:]), wanted[:, 69]) < EXACT


def test_long_prompts_in_chunks(tmp_path: Path, cache: Path) -> None:
    options, batch = Options(bits=32), 5
    assert batch * CONTEXT > 2 * MANY_ROWS
    tokens = tokens_of(batch, CONTEXT)
    decoder = opened(tmp_path, cache, options)
    wanted = expected(options, tokens)
    assert difference(decoder.start(batch, CONTEXT).forward(tokens), wanted[:, -1]) < EXACT
    assert difference(decoder.start(batch, CONTEXT).forward(tokens, True), wanted) < EXACT


@pytest.mark.parametrize("prefill", ["bf16", "int8"])
@pytest.mark.parametrize("batch", [1, 3])
def test_threads_give_the_same_numbers(
    prefill: str, batch: int, tmp_path: Path, cache: Path
) -> None:
    """Whatever part of the rows that are there, or of the panels, each of them has."""
    tokens = tokens_of(batch, 240)
    parts = (tokens[:, :50], tokens[:, 50:51], tokens[:, 51:])
    found = []
    for threads in (1, 2, 5):
        decoder = opened(tmp_path / "a", cache, Options(), prefill=prefill, threads=threads)
        state = decoder.start(batch, 240)
        found.append([state.forward(part) for part in parts])
    for others in found[1:]:
        assert all(np.array_equal(a, b) for a, b in zip(found[0], others, strict=True))


def test_states_of_two_threads_do_not_disturb_each_other(tmp_path: Path, cache: Path) -> None:
    decoder = opened(tmp_path, cache, Options(bits=32))
    texts = [tokens_of(1, 20), tokens_of(1, 21)]
    alone = [decoder.start(1, 32).forward(text, True) for text in texts]
    found: dict[int, list[Logits]] = {0: [], 1: []}

    def generate(number: int) -> None:
        state = decoder.start(1, 32)
        for at in range(texts[number].shape[1]):
            found[number].append(state.forward(texts[number][:, at : at + 1]))

    threads = [threading.Thread(target=generate, args=(number,)) for number in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for number in (0, 1):
        assert difference(np.stack(found[number], axis=1), alone[number]) < EXACT


def test_the_code_is_kept_and_is_not_the_weights(tmp_path: Path) -> None:
    """A fine-tune, the same shapes with other numbers, compiles nothing."""
    code = tmp_path / "code"
    opened(tmp_path / "a", code, Options(seed=1))
    before = sorted(path for path in code.rglob("*") if path.is_file())
    assert before
    tokens = tokens_of(1, 30)
    tuned = opened(tmp_path / "b", code, Options(seed=2))
    assert sorted(path for path in code.rglob("*") if path.is_file()) == before
    assert (
        difference(tuned.start(1, 30).forward(tokens), expected(Options(seed=2), tokens)[:, -1])
        < QUANTIZED
    )


def test_damaged_code_is_compiled_again(tmp_path: Path) -> None:
    code = tmp_path / "code"
    opened(tmp_path / "a", code, Options())
    for path in code.rglob("*.o"):
        path.write_bytes(b"\0" * 100)
    tokens = tokens_of(1, 30)
    again = opened(tmp_path / "a", code, Options())
    assert (
        difference(again.start(1, 30).forward(tokens), expected(Options(), tokens)[:, -1])
        < QUANTIZED
    )


def test_wrong_use(tmp_path: Path, cache: Path) -> None:
    decoder = opened(tmp_path, cache, Options())
    with pytest.raises(OptionError, match="context of 256"):
        decoder.start(1, CONTEXT + 1)
    with pytest.raises(OptionError, match="batch of 0"):
        decoder.start(0, 8)
    state = decoder.start(1, 4)
    with pytest.raises(OptionError, match="outside 0 to 319"):
        state.forward(np.array([[320]]))
    with pytest.raises(OptionError, match="in a cache of 4"):
        state.forward(tokens_of(1, 5))
    with pytest.raises(OptionError, match="cannot be kept"):
        state.rewind(1)


def test_a_pruned_head_gives_every_position_all_the_same(tmp_path: Path, cache: Path) -> None:
    """`prune_lm_head` gathers the last position before the head; ours is not bound by it."""
    options = Options(bits=32)
    tokens = tokens_of(1, 30)
    wanted = expected(options, tokens)
    model = decoder_model(options)
    nodes = list(model.graph.node)
    at = next(index for index, node in enumerate(nodes) if node.name == "head.y")
    last, axis = (
        onnx.numpy_helper.from_array(np.array(value), name)
        for name, value in (("last", -1), ("axis", [1]))
    )
    model.graph.initializer.extend([last, axis])
    source = nodes[at].input[0]
    gather = onnx.helper.make_node("Gather", [source, "last"], ["picked"], "prune", axis=1)
    unsqueeze = onnx.helper.make_node("Unsqueeze", ["picked", "axis"], ["row"], "unsqueeze")
    nodes[at].input[0] = "row"
    del model.graph.node[:]
    model.graph.node.extend([*nodes[:at], gather, unsqueeze, *nodes[at:]])
    folder = decoder_folder(tmp_path, options)
    onnx.save(model, folder / "model.onnx")
    decoder = open_native_decoder(folder, threads=1, prefill="fp32", cache=cache)
    assert difference(decoder.start(1, 30).forward(tokens), wanted[:, -1]) < EXACT
    assert difference(decoder.start(1, 30).forward(tokens, True), wanted) < EXACT


def test_a_graph_that_it_cannot_take(tmp_path: Path) -> None:
    folder = decoder_folder(tmp_path)
    model = decoder_model(Options())
    for node in model.graph.node:
        if node.op_type == "Sigmoid":
            node.op_type = "Softplus"
    (folder / "model.onnx").write_bytes(model.SerializeToString())
    with pytest.raises(UnsupportedError, match=r"Softplus.*layer0\.sigmoid"):
        open_native_decoder(folder, threads=1)


def changed(folder: Path, node: str, **attributes: object) -> Path:
    """Write a folder with other attributes at one node, or other weights than it says."""
    model = decoder_model(Options())
    found = next(one for one in model.graph.node if one.name == node)
    for name, value in attributes.items():
        kept = [one for one in found.attribute if one.name != name]
        del found.attribute[:]
        found.attribute.extend([*kept, onnx.helper.make_attribute(name, value)])
    decoder_folder(folder)
    onnx.save(model, folder / "model.onnx")
    return folder


@pytest.mark.parametrize(
    ("node", "attributes", "reason"),
    [
        ("layer0.attended", {"num_heads": 3}, "3 heads over 2 of keys"),
        ("layer0.attended", {"num_heads": 12}, "12 heads over 2 of keys"),
        ("layer1.attended", {"rotary_interleaved": 1}, "neighbouring numbers"),
        ("layer1.attended", {"smooth_softmax": 1}, "`smooth_softmax` is not understood"),
        ("layer0.o.y", {"bits": 2}, "2 bits in blocks of 32"),
        ("layer0.o.y", {"N": 32}, "elements where"),
        ("layer0.o.y", {"block_size": 16}, "elements where"),
    ],
)
def test_nodes_that_do_not_fit_are_refused(
    node: str, attributes: dict[str, object], reason: str, tmp_path: Path, cache: Path
) -> None:
    with pytest.raises((UnsupportedError, ModelError), match=reason):
        open_native_decoder(changed(tmp_path, node, **attributes), threads=1, cache=cache)


def test_the_context_ends_where_the_cosines_do(tmp_path: Path, cache: Path) -> None:
    folder = decoder_folder(tmp_path)
    config = folder / "genai_config.json"
    config.write_text(
        config.read_text().replace(f'"context_length": {CONTEXT}', '"context_length": 9999')
    )
    assert open_native_decoder(folder, threads=1, cache=cache).context_length == CONTEXT
