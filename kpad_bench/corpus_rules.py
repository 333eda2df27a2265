"""The order and roles of the prompts of a corpus.

Pure: rows in, prompts out. Nothing here reads a file, and there is no random generator: rank, role
and slice are hashes, so they depend on neither file order nor library version nor PYTHONHASHSEED.
"""

from __future__ import annotations

import hashlib
import json
import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

from kpad_bench.corpus_extract import Dropped, Item, extract, render
from kpad_bench.corpus_manifest import Manifest
from kpad_bench.errors import DataError
from kpad_bench.prompt import Placed, Prompt, prompt_sha256

T = TypeVar("T")
MEASURED, WARMUP, PRIMING, MIX = "measured", "warmup", "priming", "mix"
#: Sixteenths of the hash space of the folded text. One table for every corpus, so that a text has the
#: same role wherever it occurs: what warms one corpus up is never measured in another, and a mix
#: shares nothing with the cells of its members.
ROLE_OF_BUCKET = (WARMUP,) * 2 + (PRIMING,) * 2 + (MIX,) * 2 + (MEASURED,) * 10
_SURROGATE = re.compile("[\ud800-\udfff]")

#: Text and system message -> why it is too long for the budget; None when it fits.
Fits = Callable[[str, str | None], str | None]


class _Draft(NamedTuple):
    """A prompt before and after lone surrogates became U+FFFD."""

    key: str
    text: str
    system: str | None
    original: str
    is_repaired: bool


class _Ranked(NamedTuple):
    order: tuple[bytes, bytes]
    folded: bytes
    draft: _Draft


@dataclass(frozen=True, slots=True)
class Sample:
    """All prompts of a corpus in rank order; ``n_read == len(prompts) + sum(dropped.values())``."""

    prompts: tuple[Placed, ...]
    n_read: int
    dropped: dict[str, int]
    n_surrogate_rows: int
    rows_sha256: str


class _Ranking:
    """The prompts of lowest rank, each text once; of duplicates the lowest rank stays.

    With a limit it holds the texts of at most twice as many prompts, however many rows come, and a hash
    of each text seen.
    """

    def __init__(self, limit: int | None) -> None:
        self._limit = limit
        self._seen: set[bytes] = set()
        self._held: dict[bytes, _Ranked] = {}
        self._cutoff: tuple[bytes, bytes] | None = None
        self.n_duplicates = 0

    def add(self, new: _Ranked) -> None:
        """Take one prompt into account."""
        self.n_duplicates += new.folded in self._seen
        self._seen.add(new.folded)
        held = self._held.get(new.folded)
        if held is None and self._cutoff is not None and new.order > self._cutoff:
            return  # a limit's worth of others is before it, and ranks only fall
        if held is None or new.order < held.order:
            self._held[new.folded] = new
        if self._limit is not None and len(self._held) >= 2 * self._limit:
            lowest = self.lowest()
            self._held = {one.folded: one for one in lowest}
            self._cutoff = lowest[-1].order

    def lowest(self) -> list[_Ranked]:
        """In rank order, up to the limit."""
        return sorted(self._held.values(), key=lambda one: one.order)[: self._limit]

    @property
    def n_over_limit(self) -> int:
        """Different texts beyond the limit."""
        return 0 if self._limit is None else max(0, len(self._seen) - self._limit)


def fold(text: str) -> str:
    """The text by which duplicates are found: NFC, white space collapsed, case folded."""
    return " ".join(unicodedata.normalize("NFC", text).split()).casefold()


def role_of(folded: str) -> str:
    """measured, warmup, priming or mix, by the hash of the folded text alone."""
    return _role(_sha256(folded))


def _role(folded_hash: bytes) -> str:
    return ROLE_OF_BUCKET[folded_hash[0] % 16]


def _sha256(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()


def sample(
    manifest: Manifest, rows: Iterable[tuple[str, Mapping[str, Any]]], fits: Fits | None = None
) -> Sample:
    """Extract, filter, remove duplicates and rank. ``rows`` come with the place to name in errors.

    Raises DataError at a row of another schema and when no prompt is left.
    """
    dropped: Counter[str] = Counter()
    ranking = _Ranking(None if manifest.rule == "swebench" else manifest.max_prompts)
    row_hashes: list[bytes] = []
    n_surrogate_rows = 0
    for where, row in rows:
        item = extract(manifest.rule, row, manifest.filters, where)
        row_hashes.append(_row_hash(row))
        draft = _draft(manifest, item, fits)
        if isinstance(draft, Dropped):
            dropped[draft.reason] += 1
            continue
        n_surrogate_rows += draft.is_repaired
        ranking.add(_rank(manifest, draft))
    dropped["duplicate"] += ranking.n_duplicates
    dropped["over_max_prompts"] += ranking.n_over_limit
    kept = _limited(manifest, ranking.lowest(), dropped)
    dropped = +dropped
    if len(kept) + dropped.total() != len(row_hashes):
        raise AssertionError(f"{manifest.name}: kept and dropped do not add up to rows read: {dropped}")
    if not kept:
        raise DataError(
            f"{manifest.name}: no prompt in {len(row_hashes)} rows; dropped: {dict(dropped) or 'none'}; "
            "give a source with usable rows"
        )
    return Sample(
        prompts=tuple(_placed(manifest, one) for one in kept),
        n_read=len(row_hashes),
        dropped=dict(sorted(dropped.items())),
        n_surrogate_rows=n_surrogate_rows,
        rows_sha256=hashlib.sha256(b"".join(sorted(row_hashes))).hexdigest(),
    )


def _row_hash(row: Mapping[str, Any]) -> bytes:
    return _sha256(json.dumps(row, sort_keys=True, default=str))


def _draft(manifest: Manifest, item: Item | Dropped, fits: Fits | None) -> _Draft | Dropped:
    if isinstance(item, Dropped):
        return item
    original = render(manifest.template, item.fields)
    if "\0" in original or "\0" in (item.system or ""):
        return Dropped("nul")
    key, text = _repaired(item.key), _repaired(original)
    cut = manifest.slice
    if cut and int.from_bytes(_sha256(key), "big") % cut.parts != cut.part:
        return Dropped("other_slice")
    system = None if item.system is None else _repaired(item.system)
    if fits is not None and (reason := fits(text, system)) is not None:
        return Dropped(reason)
    return _Draft(key, text, system, original, (text, system) != (original, item.system))


def _repaired(text: str) -> str:
    """Lone surrogates, which JSON can spell and UTF-8 cannot, become U+FFFD."""
    return text if text.isascii() else _SURROGATE.sub("\ufffd", text)


def _rank(manifest: Manifest, draft: _Draft) -> _Ranked:
    identity = json.dumps([manifest.seed, manifest.name, draft.key, draft.system, draft.text])
    return _Ranked((_sha256(identity), _original_hash(draft)), _sha256(fold(draft.text)), draft)


def _original_hash(draft: _Draft) -> bytes:
    return hashlib.sha256(draft.original.encode(errors="surrogatepass")).digest()


def _placed(manifest: Manifest, ranked: _Ranked) -> Placed:
    (rank_hash, original_hash), folded, draft = ranked
    prompt = Prompt(
        prompt_id=f"{manifest.name}-{rank_hash.hex()[:16]}",
        text=draft.text,
        system=draft.system,
        sha256=prompt_sha256(draft.text, draft.system),
    )
    return Placed(prompt, _role(folded), draft.key, original_hash.hex())


def _limited(manifest: Manifest, ranked: list[_Ranked], dropped: Counter[str]) -> list[_Ranked]:
    """One prompt per SWE-bench instance (Lite and Verified overlap), then at most ``max_prompts``."""
    if manifest.rule != "swebench":
        return ranked
    lowest = {one.draft.key: one for one in reversed(ranked)}
    kept = sorted(lowest.values(), key=lambda one: one.order)
    dropped["duplicate"] += len(ranked) - len(kept)
    limit = manifest.max_prompts or len(kept)
    dropped["over_max_prompts"] += max(0, len(kept) - limit)
    return kept[:limit]


def interleave(
    members: Mapping[str, Sequence[T]], weights: Mapping[str, int], key: Callable[[T], str]
) -> list[T]:
    """Rounds of ``weights[name]`` items of each member, in member order, until one runs short.

    Within a round the order is by hash of ``key``, so that any prefix is mixed. Never takes more of one
    member to make up for another.
    """
    n_rounds = min(len(members[name]) // weight for name, weight in weights.items())
    mixed: list[T] = []
    for number in range(n_rounds):
        chosen = [
            item
            for name, weight in sorted(weights.items())
            for item in members[name][number * weight : (number + 1) * weight]
        ]
        mixed += sorted(chosen, key=lambda item: hashlib.sha256(key(item).encode()).digest())
    return mixed
