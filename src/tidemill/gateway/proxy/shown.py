"""What a caller has been shown of an answer, while another replica might still have to go on with it."""

from __future__ import annotations

from typing import Any, Final

from tidemill.gateway.proxy.stream_watch import Chunk

__all__ = ["Shown"]

_MOST: Final = 2**20
"""Characters that are kept; a longer answer is not gone on with."""


class Shown:
    """The text of one answer in the OpenAI form, of which there is one choice."""

    def __init__(self) -> None:
        self.id: Any = None
        self.created: Any = None
        """As the first event has them: the rest has to look as if it were of the same answer."""
        self.plain = True
        """Nothing but text was shown. Calls and reasoning cannot be given back to an engine as they were."""
        self.tokens = 0
        """Events that brought text: an engine may put more than one token into one."""
        self._texts: list[str] = []
        self._length = 0

    @property
    def text(self) -> str:
        """All of it."""
        return "".join(self._texts)

    def see(self, chunk: Chunk) -> None:
        """An event that is passed on."""
        if self.id is None:
            self.id, self.created = chunk.id, chunk.created
        for choice in chunk.choices or ():
            delta = choice.delta if isinstance(choice.delta, dict) else {}
            text = choice.text or delta.get("content")
            others = any(value for name, value in delta.items() if name not in ("role", "content"))
            self.plain = self.plain and not others and not choice.index and isinstance(text, str | None)
            if text and self.plain:
                self._texts.append(text)
                self._length += len(text)
                self.tokens += 1
                if self._length > _MOST:
                    self.plain = False
                    self._texts.clear()
