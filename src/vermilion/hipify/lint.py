"""The lint: all rules over one translated source, less what its comments silence.

`// hipify: allow(rule, rule) reason` silences rules on its line, or, alone on a line, on the next.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from vermilion.hipify.finding import Edit, Finding, OffsetMap
from vermilion.hipify.rules import interfaces, launches, machine, masks, votes, warps
from vermilion.hipify.rules.catalogue import RULES
from vermilion.hipify.rules.source import Hit, Source
from vermilion.hipify.tokens import Tokens, tokenize

CHECKS: tuple[Callable[[Source], Iterator[Hit]], ...] = (
    warps.warp_size_constant,
    warps.warp_size_not_constant,
    launches.launch_by_32,
    warps.warp_lane_arithmetic,
    warps.warp_reduction_half,
    warps.shuffle_width,
    votes.vote_width,
    masks.mask_32_bit,
    warps.ballot_32_bit,
    warps.lane_bit_32,
    warps.warp_synchronous,
    machine.inline_ptx,
    machine.missing_intrinsic,
    machine.read_only_load,
    machine.texture,
    machine.cooperative_groups,
    machine.shared_memory_size,
    machine.tensor_core,
    machine.fast_math,
    interfaces.managed_memory,
    interfaces.graphs,
    interfaces.cuda_arch,
    interfaces.blas_math_mode,
    interfaces.provider_name,
    interfaces.provider_stream,
    interfaces.compiler_option,
    interfaces.missing_runtime_include,
)

_ALLOW = re.compile(r"hipify:\s*allow\(([\w\-, ]+)\)")


def lint(
    text: str, *, original: Tokens | None = None, edits: list[Edit] | None = None, file: str = ""
) -> list[Finding]:
    """Return what the rules find in a translated text.

    With the `original` and the `edits` that made the text of it, findings point into the original.
    """
    source = Source(tokenize(text))
    before = original or source.tokens
    places = OffsetMap(edits or [])
    findings = []
    for check in CHECKS:
        for hit in check(source):
            offset = source.tokens.starts[source.tokens.meaningful[hit.place]]
            line, column = before.position(places.before(offset))
            rule = RULES[hit.rule]
            findings.append(
                Finding(
                    hit.rule, rule.level, file, line, column, hit.message,
                    hit.hint or rule.fix, hit.edits,
                )
            )  # fmt: skip
    return findings


def silence(findings: list[Finding], tokens: Tokens) -> tuple[list[Finding], int]:
    """Leave out what comments allow; give the rest and how many were left out."""
    allowed = _allowed(tokens)
    kept = [f for f in findings if f.rule not in allowed.get(f.line, ())]
    return kept, len(findings) - len(kept)


def _allowed(tokens: Tokens) -> dict[int, set[str]]:
    """Return, for each line, the rules that a comment silences there."""
    allowed: dict[int, set[str]] = {}
    if "hipify:" not in tokens.text:
        return allowed
    for index, kind in enumerate(tokens.kinds):
        if kind != "comment" or "hipify:" not in tokens.raw(index):
            continue
        found = _ALLOW.search(tokens.raw(index))
        if found is None:
            continue
        line, column = tokens.position(tokens.starts[index])
        start = tokens.line_starts[line - 1]
        stands_alone = not tokens.text[start : start + column - 1].strip()
        rules = {word.strip() for word in found[1].split(",")}
        allowed.setdefault(line + stands_alone, set()).update(rules)
    return allowed
