"""Step counters as plain integers: of a worker, where vLLM dispatches a step, and of its API process.

Knows nothing of vLLM.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

MODES = ("NONE", "PIECEWISE", "FULL")


#: Bins of the step-time histogram per factor of e: 100 makes a bin 1 % wide.
BINS_PER_E = 100


class _Running(NamedTuple):
    """The step that was dispatched last."""

    start_ns: int
    mode: str
    is_decode_only: bool
    request_ids: Collection[str]


class Tally:
    """Counters of one worker since its boot. The window of a trial is the difference of two reads."""

    def __init__(self) -> None:
        self.steps = 0
        self.decode_steps = 0
        self.uniform_decode_steps = 0
        self.decode_requests = 0
        self.full_decode_steps = 0
        self.graph_padding_tokens = 0
        self.real_draft_tokens = 0
        self.pad_tokens = 0
        self.pad_hits = 0
        self.modes = dict.fromkeys(MODES, 0)
        self.timed_steps = 0
        self.timed_ns = 0
        self.timed_decode_steps = 0
        self.timed_decode_ns = 0
        #: graph mode -> ns of timed steps
        self.timed_modes = dict.fromkeys(MODES, 0)
        #: bin -> timed decode-only steps of about e^(bin / BINS_PER_E) ns
        self.decode_bins: dict[int, int] = {}
        self._running: _Running | None = None
        #: request id -> tokens of its newest draft that the suffix tree proposed
        self.real_lengths: dict[str, int] = {}

    def step(
        self, *, is_decode_only: bool, is_uniform: bool, mode: str, n_requests: int, padding: int
    ) -> None:
        """One dispatched step. ``padding``: tokens added to reach a captured size."""
        self.steps += 1
        self.modes[mode] += 1
        self.graph_padding_tokens += padding
        if not is_decode_only:
            return
        self.decode_steps += 1
        self.decode_requests += n_requests
        self.uniform_decode_steps += is_uniform
        self.full_decode_steps += mode == "FULL"

    def started(self, now_ns: int, finished: Collection[str]) -> None:
        """The engine begins a step: that ends the step before, whose time runs from start to start.

        Not timed when every request of the step before has finished: the engine may have been idle
        since.
        """
        before, self._running = self._running, None
        if before is None or (finished and all(name in finished for name in before.request_ids)):
            return
        elapsed_ns = now_ns - before.start_ns
        self.timed_steps += 1
        self.timed_ns += elapsed_ns
        self.timed_modes[before.mode] += elapsed_ns
        if before.is_decode_only:
            self.timed_decode_steps += 1
            self.timed_decode_ns += elapsed_ns
            place = int(math.log(max(1, elapsed_ns)) * BINS_PER_E)
            self.decode_bins[place] = self.decode_bins.get(place, 0) + 1

    def dispatched(
        self, start_ns: int, mode: str, is_decode_only: bool, request_ids: Collection[str]
    ) -> None:
        """The step that began at ``start_ns`` runs the model for these requests (kept, not copied)."""
        self._running = _Running(start_ns, mode, is_decode_only, request_ids)

    def verified(self, scheduled: Mapping[str, Sequence[int]]) -> None:
        """Drafts that go into this step's verification: request id -> draft token ids."""
        lengths = [len(draft) for draft in scheduled.values()]
        proposed = map(self.real_lengths.get, scheduled, lengths)  # a draft nobody noted is all real
        real = sum([p if p < n else n for p, n in zip(proposed, lengths, strict=True)])
        self.real_draft_tokens += real
        self.pad_tokens += sum(lengths) - real

    def sampled(self, request_ids: Sequence[str], sampled_token_ids: Sequence[Sequence[int]]) -> None:
        """What verification let through: accepted tokens beyond the real draft are pad hits."""
        for request_id, sampled in zip(request_ids, sampled_token_ids, strict=False):
            if len(sampled) > 1:
                accepted = len(sampled) - 1
                self.pad_hits += max(0, accepted - self.real_lengths.get(request_id, accepted))

    def drafted(self, request_ids: Sequence[str], drafts: Sequence[Sequence[int]]) -> None:
        """The tree's own drafts of this step, before any pad.

        A request that sits out a step leaves the batch and comes back with its draft, so only
        ``finished`` forgets.
        """
        self.real_lengths.update(zip(request_ids, map(len, drafts), strict=False))

    def finished(self, request_ids: Iterable[str]) -> None:
        """Forget requests that will not come back."""
        for request_id in request_ids:
            self.real_lengths.pop(request_id, None)

    def read(self) -> dict[str, int]:
        """A copy of the counts for the harness; names as in the trials table where they are the same."""
        counts = {name: value for name, value in vars(self).items() if isinstance(value, int)}
        counts |= {f"mode_{mode.lower()}": count for mode, count in self.modes.items()}
        return counts | {f"timed_{mode.lower()}_ns": ns for mode, ns in self.timed_modes.items()}


class FrontTally:
    """Counts of one engine's steps that brought output.

    A step is decode-only when it brought no request its first token; a step that computed only a part of
    a prompt beside the decodes is not told apart. Its time is the least gap between two tokens that any
    of its requests saw, by the engine's clock: a request that sat a step out saw a longer one.
    """

    def __init__(self) -> None:
        self.steps = 0
        self.decode_steps = 0
        self.decode_requests = 0
        self.timed_decode_steps = 0
        self.timed_decode_ns = 0
        #: graph mode -> steps; empty where vLLM does not tell (no ``--cudagraph-metrics``)
        self.modes: dict[str, int] = {}

    def step(self, n_first_tokens: int, gaps_s: Sequence[float], mode: str | None) -> None:
        """One step: requests that got their first token, and the token gaps of all others, seconds."""
        self.steps += 1
        if mode is not None:
            self.modes[mode] = self.modes.get(mode, 0) + 1
        if n_first_tokens or not gaps_s:
            return
        self.decode_steps += 1
        self.decode_requests += len(gaps_s)
        self.timed_decode_steps += 1
        self.timed_decode_ns += round(min(gaps_s) * 1e9)

    def read(self) -> dict[str, int]:
        """A copy of the counts, named as the worker names its own."""
        counts = {name: value for name, value in vars(self).items() if isinstance(value, int)}
        return counts | {f"mode_{mode.lower()}": count for mode, count in self.modes.items()}
