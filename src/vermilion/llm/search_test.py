from __future__ import annotations

import itertools

import numpy as np
import pytest

from vermilion.errors import OptionError
from vermilion.llm.search import (
    NEVER,
    Beams,
    SearchOptions,
    chance_of,
    choose,
    distribution,
    log_softmax,
    penalize,
)

ROW = np.array([1.0, 3.0, 2.0, -1.0, 0.0], np.float32)
SAMPLED = SearchOptions(do_sample=True)


def chances(**changes: object) -> dict[int, float]:
    options = SAMPLED.with_changes({"top_k": 5, **changes})
    tokens, found = distribution(ROW, options)
    return dict(zip(tokens.tolist(), found.tolist(), strict=True))


def softmax(values: np.ndarray) -> np.ndarray:
    return np.exp(values) / np.exp(values).sum()


def test_all_tokens_have_their_softmax() -> None:
    assert chances() == pytest.approx(dict(enumerate(softmax(ROW.astype(float)).tolist())))


def test_the_k_likeliest_share_all_of_the_chance() -> None:
    expected = softmax(np.array([3.0, 2.0]))
    assert chances(top_k=2) == pytest.approx({1: expected[0], 2: expected[1]})


def test_a_higher_temperature_evens_out() -> None:
    expected = softmax(ROW.astype(float) / 4)
    assert chances(temperature=4.0) == pytest.approx(dict(enumerate(expected.tolist())))


def test_the_first_p_of_the_chance_is_kept_with_the_token_that_reaches_it() -> None:
    whole = softmax(ROW.astype(float))
    assert 0.6 < whole[1] < 0.7
    assert list(chances(top_p=0.6)) == [1]
    assert list(chances(top_p=0.7)) == [1, 2]
    assert sum(chances(top_p=0.7).values()) == pytest.approx(1)
    assert list(chances(top_p=0.0, top_k=0)) == [1]
    assert len(chances(top_p=1.0, top_k=0)) == 5


def test_drawing_follows_the_chances() -> None:
    options = SAMPLED.with_changes({"top_k": 5})
    random = np.random.default_rng(0)
    drawn = np.bincount([choose(ROW, options, random) for _ in range(4000)], minlength=5) / 4000
    assert np.abs(drawn - softmax(ROW.astype(float))).max() < 0.03


@pytest.mark.parametrize("changes", [{"do_sample": False}, {"top_k": 1}, {"temperature": 0.0}])
def test_these_take_the_likeliest(changes: dict[str, object]) -> None:
    options = SAMPLED.with_changes(changes)
    assert choose(ROW, options, np.random.default_rng(0)) == 1


def penalized(past: list[int], made: tuple[int, ...] = (), **changes: object) -> list[float]:
    row, options = ROW.copy(), SearchOptions().with_changes(changes)
    penalize(row, np.array(past, np.int32), options, (4,), np.array(made, np.int32))
    return row.tolist()


def test_what_was_generated_becomes_less_likely() -> None:
    plain = ROW.tolist()
    plain[1] -= 0.5 + 2 * 0.25
    plain[3] -= 0.5 + 0.25
    found = penalized([0, 1, 1, 3], (1, 1, 3), presence_penalty=0.5, frequency_penalty=0.25)
    assert found == plain


def test_what_is_far_less_likely_than_the_likeliest_is_left_out() -> None:
    options = SAMPLED.with_changes({"top_k": 5, "min_p": 0.3})
    tokens, chances = distribution(ROW, options)
    whole = softmax(ROW.astype(float))
    kept = [at for at in np.argsort(-whole) if whole[at] >= 0.3 * whole.max()]
    assert tokens.tolist() == kept
    assert np.allclose(chances, whole[kept] / whole[kept].sum())


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_length", 0), ("max_length", -5), ("min_length", -1), ("min_p", 1.5), ("top_p", -0.1),
        ("top_k", -2), ("temperature", -1.0), ("presence_penalty", 2.5), ("random_seed", -2),
        ("frequency_penalty", -3.0), ("no_repeat_ngram_size", -1),
    ],
)  # fmt: skip
def test_a_number_out_of_its_range_is_named(name: str, value: float) -> None:
    with pytest.raises(OptionError, match=rf"`{name}` is {value:g}"):
        SearchOptions().with_changes({name: value})


def test_what_the_model_expected_of_a_token() -> None:
    logs = np.log(softmax(ROW.astype(float)))
    found = chance_of(ROW, 3, 2)
    best = np.argsort(-logs)[:2]
    assert found.logprob == pytest.approx(logs[3])
    assert [at for at, _ in found.likeliest] == best.tolist()
    assert [log for _, log in found.likeliest] == pytest.approx(logs[best].tolist())


def test_what_was_said_becomes_less_likely() -> None:
    assert penalized([1, 1, 3], repetition_penalty=2.0) == [1.0, 1.5, 2.0, -2.0, 0.0]
    assert penalized([1, 99], repetition_penalty=2.0) == [1.0, 1.5, 2.0, -1.0, 0.0]


def test_the_end_does_not_come_too_early() -> None:
    assert penalized([0, 0], min_length=3)[4] == NEVER
    assert penalized([0, 0, 0], min_length=3)[4] == 0


def test_no_group_of_tokens_comes_twice() -> None:
    assert penalized([1, 2, 0, 1], no_repeat_ngram_size=2)[2] == NEVER
    assert penalized([1, 2, 0, 1], no_repeat_ngram_size=3) == ROW.tolist()
    assert penalized([1], no_repeat_ngram_size=3) == ROW.tolist()
    assert penalized([1], no_repeat_ngram_size=1)[1] == NEVER


def test_enough_beams_find_the_likeliest_sequence_of_all() -> None:
    """A chain of three tokens over an alphabet of three, all 27 tried: token 2 never comes."""
    random = np.random.default_rng(1)
    step = log_softmax(random.standard_normal((3, 3)).astype(np.float32))
    step[:, 2] = -50
    options = SearchOptions(num_beams=3, num_return_sequences=3, length_penalty=0.0)
    beams = Beams(options, ends=(9,), pad=0)
    sequences = np.zeros((3, 1), np.int32)
    for _ in range(3):
        tokens, rows = beams.step(step[sequences[:, -1]], sequences)
        sequences = np.concatenate([sequences[rows], tokens[:, None]], axis=1)
    found = [one.tolist() for one in beams.best(sequences)]
    ways = itertools.product(range(3), repeat=3)
    scored = {(0, *way): sum(step[a, b] for a, b in itertools.pairwise((0, *way))) for way in ways}
    best = sorted(scored, key=lambda way: -scored[way])[:1]
    assert found[0] == list(best[0])


def test_beams_that_ended_are_kept_and_fill_up_with_padding() -> None:
    options = SearchOptions(num_beams=2, num_return_sequences=2)
    beams = Beams(options, ends=(2,), pad=7)
    sequences = np.array([[5], [5]], np.int32)
    row = log_softmax(np.array([[0.0, 0.1, 3.0], [0.0, 0.0, 0.0]], np.float32))
    tokens, rows = beams.step(row, sequences)
    assert (sorted(tokens.tolist()), rows.tolist()) == ([0, 1], [0, 0])
    assert not beams.done
    sequences = np.concatenate([sequences[rows], tokens[:, None]], axis=1)
    beams.step(np.broadcast_to(row[:1], (2, 3)), sequences)
    assert beams.done
    again, _ = beams.step(row, sequences)
    assert again.tolist() == [7, 7]
    assert beams.best(sequences)[0].tolist() == [5]
