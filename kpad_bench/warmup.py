"""Which prompts warm one server up: once for each corpus, none of them twice."""

from __future__ import annotations

from collections.abc import Sequence

from kpad_bench.corpus import FrozenCorpus
from kpad_bench.prompt import Prompt


class WarmUp:
    """The warm-up prompts of one server's life.

    What warming up is for (kernels compiled and tuned for the prompt lengths of a corpus) lasts as long as
    the process, and the caches are emptied before every pass anyway: so the first trial of each corpus
    warms up, and later ones do not. A mix shares warm-up prompts with its members: those that the server
    has had are left out.
    """

    def __init__(self) -> None:
        self._sent: set[str] = set()
        self._doubts: dict[str, list[str]] = {}

    def take(self, corpus: FrozenCorpus, wanted: int) -> Sequence[Prompt]:
        """What to send before the next trial of a corpus."""
        if corpus.name in self._doubts:
            return ()
        fresh = [prompt for prompt in corpus.warmup if prompt.sha256 not in self._sent][:wanted]
        self._sent.update(prompt.sha256 for prompt in fresh)
        short = f"{corpus.name} has {len(fresh)} unused warm-up prompts, {wanted} were asked for"
        self._doubts[corpus.name] = [short] if len(fresh) < wanted else []
        return fresh

    def doubts(self, corpus: FrozenCorpus) -> list[str]:
        """Said in every row of a corpus for which there were too few."""
        return self._doubts.get(corpus.name, [])
