"""Two sequences of nodes matched by structure: first what is certain, then what is left between."""

from __future__ import annotations

import hashlib
from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from difflib import SequenceMatcher

import onnx_ir as ir

from vermilion.view.canonical import Part, ends_of, parts_of

# How far around a node is looked where all of its ancestors or readers are not alike.
_NEAR = 3
# Values of a weight by which it is told from others.
_MARKED = 1 << 14
Words = Sequence[Sequence[str]]


def matched(a: Sequence[Part], b: Sequence[Part]) -> dict[int, int]:
    """Return which node of `b` each node of `a` is; names play no part.

    Nodes are told by ever less: everything that flows into them and everything that they flow
    into, weights included; one of both; their own weights; all that without weights; a few
    neighbours; operator with parameters and weights' shapes; operator. What stands in another
    order in both graphs is matched at last, where it is the only one of its kind.
    """
    found: dict[int, int] = {}
    mine, theirs = _words(a), _words(b)
    _match(mine, theirs, 0, (0, len(a)), (0, len(b)), found)
    taken = set(found.values())
    for here, there in zip(mine[:-1], theirs[:-1], strict=True):
        left = [n for n in range(len(a)) if n not in found]
        over = [n for n in range(len(b)) if n not in taken]
        if not left or not over:
            break
        for x, y in _only_ones([here[n] for n in left], [there[n] for n in over]):
            found[left[x]] = over[y]
            taken.add(over[y])
    return found


def _match(
    a: Words, b: Words, level: int, in_a: tuple[int, int], in_b: tuple[int, int],
    found: dict[int, int],
) -> None:  # fmt: skip
    """Match what stands between two places of both; each level looks at less of a node."""
    work = [(level, in_a, in_b)]
    while work:
        level, (a0, a1), (b0, b1) = work.pop()
        mine, theirs = a[level], b[level]
        while a0 < a1 and b0 < b1 and mine[a0] == theirs[b0]:
            found[a0] = b0
            a0, b0 = a0 + 1, b0 + 1
        while a0 < a1 and b0 < b1 and mine[a1 - 1] == theirs[b1 - 1]:
            a1, b1 = a1 - 1, b1 - 1
            found[a1] = b1
        if a0 == a1 or b0 == b1:
            continue
        is_last = level == len(a) - 1
        pairs = (
            _longest_common(mine[a0:a1], theirs[b0:b1])
            if is_last
            else _anchors(mine[a0:a1], theirs[b0:b1])
        )
        at, to = a0, b0
        for x, y in [*((a0 + x, b0 + y) for x, y in pairs), (a1, b1)]:
            if not is_last and (at < x and to < y):
                # Without an anchor the next level looks; with one, this level may find more.
                deeper = level if pairs else level + 1
                work.append((deeper, (at, x), (to, y)))
            if x < a1 and y < b1:
                found[x] = y
            at, to = x + 1, y + 1


def _only_ones(a: Sequence[str], b: Sequence[str]) -> list[tuple[int, int]]:
    """Return pairs of words that each side has once."""
    once_a = {word for word, count in Counter(a).items() if count == 1}
    once_b = {word for word, count in Counter(b).items() if count == 1}
    place = {word: at for at, word in enumerate(b) if word in once_b}
    return [(x, place[word]) for x, word in enumerate(a) if word in once_a and word in place]


def _anchors(a: Sequence[str], b: Sequence[str]) -> list[tuple[int, int]]:
    """Return pairs of words that each side has once, as many as keep their order."""
    pairs = _only_ones(a, b)
    # The longest increasing run of places, by patience sorting.
    tops: list[int] = []
    ends: list[int] = []
    before: list[int] = []
    for number, (_, y) in enumerate(pairs):
        pile = bisect_left(tops, y)
        before.append(ends[pile - 1] if pile else -1)
        tops[pile : pile + 1] = [y]
        ends[pile : pile + 1] = [number]
    kept: list[tuple[int, int]] = []
    at = ends[-1] if ends else -1
    while at >= 0:
        kept.append(pairs[at])
        at = before[at]
    return kept[::-1]


def _longest_common(a: Sequence[str], b: Sequence[str]) -> list[tuple[int, int]]:
    blocks = SequenceMatcher(None, a, b, autojunk=False).get_matching_blocks()
    return [(one.a + n, one.b + n) for one in blocks for n in range(one.size)]


def _words(parts: Sequence[Part]) -> list[list[str]]:
    """Return what tells the nodes at each level."""
    own = [_digest(p.op, sorted(map(str, p.parameters.items())), _shapes(p)) for p in parts]
    weighed = [
        _digest(word, [weight_mark(tensor) for _, tensor in part.weights], _body_marks(part))
        if part.weights or part.bodies
        else word
        for word, part in zip(own, parts, strict=True)
    ]
    readers: list[list[tuple[int, int]]] = [[] for _ in parts]
    for number, part in enumerate(parts):
        for slot, (maker, _) in enumerate(part.parents):
            if maker >= 0:
                readers[maker].append((number, slot))
    near = own
    for _ in range(_NEAR):
        near = [
            _digest(
                near[n],
                [near[m] if m >= 0 else str(m) for m, _ in part.parents],
                sorted(f"{slot} {near[r]}" for r, slot in readers[n]),
            )
            for n, part in enumerate(parts)
        ]
    levels: list[list[str]] = []
    for words in (weighed, own):
        up, down = _from_inputs(parts, words), _to_outputs(parts, words, readers)
        levels += [[_digest(u, d) for u, d in zip(up, down, strict=True)], up, down]
        levels += [weighed] if words is weighed else []
    return [*levels, near, own, [p.op for p in parts]]


def weight_mark(tensor: ir.TensorProtocol) -> str:
    """Return what a weight is told by: some of its values, for language models have gigabytes."""
    if tensor.dtype == ir.DataType.STRING:
        return _digest(str(tensor.numpy().tolist()))
    array = tensor.numpy().reshape(-1)
    step = max(1, array.size // _MARKED)
    return _digest(array[::step].tobytes())


def _body_marks(part: Part) -> list[tuple[str, str]]:
    """Return what the graphs in a node are told by: their nodes, as one looks at all of them."""
    found = []
    for name, body in sorted(part.bodies.items()):
        inner = parts_of(body, part.imports)
        found.append((name, _digest(_words(inner)[0], ends_of(body, inner))))
    return found


def _shapes(part: Part) -> list[str]:
    return [f"{tensor.dtype} {list(tensor.shape)}" for _, tensor in part.weights]


def _from_inputs(parts: Sequence[Part], own: Sequence[str]) -> list[str]:
    words: list[str] = []
    for number, part in enumerate(parts):
        # The order is one of computing, but for what a damaged graph may hold.
        made = [
            f"{words[m]}:{slot}" if 0 <= m < number else f"{m}:{slot}" for m, slot in part.parents
        ]
        words.append(_digest(own[number], made, ""))
    return words


def _to_outputs(
    parts: Sequence[Part], own: Sequence[str], readers: Sequence[Sequence[tuple[int, int]]]
) -> list[str]:
    words = [""] * len(parts)
    for number in reversed(range(len(parts))):
        mine = sorted(f"{slot} {words[reader]}" for reader, slot in readers[number])
        words[number] = _digest(own[number], mine, "")
    return words


def _digest(*words: object) -> str:
    return hashlib.blake2b(repr(words).encode(), digest_size=12).hexdigest()
