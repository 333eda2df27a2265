"""A frozen set as people want to see it: counts, lengths, a few prompts."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Iterator, Sequence

from kpad_bench.corpus import FrozenCorpus
from kpad_bench.corpus_manifest import Manifest, load_manifest
from kpad_bench.corpus_pins import doubts
from kpad_bench.corpus_store import Lock
from kpad_bench.prompt import Prompt

_BAR_WIDTH = 40
_MOST_CHARS = 600


def show(corpus: FrozenCorpus, n_prompts: int) -> str:
    """The whole view: a heading, what came of the rows, a histogram, and the first measured prompts."""
    manifest = load_manifest(corpus.name)
    parts = [
        _heading(manifest, corpus.lock),
        _counts(corpus.lock),
        _lengths([one.prompt for one in corpus.prompts]),
        *_prompts(corpus.measured[:n_prompts]),
    ]
    return "\n\n".join(parts)


def _heading(manifest: Manifest, lock: Lock) -> str:
    budget = lock.budget
    tokenizers = [
        f"{name} (longest {one.longest_tokens} tokens, sha256 {one.sha256[:12]})"
        for name, one in budget.tokenizers.items()
    ]
    within = f"{budget.limit_tokens} tokens" if tokenizers else f"{budget.limit_bytes} bytes, any tokenizer"
    lines = [
        f"{lock.name}: {manifest.description}",
        f"digest    {lock.digest}",
        f"source    {manifest.origin}",
        f"licence   {manifest.licence}",
        f"budget    {within} ({budget.prompt_tokens} - 2 x K {budget.largest_k} - 2)",
        f"counted   {', '.join(tokenizers) or 'by bytes'}; longest {budget.longest_bytes} bytes",
        *(f"warning   {doubt}" for doubt in doubts(lock)),
    ]
    return "\n".join(lines)


def _counts(lock: Lock) -> str:
    rows = [("rows read", lock.read), *((f"- {name}", n) for name, n in lock.dropped.items())]
    rows += [("prompts", lock.rows), *((f"  {role}", n) for role, n in lock.roles.items())]
    width = max(len(name) for name, _ in rows)
    return "\n".join(f"{name.ljust(width)}  {n:>8}" for name, n in rows)


def _lengths(prompts: Sequence[Prompt]) -> str:
    """Prompts by length in characters, in powers of two."""
    bins = Counter(max(len(prompt.text), 1).bit_length() for prompt in prompts)
    most = max(bins.values())
    lines = ["characters         prompts"]
    for power in range(min(bins), max(bins) + 1):
        bar = "#" * -(-bins[power] * _BAR_WIDTH // most)
        lines.append(f"{2 ** (power - 1):>7} - {2**power - 1:<7}  {bins[power]:>7}  {bar}".rstrip())
    return "\n".join(lines)


def _prompts(prompts: Sequence[Prompt]) -> Iterator[str]:
    for prompt in prompts:
        system = "" if prompt.system is None else f"[system] {prompt.system}\n"
        text = system + prompt.text
        cut = "" if len(text) <= _MOST_CHARS else f"\n... {len(text) - _MOST_CHARS} characters more"
        shown = "".join(c if c.isprintable() or c in "\n\t" else "\ufffd" for c in text[:_MOST_CHARS])
        yield f"{prompt.prompt_id}\n{textwrap.indent(shown + cut, '  ')}"
