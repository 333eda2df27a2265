"""What is sent to a server, with exceptions by corpus and model class; and the base of all configuration."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Annotated, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field, field_validator

PositiveInt = Annotated[int, Field(gt=0, strict=True)]
#: A slip of the finger: lists of capture sizes grow with it.
MOST_REQUESTS = 100_000
Concurrency = Annotated[int, Field(gt=0, le=MOST_REQUESTS, strict=True)]
Kind = Literal["dense", "distill", "fp8", "moe"]
#: Of a trial's deadline: shorter than the one is no night's concern, slower than the other is not worth it.
LEAST_DEADLINE_S, LEAST_TOK_PER_S = 3600.0, 5.0
#: What ``load.by_class`` may speak of.
LOAD_CLASSES = ("reasoning", *get_args(Kind))


class Frozen(BaseModel):
    """Base of all configuration objects: immutable, unknown keys refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=(), allow_inf_nan=False)


class Load(Frozen):
    """What is sent in one pass: closed loop, ``concurrency`` requests open, streaming."""

    concurrency: Concurrency
    n_prompts: PositiveInt
    n_warmup: Annotated[int, Field(ge=0, strict=True)] = 8
    #: disjoint prompts answered after the caches were emptied, before the pass: what production looks like
    n_primed: Annotated[int, Field(ge=0, strict=True)] = 0
    #: have the measured prompts themselves answered once before the pass: to show what that does to a number
    warm: bool = False
    #: keep the slots full with further prompts of the corpus, unmeasured, until the last measured one ends.
    #: Columns from the server's counters (acceptance_length, steps, drafts) are then of both.
    fill: bool = False
    #: /v1/chat/completions, /v1/completions, or auto: completions where the model has no chat template
    endpoint: Literal["chat", "completions", "auto"] = "chat"
    max_tokens: PositiveInt
    temperature: Annotated[float, Field(ge=0)]
    seed: Annotated[int, Field(strict=True)] = 0

    @property
    def default_deadline_s(self) -> float:
        """Seconds that a trial may last, all its passes together, where the configuration names none."""
        n_requests = self.n_warmup + self.n_primed + self.n_prompts * (1 + self.warm)
        waves = math.ceil(n_requests / self.concurrency)
        return max(LEAST_DEADLINE_S, waves * self.max_tokens / LEAST_TOK_PER_S)


class LoadOverride(Frozen):
    """What differs from the sweep's load for one corpus or one model class."""

    concurrency: Concurrency | None = None
    n_prompts: PositiveInt | None = None
    n_warmup: Annotated[int, Field(ge=0, strict=True)] | None = None
    n_primed: Annotated[int, Field(ge=0, strict=True)] | None = None
    warm: bool | None = None
    fill: bool | None = None
    endpoint: Literal["chat", "completions", "auto"] | None = None
    max_tokens: PositiveInt | None = None
    temperature: Annotated[float, Field(ge=0)] | None = None
    seed: Annotated[int, Field(strict=True)] | None = None


class LoadConfig(Load):
    """The load of a sweep, with exceptions by corpus and by model class (class wins)."""

    by_corpus: dict[str, LoadOverride] = {}
    by_class: dict[str, LoadOverride] = {}

    @field_validator("by_class")
    @classmethod
    def _known_classes(cls, value: dict[str, LoadOverride]) -> dict[str, LoadOverride]:
        unknown = sorted(set(value) - set(LOAD_CLASSES))
        if unknown:
            raise ValueError(f"no such model class: {', '.join(unknown)}; allowed: {', '.join(LOAD_CLASSES)}")
        return value

    def resolve(self, corpus: str, load_class: str) -> Load:
        """The load of one cell."""
        values = {name: getattr(self, name) for name in Load.model_fields}
        for override in (self.by_corpus.get(corpus), self.by_class.get(load_class)):
            values |= {} if override is None else override.model_dump(exclude_none=True)
        return Load(**values)

    def highest_temperature(self) -> float:
        """The hottest of all cells this load may resolve to."""
        return max(one.temperature for one in self._each() if one.temperature is not None)

    def highest_concurrency(self) -> int:
        """The most requests that any cell this load may resolve to has open at once."""
        return max(one.concurrency for one in self._each() if one.concurrency is not None)

    def _each(self) -> Iterator[Load | LoadOverride]:
        yield self
        yield from self.by_corpus.values()
        yield from self.by_class.values()
