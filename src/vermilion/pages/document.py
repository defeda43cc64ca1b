"""A page of HTML that stands alone: its style and scripts are in it, and nothing else is let in."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Collection, Mapping, Sequence
from functools import cache
from html import escape
from pathlib import Path

KINDS = ("measured", "modelled", "quoted", "counted")


@cache
def style() -> str:
    """Return the look of all pages."""
    return (Path(__file__).parent / "style.css").read_text(encoding="utf-8")


def policy(styles: Sequence[str], scripts: Sequence[str] = ()) -> str:
    """Return the page's Content-Security-Policy: what it names by digest runs, and no more.

    Nothing is fetched, no form sent, and no text becomes HTML: with Trusted Types required and no
    policy for them, a browser refuses to. Source: W3C, Content Security Policy Level 3, 6.7.3.
    """
    rules = ["default-src 'none'", f"style-src {' '.join(map(_hash, styles))}"]
    if scripts:
        rules.append(f"script-src {' '.join(map(_hash, scripts))}")
    rules += ["base-uri 'none'", "form-action 'none'", "require-trusted-types-for 'script'"]
    return "; ".join(rules)


def _hash(text: str) -> str:
    digest = hashlib.sha256(text.encode("utf-8")).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"


def data_block(data: Mapping[str, object]) -> str:
    """Return JSON for a data block of a page: no text in it can end the block.

    Source: HTML, "Restrictions for contents of script elements".
    """
    text = json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    for sign in "<>&\u2028\u2029":
        text = text.replace(sign, f"\\u{ord(sign):04x}")
    # Halves of characters, which a name may hold and no encoding writes.
    return text.encode("utf-8", "replace").decode("utf-8")


def report_page(title: str, lead: str, parts: Sequence[str]) -> str:
    """Return a report: parts are HTML already, title and lead are text."""
    look = style()
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy([look])}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{look}</style></head>"
        f'<body><main class="report"><h1>{escape(title)}</h1>'
        f'<p class="lead">{escape(lead)}</p>{"".join(parts)}</main></body></html>\n'
    )


def table(
    head: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    names: int,
    label: str = "",
    met: Collection[int] = (),
) -> str:
    """Return a table whose first columns are `names`, the others numbers; rows `met` stand out.

    `label` says to a screen reader what it is, by default the first heading.
    """
    kinds = [' class="n"' if at >= names else "" for at in range(len(head))]
    top = "".join(
        f'<th scope="col"{kind}>{escape(word)}</th>' for kind, word in zip(kinds, head, strict=True)
    )
    body = "".join(
        f"<tr{' class=met' if number in met else ''}>"
        + "".join(f"<td{kind}>{escape(w)}</td>" for kind, w in zip(kinds, row, strict=True))
        + "</tr>"
        for number, row in enumerate(rows)
    )
    return (
        f'<div class="wide" tabindex="0" role="region" aria-label="{escape(label or head[0])}">'
        f"<table><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def badge(kind: str) -> str:
    """Return the word that says what kind of number stands beside it: one of `KINDS`."""
    return f'<span class="is is-{kind}">{kind}</span>'
