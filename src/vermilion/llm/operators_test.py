from __future__ import annotations

import pytest

from vermilion.llm.architecture import Architecture, Quantization
from vermilion.llm.operators import Step, cost, operators_of, shipped_models, verdict

SMOLLM2 = Architecture("llama", 576, 1536, 30, 9, 3, 64, 49152, 8192, True)
INT4 = Quantization(4, 32)
GROUPS = Quantization(4, 128, is_symmetric=False)


def products(graph: str) -> dict[tuple[int, int], int]:
    found = operators_of(SMOLLM2, INT4, "dml" if graph == "dml" else "cpu")
    return {
        (one.shape["K"], one.shape["N"]): one.count for one in found if one.op_type == "MatMulNBits"
    }


def test_the_products_of_both_graphs() -> None:
    # What the builder 0.18 writes for this model: 151 and 211 MatMulNBits.
    fused = {(576, 960): 30, (576, 576): 30, (576, 1536): 60, (1536, 576): 30, (576, 49152): 1}
    assert products("cpu") == fused
    apart = {(576, 576): 60, (576, 192): 60, (576, 1536): 60, (1536, 576): 30, (576, 49152): 1}
    assert products("dml") == apart
    assert (sum(fused.values()), sum(apart.values())) == (151, 211)


def test_a_decode_step_reads_every_weight_once() -> None:
    found = [one for one in operators_of(SMOLLM2, INT4) if one.op_type == "MatMulNBits"]
    step = Step(1, 1)
    weights = 30 * (576 * (960 + 576 + 3 * 1536)) + 576 * 49152
    assert sum(cost(one, step).gops for one in found) == pytest.approx(2 * weights / 1e9)
    ends = 30 * (6 * 576 + 960 + 3 * 1536) * 4 + (576 + 49152) * 4
    # Half a byte, and a scale of four for 32 of them.
    assert sum(cost(one, step).bytes for one in found) == weights * 5 // 8 + ends


def test_a_prompt_needs_the_head_once_and_half_a_square_of_attention() -> None:
    by_role = {role: one for one in operators_of(SMOLLM2, INT4) for role in one.roles}
    long, short = Step(512, 512), Step(1, 1)
    head = by_role["lm_head"]
    assert cost(head, long) == cost(head, short)
    pairs = 512 * 513 // 2
    assert cost(by_role["attention"], long).gops == pytest.approx(30 * 4 * 576 * pairs / 1e9)
    last = cost(by_role["attention"], Step(1, 512))
    assert last.gops == pytest.approx(30 * 4 * 576 * 512 / 1e9)
    assert last.bytes == 30 * (2 * 3 * 64 * 512 + 2 * 576) * 4


def test_blocks_are_padded_and_zero_points_counted() -> None:
    assert Quantization(4, 128).stored_bytes(576, 1) == 5 * 64 + 5 * 4
    assert Quantization(4, 128, False, 2).stored_bytes(576, 1) == 5 * 64 + 5 * 2 + 3


@pytest.mark.parametrize(("name", "measures"), shipped_models())
def test_a_fine_tune_of_a_shipped_model_compiles_nothing(name: str, measures: Architecture) -> None:
    found = [verdict(one) for one in operators_of(measures, GROUPS, "dml")]
    assert all(one.is_known for one in found)
    assert all(name in one.models for one in found if one.models)


def test_a_changed_size_must_be_compiled() -> None:
    llama = dict(shipped_models())["Llama-3.2-1B"]
    changed = Architecture(**{**vars(llama), "intermediate": 8000})
    missing = {one.roles for one in operators_of(changed, GROUPS) if not verdict(one).is_known}
    assert missing == {("gate_proj", "up_proj"), ("mlp",), ("down_proj",)}


def test_other_blocks_must_be_compiled_but_for_the_head() -> None:
    llama = dict(shipped_models())["Llama-3.2-1B"]
    verdicts = {one.roles: verdict(one) for one in operators_of(llama, Quantization(4, 32))}
    assert verdicts["lm_head",].is_known
    assert not verdicts["qkv_proj",].is_known
    assert "groups of 128" in verdicts["qkv_proj",].reason


def test_plain_floats_are_products_without_blocks() -> None:
    found = operators_of(SMOLLM2, None)
    assert {one.op_type for one in found} & {"MatMul", "MatMulNBits"} == {"MatMul"}


def test_queries_and_keys_may_have_norms_of_their_own() -> None:
    qwen = Architecture("qwen3", 1024, 3072, 28, 16, 8, 128, 151936, 40960, True)
    norms = {
        one.roles: (one.shape.get("heads"), one.shape["hidden"], one.count)
        for one in operators_of(qwen, INT4)
        if one.op_type == "RMSNorm"
    }
    assert norms["q_norm",] == (16, 128, 28)
    assert norms["k_norm",] == (8, 128, 28)
