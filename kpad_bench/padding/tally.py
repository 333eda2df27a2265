"""Step counters as plain integers, counted where vLLM dispatches a step. Knows nothing of vLLM."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

MODES = ("NONE", "PIECEWISE", "FULL")


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
        #: request id -> tokens of its newest draft that the suffix tree proposed
        self.real_lengths: dict[str, int] = {}

    def step(
        self, *, is_decode_only: bool, is_uniform: bool, mode: str, n_requests: int, padding: int
    ) -> None:
        """One dispatched step. ``padding``: tokens added to reach a captured size."""
        self.steps += 1
        self.modes[mode] = self.modes.get(mode, 0) + 1
        self.graph_padding_tokens += padding
        if not is_decode_only:
            return
        self.decode_steps += 1
        self.decode_requests += n_requests
        self.uniform_decode_steps += is_uniform
        self.full_decode_steps += mode == "FULL"

    def verified(self, scheduled: Mapping[str, Sequence[int]]) -> None:
        """Drafts that go into this step's verification: request id -> draft token ids."""
        for request_id, draft in scheduled.items():
            real = min(self.real_lengths.get(request_id, len(draft)), len(draft))
            self.real_draft_tokens += real
            self.pad_tokens += len(draft) - real

    def sampled(self, request_ids: Sequence[str], sampled_token_ids: Sequence[Sequence[int]]) -> None:
        """What verification let through: accepted tokens beyond the real draft are pad hits."""
        for request_id, sampled in zip(request_ids, sampled_token_ids, strict=False):
            real = self.real_lengths.get(request_id)
            if real is not None:
                self.pad_hits += max(0, len(sampled) - 1 - real)

    def drafted(self, request_ids: Sequence[str], drafts: Sequence[Sequence[int]]) -> None:
        """The tree's own drafts of this step, before any pad.

        A request that sits out a step leaves the batch and comes back with its draft, so only
        ``finished`` forgets.
        """
        self.real_lengths |= {rid: len(draft) for rid, draft in zip(request_ids, drafts, strict=False)}

    def finished(self, request_ids: Iterable[str]) -> None:
        """Forget requests that will not come back."""
        for request_id in request_ids:
            self.real_lengths.pop(request_id, None)

    def read(self) -> dict[str, int]:
        """A copy for the harness; names as in the trials table where they are the same thing."""
        counts = {name: value for name, value in vars(self).items() if isinstance(value, int)}
        return counts | {f"mode_{mode.lower()}": count for mode, count in self.modes.items()}
