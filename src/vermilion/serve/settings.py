"""What a server is started with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from vermilion.errors import OptionError

MIB = 1 << 20
# Of any number on the command line: eleven days, a terabyte. No clock takes times without end.
MOST = 1_000_000


@dataclass(frozen=True)
class Settings:
    """Limits and places. Times in seconds, sizes in bytes; `threads` 0: the cores shared out."""

    host: str = "127.0.0.1"
    port: int = 8000
    instances: int = 1
    threads: int = 0
    max_batch: int = 32
    max_delay_s: float = 0.0
    max_queue: int = 256
    max_body_bytes: int = 64 * MIB
    time_limit_s: float = 120.0
    drain_s: float = 30.0
    keys: Path | None = None
    tls_certificate: Path | None = None
    tls_key: Path | None = None
    cors: tuple[str, ...] = ()
    cache_dir: Path | None = None
    dims: Mapping[str, int | tuple[int, ...]] = field(default_factory=dict)
    load_all: bool = True
    is_replica: bool = False  # one of several on a cluster
    # Of language models.
    cache_tokens: int = 0  # 0: as many as a quarter of the free memory holds
    max_sequences: int = 64
    prompt_chunk: int = 256
    prefix_cache: bool = True

    def __post_init__(self) -> None:
        least = {
            "--instances": (self.instances, 1),
            "--threads": (self.threads, 0),
            "--max-batch": (self.max_batch, 1),
            "--max-delay": (self.max_delay_s, 0),
            "--max-queue": (self.max_queue, 1),
            "--max-body": (self.max_body_bytes, 1),
            "--drain": (self.drain_s, 0),
            "--cache-tokens": (self.cache_tokens, 0),
            "--max-sequences": (self.max_sequences, 1),
            "--prompt-chunk": (self.prompt_chunk, 1),
        }
        for name, (value, smallest) in least.items():
            if not value >= smallest:
                raise OptionError(f"`{name}` is {value:g}: it is {smallest} or more")
            if value > MOST and name != "--max-body":
                raise OptionError(f"`{name}` is {value:g}: it is {MOST:,} or less")
        if not 0 < self.time_limit_s <= MOST:
            raise OptionError(f"`--time-limit` is more than 0 seconds, and {MOST:,} or less")
        if not 0 <= self.port < 1 << 16:
            raise OptionError(f"there is no port {self.port}", hint="0 takes one that is free")
        if (self.tls_certificate is None) != (self.tls_key is None):
            raise OptionError(
                "a certificate and its key come together", hint="`--tls-cert FILE --tls-key FILE`"
            )
