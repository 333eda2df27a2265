"""One prompt as it is sent. Shared by the module that freezes prompts and the one that sends them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass


def prompt_sha256(text: str, system: str | None = None) -> str:
    """Hash of what is sent. No kept text holds a NUL, so it can part the two messages."""
    sent = text if system is None else f"{system}\0{text}"
    return hashlib.sha256(sent.encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class Prompt:
    """One user message, with its system message where the conversation had one."""

    prompt_id: str
    text: str
    system: str | None
    sha256: str

    def messages(self) -> list[dict[str, str]]:
        """The prompt as chat messages."""
        system = [] if self.system is None else [{"role": "system", "content": self.system}]
        return [*system, {"role": "user", "content": self.text}]


@dataclass(frozen=True, slots=True)
class Placed:
    """A prompt of a frozen corpus: what it may be used for, and the row it came from.

    ``original_sha256`` is of the text before anything in it was replaced.
    """

    prompt: Prompt
    role: str
    row_key: str
    original_sha256: str


def assert_distinct(prompts: Iterable[Prompt]) -> None:
    """A bug if a text is there twice: a server that has seen it answers it faster."""
    seen: set[str] = set()
    for prompt in prompts:
        if prompt.sha256 in seen:
            raise AssertionError(f"{prompt.prompt_id} would reach one server twice")
        seen.add(prompt.sha256)
