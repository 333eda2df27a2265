"""The manifest of a corpus, and the order and roles of its prompts.

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
from typing import Annotated, Any, Literal, NamedTuple, TypeVar

from pydantic import Field, model_validator

from kpad_bench.config import Frozen, Name, PositiveInt
from kpad_bench.corpus_extract import Dropped, Item, extract, render
from kpad_bench.errors import DataError
from kpad_bench.prompt import Placed, Prompt, prompt_sha256

T = TypeVar("T")
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Revision = Annotated[str, Field(pattern=r"^[0-9a-f]{40}$")]
MEASURED, WARMUP, PRIMING, MIX = "measured", "warmup", "priming", "mix"
#: Sixteenths of the hash space of the folded text. One table for every corpus, so that a text has the
#: same role wherever it occurs: what warms one corpus up is never measured in another, and a mix
#: shares nothing with the cells of its members.
ROLE_OF_BUCKET = (WARMUP,) * 2 + (PRIMING,) * 2 + (MIX,) * 2 + (MEASURED,) * 10
_SURROGATE = re.compile("[\ud800-\udfff]")


class HubSource(Frozen):
    """A data set of the hub at one commit. ``file`` and ``sha256`` are null where not known."""

    hub_id: str
    revision: Revision
    config: str | None = None
    splits: tuple[str, ...] = ()
    file: str | None = None
    sha256: Sha256 | None = None


class PackageSource(Frozen):
    """A data file inside an installed Python package."""

    distribution: str
    file: str
    sha256: Sha256


class Slice(Frozen):
    """Rows whose key hashes to ``part`` of ``parts``: slices of one corpus are disjoint."""

    parts: PositiveInt
    part: Annotated[int, Field(ge=0)]


class Manifest(Frozen):
    """One corpus: where its rows come from, and what is made of them."""

    name: Name
    description: str
    rule: Literal["humaneval", "mbpp", "swebench", "chat", "mix"]
    sources: tuple[HubSource, ...] = ()
    package: PackageSource | None = None
    licence: str
    gated: bool = False
    template: str = "{text}"
    filters: tuple[Literal["flagged", "toxic", "redacted"], ...] = ()
    slice: Slice | None = None
    expected_rows: PositiveInt | None = None
    max_prompts: PositiveInt | None = None
    seed: int = 0
    profile: str | None = None
    members: dict[Name, PositiveInt] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _fits_its_rule(self) -> Manifest:
        if (self.rule == "mix") != bool(self.members and self.profile):
            raise ValueError("profile and members go with rule: mix, and only with it")
        if self.rule != "mix" and not self.sources:
            raise ValueError("a corpus of rows needs at least one source")
        if "{text}" not in self.template or ("{tests}" in self.template) != (self.rule == "mbpp"):
            raise ValueError("template must hold {text}, and {tests} with rule: mbpp only")
        return self

    @property
    def template_sha256(self) -> str:
        """Hash of the template; a frozen set made with another one is stale."""
        return hashlib.sha256(self.template.encode()).hexdigest()

    @property
    def origin(self) -> str:
        """Where the prompts come from, in a few words."""
        if self.package:
            return f"package {self.package.distribution}"
        if self.members:
            return " ".join(f"{name}:{weight}" for name, weight in self.members.items())
        return " ".join(f"{source.hub_id}@{source.revision[:8]}" for source in self.sources)

    @property
    def how_to_get(self) -> str:
        """What to do for a corpus that is not fetched by itself."""
        source = self.sources[0]
        page = f"https://huggingface.co/datasets/{source.hub_id}"
        gate = f"accept the terms at {page}, set HF_TOKEN, " if self.gated else ""
        return (
            f"not fetched by itself: {gate}download {source.file or 'the data files'} of {source.hub_id} at "
            f"revision {source.revision} ({page}/tree/{source.revision}) and give it with "
            "--source FILE (or FOLDER)"
        )


class _Ranked(NamedTuple):
    order: tuple[bytes, str]
    placed: Placed


@dataclass(frozen=True, slots=True)
class Sample:
    """All prompts of a corpus in rank order; ``n_read == len(prompts) + sum(dropped.values())``."""

    prompts: tuple[Placed, ...]
    n_read: int
    dropped: dict[str, int]
    n_surrogate_rows: int
    rows_sha256: str


class _Draft(NamedTuple):
    """A prompt before and after lone surrogates became U+FFFD."""

    key: str
    text: str
    system: str | None
    original: str
    is_repaired: bool


def fold(text: str) -> str:
    """The text by which duplicates are found: NFC, white space collapsed, case folded."""
    return " ".join(unicodedata.normalize("NFC", text).split()).casefold()


def role_of(folded: str) -> str:
    """measured, warmup, priming or mix, by the hash of the folded text alone."""
    return ROLE_OF_BUCKET[hashlib.sha256(folded.encode()).digest()[0] % 16]


def sample(manifest: Manifest, rows: Iterable[tuple[str, Mapping[str, Any]]]) -> Sample:
    """Extract, filter, remove duplicates and rank. ``rows`` come with the place to name in errors.

    Of duplicates the lowest rank stays, so the order of the rows is irrelevant. Raises DataError
    at a row of another schema and when no prompt is left.
    """
    dropped: Counter[str] = Counter()
    best: dict[str, _Ranked] = {}
    row_hashes: list[bytes] = []
    n_surrogate_rows = 0
    for where, row in rows:
        item = extract(manifest.rule, row, manifest.filters, where)
        row_hashes.append(_row_hash(row))
        draft = _draft(manifest, item)
        if isinstance(draft, Dropped):
            dropped[draft.reason] += 1
            continue
        n_surrogate_rows += draft.is_repaired
        folded = fold(draft.text)
        ranked = _rank(manifest, draft, role_of(folded))
        dropped["duplicate"] += folded in best
        best[folded] = min(best.get(folded, ranked), ranked, key=lambda one: one.order)
    kept = _limited(manifest, sorted(best.values(), key=lambda one: one.order), dropped)
    dropped = +dropped
    if len(kept) + dropped.total() != len(row_hashes):
        raise AssertionError(f"{manifest.name}: kept and dropped do not add up to rows read: {dropped}")
    if not kept:
        raise DataError(
            f"{manifest.name}: no prompt in {len(row_hashes)} rows; dropped: {dict(dropped) or 'none'}; "
            "give a source with usable rows"
        )
    return Sample(
        prompts=tuple(one.placed for one in kept),
        n_read=len(row_hashes),
        dropped=dict(sorted(dropped.items())),
        n_surrogate_rows=n_surrogate_rows,
        rows_sha256=hashlib.sha256(b"".join(sorted(row_hashes))).hexdigest(),
    )


def _row_hash(row: Mapping[str, Any]) -> bytes:
    return hashlib.sha256(json.dumps(row, sort_keys=True, default=str).encode()).digest()


def _draft(manifest: Manifest, item: Item | Dropped) -> _Draft | Dropped:
    if isinstance(item, Dropped):
        return item
    text = render(manifest.template, item.fields)
    if "\0" in text or "\0" in (item.system or ""):
        return Dropped("nul")
    key = _repaired(item.key)
    cut = manifest.slice
    if cut and int.from_bytes(hashlib.sha256(key.encode()).digest(), "big") % cut.parts != cut.part:
        return Dropped("other_slice")
    system = None if item.system is None else _repaired(item.system)
    is_repaired = (_repaired(text), system) != (text, item.system)
    return _Draft(key, _repaired(text), system, text, is_repaired)


def _repaired(text: str) -> str:
    """Lone surrogates, which JSON can spell and UTF-8 cannot, become U+FFFD."""
    return _SURROGATE.sub("\ufffd", text)


def _rank(manifest: Manifest, draft: _Draft, role: str) -> _Ranked:
    identity = json.dumps([manifest.seed, manifest.name, draft.key, draft.system, draft.text])
    rank_hash = hashlib.sha256(identity.encode()).digest()
    original_sha256 = hashlib.sha256(draft.original.encode(errors="surrogatepass")).hexdigest()
    prompt = Prompt(
        prompt_id=f"{manifest.name}-{rank_hash.hex()[:16]}",
        text=draft.text,
        system=draft.system,
        sha256=prompt_sha256(draft.text, draft.system),
    )
    placed = Placed(prompt, role, draft.key, original_sha256)
    return _Ranked((rank_hash, original_sha256), placed)


def _limited(manifest: Manifest, ranked: list[_Ranked], dropped: Counter[str]) -> list[_Ranked]:
    """One prompt per SWE-bench instance (Lite and Verified overlap), then at most ``max_prompts``."""
    kept = ranked
    if manifest.rule == "swebench":
        lowest = {one.placed.row_key: one for one in reversed(ranked)}
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
