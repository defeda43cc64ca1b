"""How well a model knows a text, and how far it is from another one: perplexity and divergence.

A text is cut into windows, and each is read on its own: every token of a window but its first is
held against what the model expected there.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from vermilion.errors import OptionError
from vermilion.llm.decoder import EngineOptions
from vermilion.llm.open_model import AnyModel, OwnModel, check_room, open_model
from vermilion.llm.search import log_softmax
from vermilion.progress import Progress, no_progress

SAMPLE_TEXT = """\
The harbour town wakes before the sun does. At half past four the first boats come round the \
breakwater, low in the water, and the lights on the quay go on one after the other. Nobody speaks \
much. The crates are passed from hand to hand, weighed, covered with ice and pushed into the \
hall, where the buyers stand with their collars up and write numbers on small pieces of paper.

By the time the children walk to school the fish is already on the road. A lorry needs two hours \
to the city if the pass is open, and four if it has to take the coast. In winter the drivers \
listen to the weather report the way other people listen to music. Snow on the pass means that \
the restaurants will serve something else that evening, and that the price at the hall will fall.

My grandfather used to say that there are three kinds of work: work that is finished in the \
evening, work that is finished in the autumn, and work that is never finished. Fishing, he said, \
is the first kind, farming is the second, and repairing a boat is the third. He had repaired the \
same boat for thirty years. Every plank in it had been replaced at least once, and he liked to \
ask visitors whether it was still the boat that his own father had bought.

A computer has no such doubts. It keeps a list of every part, with a date and a number, and when \
a part is changed the number changes too. If two lists are equal, the boats are equal, and there \
is nothing more to discuss. Engineers find this a great relief. When a program gives the wrong \
answer, they compare the list of today with the list of yesterday, and look first at whatever is \
different. Most of the time the fault is there. Sometimes it was there all along, and only the \
question is new.

The old men on the bench in front of the hall do not trust lists. They trust the smell of the \
wind, the colour of the water at the mouth of the river, and each other, in that order. On some \
days they are wrong. On those days the boats come back early, empty, and nobody mentions it.
"""


@dataclass(frozen=True)
class Scored:
    """One model on a text."""

    folder: str
    engine: str
    engine_reason: str
    perplexity: float


@dataclass(frozen=True)
class Perplexity:
    """A model's score, and what sets it apart from a second one that it is held against.

    `divergence` is the mean Kullback-Leibler divergence from the second model's expectation to
    the first's, in nats; `same_first` the share of positions where both expect the same token.
    """

    tokens: int
    window: int
    scored: Scored
    against: Scored | None = None
    divergence: float | None = None
    same_first: float | None = None


@dataclass(frozen=True)
class Text:
    """What is read: the text, and into windows of how many tokens it is cut."""

    text: str = SAMPLE_TEXT
    window: int = 256
    tokens: int = 0  # at most so many; 0: all

    def __post_init__(self) -> None:
        if self.window < 2 or self.tokens < 0:
            raise OptionError("a window has two tokens or more", hint="`--window 256`")


def measure_perplexity(
    folder: Path,
    options: EngineOptions,
    text: Text,
    *,
    against: tuple[Path, EngineOptions] | None = None,
    progress: Progress = no_progress,
) -> Perplexity:
    """Score a folder on a text, and hold it against another folder or engine.

    Raises: OptionError for a text that is too short, or models with other tokens.
    """
    opened = open_model(folder, options)
    windows = _windows(opened, text)
    other = open_model(*against) if against is not None else None
    if other is not None and _windows(other, text) != windows:
        raise OptionError(
            "the two models cut the text into other tokens: they cannot be held against each other",
            hint="compare builds of the same model",
        )
    losses, other_losses, divergences, same = [], [], [], []
    for index, tokens in enumerate(windows):
        progress("reading", index, len(windows))
        expected = log_softmax(position_logits(opened, tokens)[:-1])
        places, following = np.arange(len(tokens) - 1), np.array(tokens[1:])
        losses.append(-expected[places, following])
        if other is not None:
            reference = log_softmax(position_logits(other, tokens)[:-1])
            other_losses.append(-reference[places, following])
            divergences.append((np.exp(reference) * (reference - expected)).sum(axis=1))
            same.append(reference.argmax(axis=1) == expected.argmax(axis=1))
    count = sum(map(len, losses))
    if other is None:
        return Perplexity(count, text.window, _scored(opened, losses))
    return Perplexity(
        count,
        text.window,
        _scored(opened, losses),
        _scored(other, other_losses),
        divergence=float(np.concatenate(divergences).mean()),
        same_first=float(np.concatenate(same).mean()),
    )


def position_logits(opened: AnyModel, tokens: Sequence[int]) -> NDArray[np.float32]:
    """Return the logits after each token of a text: (tokens, vocabulary)."""
    if isinstance(opened, OwnModel):
        state = opened.decoder.start(1, len(tokens))
        rows: NDArray[np.float32] = state.forward(
            np.array([tokens], np.int64), every_position=True
        )[0]
        return rows
    generator = opened.generator({"max_length": len(tokens) + 1, "do_sample": False})
    generator.append_tokens(list(tokens))
    found: NDArray[np.float32] = np.asarray(generator.get_output("logits"), np.float32)[0]
    if len(found) == len(tokens):
        return found
    # A graph that was built for the last position only reads a prompt of every length.
    pieces = []
    for length in range(1, len(tokens) + 1):
        generator = opened.generator({"max_length": length + 1, "do_sample": False})
        generator.append_tokens(list(tokens[:length]))
        pieces.append(np.asarray(generator.get_logits(), np.float32)[0, -1])
    return np.stack(pieces)


def _windows(opened: AnyModel, text: Text) -> list[list[int]]:
    tokens = opened.encode(text.text, as_chat=False)
    if text.tokens:
        tokens = tokens[: text.tokens]
    window = min(text.window, opened.config.context_length() - 1)
    check_room(opened.config, window, 1)
    cut = [tokens[at : at + window] for at in range(0, len(tokens), window)]
    kept = [one for one in cut if len(one) > 1]
    if not kept:
        raise OptionError("the text has fewer than two tokens", hint="give a longer one")
    return kept


def _scored(opened: AnyModel, losses: Sequence[NDArray[np.float32]]) -> Scored:
    mean = float(np.concatenate(losses).mean(dtype=np.float64))
    perplexity = math.exp(mean) if mean < 700 else math.inf
    return Scored(str(opened.config.folder), opened.engine, opened.reason, perplexity)
