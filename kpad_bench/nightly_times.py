"""How long a block will take: from the boots and passes that were measured, else from estimates.

Pure. Knows configurations and rows, no clock.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from statistics import fmean
from typing import Any

from kpad_bench.config import Load, Resolved
from kpad_bench.plan import Block, Trial
from kpad_bench.schema import OK

#: What a pass is taken for before any was measured: a mean answer, and the tokens per second of one
#: request among many. Guesses on the slow side; the first block of a model takes their place.
ANSWER_TOKENS = 1024
REQUEST_TOK_PER_S = {"cuda": 50.0, "cpu": 10.0}
#: Around a pass, beside its warm-up: counters, prompt lengths, the cache, the row.
AROUND_S = 5.0
#: Boots and passes vary: a block is given this much more than they took on the mean.
MARGIN = 1.1


class Times:
    """Seconds of boots, passes and what lies around them, by model and corpus."""

    def __init__(self, resolved: Resolved) -> None:
        self.resolved = resolved
        self._boots: defaultdict[str, list[float]] = defaultdict(list)
        self._passes: defaultdict[tuple[str, str], list[float]] = defaultdict(list)
        self._around: list[float] = []

    def learn(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Take in trial rows: ``boot_s`` and ``duration_s`` of those that are ok."""
        for row in rows:
            boot_s, pass_s = row.get("boot_s"), row.get("duration_s")
            if row.get("status") == OK and pass_s is not None:
                self._passes[row["model"], row["corpus"]].append(pass_s)
                if boot_s is not None:
                    self._boots[row["model"]].append(boot_s)

    def learn_block(self, rows: Sequence[Mapping[str, Any]], took_s: float) -> None:
        """Take in a block that has just been measured in ``took_s`` seconds, all told."""
        self.learn(rows)
        if rows and all(row.get("status") == OK for row in rows):
            boots = {row["boot_id"]: row.get("boot_s") or 0.0 for row in rows}
            rest_s = took_s - sum(boots.values()) - sum(row.get("duration_s") or 0.0 for row in rows)
            self._around.append(max(0.0, rest_s) / len(rows))

    def block_s(self, block: Block, trials: Collection[Trial]) -> float:
        """Seconds that these trials of a block will take, boots and a margin included."""
        wanted = {trial.trial_id for trial in trials}
        boots = [boot for boot in block.boots if any(trial.trial_id in wanted for trial in boot.trials)]
        seconds = sum(self._boot_s(boot.model) for boot in boots) + sum(map(self._trial_s, trials))
        return MARGIN * seconds

    def _boot_s(self, model: str) -> float:
        measured = self._boots.get(model)
        return fmean(measured) if measured else self.resolved.models[model].boot_estimate_s

    def _trial_s(self, trial: Trial) -> float:
        cell = trial.cell
        pass_s = self._pass_s(cell.model, cell.corpus, cell.load)
        if self._around:
            return pass_s + fmean(self._around)
        load = cell.load
        unmeasured = load.n_warmup + load.n_primed + load.n_prompts * load.warm
        return pass_s * (1 + unmeasured / load.n_prompts) + AROUND_S

    def _pass_s(self, model: str, corpus: str, load: Load) -> float:
        measured = self._passes.get((model, corpus)) or [
            seconds for (name, _), passes in self._passes.items() if name == model for seconds in passes
        ]
        if measured:
            return fmean(measured)
        tokens = load.n_prompts * min(load.max_tokens, ANSWER_TOKENS)
        rate = REQUEST_TOK_PER_S[self.resolved.config.server.platform]
        return tokens / (rate * min(load.concurrency, load.n_prompts))
