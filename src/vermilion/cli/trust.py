"""`vermilion trust`: whose machine code from elsewhere runs here."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from vermilion.cli.fitted import Column, FittedTable, Verbatim
from vermilion.cli.flags import Verbs
from vermilion.cli.output import Result
from vermilion.cli.verb import Terminal, verb

if TYPE_CHECKING:
    from rich.console import RenderableType

    from vermilion.store.trust import TrustedKey

app = Verbs(help="Choose whose machine code runs here: keys that sign compiled models.")


@app.command("new")
@verb("trust new")
def new(
    terminal: Terminal,
    file: Annotated[Path, typer.Argument(metavar="KEY.pem", help="Where the key goes.")],
) -> Result:
    """Make a key for `compile --sign`: KEY.pem, to be kept secret, and KEY.pem.pub to hand out."""
    from vermilion.store.ed25519 import make_key

    key = make_key(file).public
    public = file.with_name(f"{file.name}.pub")
    words = f"{file}: keep it secret\n{public}: hand it out\n{key}"
    return Result({"private": file, "public": public, "key": key}, lambda: Verbatim(words))


@app.command("add")
@verb("trust add")
def add(
    terminal: Terminal,
    key: Annotated[
        str,
        typer.Argument(
            metavar="KEY", help="A public key: a file (OpenSSH, PEM, hex), or 64 hex digits."
        ),
    ],
    *,
    name: Annotated[
        str, typer.Option("--name", help="What to call it; by default the file's comment or name.")
    ] = "",
) -> Result:
    """Run machine code that this key signed, from now on."""
    from vermilion.store.ed25519 import read_public_key
    from vermilion.store.trust import trust_key

    digits, found = read_public_key(key)
    added = trust_key(digits, name or found or digits[:16])
    words = f"trusted: {added.name} ({added.key})"
    return Result(_as_json(added), lambda: Verbatim(words))


@app.command("list")
@verb("trust list")
def list_(terminal: Terminal) -> Result:
    """List the keys whose machine code runs here."""
    from vermilion.store.trust import TRUST_VARIABLE, trusted_keys, trusted_keys_file, trusts_all

    rows = trusted_keys()
    if trusts_all():
        terminal.warn(f"{TRUST_VARIABLE}=1 is set: machine code from anywhere runs")
    data = {
        "file": trusted_keys_file(),
        "keys": [_as_json(row) for row in rows],
        "trusts_all": trusts_all(),
    }
    return Result(data, lambda: _list_view(rows))


@app.command("remove")
@verb("trust remove")
def remove(
    terminal: Terminal,
    key: Annotated[str, typer.Argument(metavar="NAME|KEY", help="Its name, or its hex digits.")],
) -> Result:
    """Trust a key no longer: what it signed is compiled again before it runs."""
    from vermilion.store.trust import distrust_key

    removed = distrust_key(key)
    words = f"no longer trusted: {removed.name} ({removed.key})"
    return Result(_as_json(removed), lambda: Verbatim(words))


def _as_json(row: TrustedKey) -> dict[str, object]:
    return {"name": row.name, "key": row.key}


def _list_view(rows: Sequence[TrustedKey]) -> RenderableType:
    if not rows:
        return "no key is trusted: only what was compiled here runs as it is"
    columns = (Column("name", 0, "name"), Column("key", 0, "name"))
    return FittedTable(columns, [(row.name, row.key) for row in rows])
