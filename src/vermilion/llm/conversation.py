"""A conversation: every turn reads only what the cache does not hold yet."""

from __future__ import annotations

from typing import Any

from vermilion.errors import OptionError
from vermilion.llm.generate import Generated, OnText, Sampling, continued
from vermilion.llm.open_model import AnyModel, check_room
from vermilion.llm.own_model import OwnModel

# A context may be of 128 Ki tokens, whose cache is larger than the model; few talks come near.
_FIRST_ROOM = 2048


class Conversation:
    """Messages so far, and the generator whose cache holds them."""

    def __init__(self, opened: AnyModel, sampling: Sampling, system: str = "") -> None:
        if sampling.beams > 1:
            raise OptionError("a conversation has one beam", hint="leave out `--beams`")
        self._opened, self._sampling = opened, sampling
        self._start = [{"role": "system", "content": system}] if system else []
        self._messages = list(self._start)
        self._generator: Any = None
        self._room = 0  # tokens that the generator's cache is for

    def answer(self, text: str, on_text: OnText | None = None) -> Generated:
        """Return the model's answer to the next message.

        Raises: OptionError where the conversation no longer fits the context; it stays as it was.
        """
        messages = [*self._messages, {"role": "user", "content": text}]
        whole = self._opened.encode(self._opened.apply_chat_template(messages), as_chat=False)
        check_room(self._opened.config, len(whole), self._sampling.new_tokens)
        new = self._continue_from(whole)
        made = continued(self._opened, self._generator, new, self._sampling, on_text=on_text)
        self._messages = [*messages, {"role": "assistant", "content": made.text}]
        return made

    def start_again(self) -> None:
        """Forget everything but the system's message."""
        self._messages, self._generator, self._room = list(self._start), None, 0

    def _continue_from(self, whole: list[int]) -> list[int]:
        """Keep as much of the cache as the new text begins with; give the tokens after that."""
        needed = len(whole) + self._sampling.new_tokens
        # onnxruntime-genai leaves the last generated token out of its cache when more is appended.
        if not isinstance(self._opened, OwnModel) or needed > self._room:
            context = self._opened.config.context_length()
            self._room = min(context, max(_FIRST_ROOM, 2 * needed))
            search = self._sampling.search(self._room)
            self._generator = self._opened.generator(search, self._sampling.guidance)
            return whole
        held = self._generator.get_sequence(0).tolist()
        pairs = zip(held, whole[:-1], strict=False)
        longest = min(len(held), len(whole) - 1)
        same = next((at for at, (a, b) in enumerate(pairs) if a != b), longest)
        self._generator.rewind_to(same)
        return whole[same:]
