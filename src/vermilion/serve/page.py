"""The page to try a model: one file, which asks this server alone."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from vermilion.pages.document import policy, style

_ASSETS = Path(__file__).parent / "assets"


@cache
def _page() -> tuple[str, dict[str, str]]:
    """Return the page, and what it may do: ask this server, and nothing else."""
    look, script = style() + _read("page.css"), _read("page.js")
    before, rest = _read("page.html").split("{style}")
    middle, after = rest.split("{script}")
    rules = policy([look], [script]).replace(
        "form-action 'none'", "form-action 'none'; connect-src 'self'"
    )
    headers = {"Content-Security-Policy": rules, "X-Content-Type-Options": "nosniff"}
    return before + look + middle + script + after, headers


def _read(name: str) -> str:
    return (_ASSETS / name).read_text(encoding="utf-8")


async def _show(request: Request) -> Response:
    del request
    text, headers = _page()
    return Response(text, media_type="text/html", headers=headers)


def routes() -> list[Route]:
    """Return the page's route."""
    return [Route("/", _show, methods=["GET"])]
