"""What a corpus is declared to be: ``corpora/NAME.yaml``. Knows nothing of rows and prompts."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, model_validator

from kpad_bench.config import MOST_K, Frozen, Name, PositiveInt
from kpad_bench.configfile import data_dir, read_yaml, validate
from kpad_bench.errors import UsageError

Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Revision = Annotated[str, Field(pattern=r"^[0-9a-f]{40}$")]
#: What a chat template may add to a prompt, in tokens, where the tokenizer is not known: SmolLM2's adds 30,
#: a default system message among them. Ample, since a template that adds more is found out only when named.
TEMPLATE_TOKENS = 256


class HubSource(Frozen):
    """A data set of the hub at one commit. ``file`` and ``sha256`` are null where not known."""

    hub_id: str
    revision: Revision
    config: str | None = None
    splits: tuple[str, ...] = ()
    file: str | None = None
    sha256: Sha256 | None = None

    @property
    def page(self) -> str:
        """Where people read about it and accept its terms."""
        return f"https://huggingface.co/datasets/{self.hub_id}"


class PackageSource(Frozen):
    """A data file inside an installed Python package."""

    distribution: str
    file: str
    sha256: Sha256


class Slice(Frozen):
    """Rows whose key hashes to ``part`` of ``parts``: slices of one corpus are disjoint."""

    parts: PositiveInt
    part: Annotated[int, Field(ge=0)]


class Budget(Frozen):
    """How long a prompt may be, so that output and drafts fit beside it for every K.

    ``prompt_tokens`` is the context (16384) less the longest output (8192); near the limit of the context
    one request turns every request's draft into zeros, so 2K + 2 tokens of the largest K stay free.
    """

    prompt_tokens: PositiveInt = 8192
    ks: Annotated[tuple[Annotated[int, Field(gt=0, le=MOST_K)], ...], Field(min_length=1)] = (4, 6, 8, 12, 32)

    @model_validator(mode="after")
    def _leaves_room(self) -> Budget:
        if self.limit_bytes <= 0:
            raise ValueError(f"prompt_tokens {self.prompt_tokens} leave no room for a prompt; raise them")
        return self

    @property
    def largest_k(self) -> int:
        """The K whose reserve is kept free."""
        return max(self.ks)

    @property
    def limit_tokens(self) -> int:
        """Most tokens of a templated prompt."""
        return self.prompt_tokens - (2 * self.largest_k + 2)

    @property
    def limit_bytes(self) -> int:
        """Most bytes of a prompt for a tokenizer that is not known: a byte is at most a token."""
        return self.limit_tokens - TEMPLATE_TOKENS


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
    budget: Budget = Budget()
    profile: str | None = None
    members: dict[Name, PositiveInt] = Field(default_factory=dict)
    #: of a mix that has the prompts of the cold one of its profile, on purpose: how it is to be measured
    cache_state: Literal["cold", "primed", "warm"] = "cold"

    @model_validator(mode="after")
    def _fits_its_rule(self) -> Manifest:
        if (self.rule == "mix") != bool(self.members and self.profile):
            raise ValueError("profile and members go with rule: mix, and only with it")
        if self.cache_state != "cold" and self.rule != "mix":
            raise ValueError(f"cache_state: {self.cache_state} goes with rule: mix")
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
        """What to do where the rows cannot be fetched."""
        source = self.sources[0]
        gate = f"accept the terms at {source.page}, set HF_TOKEN, " if self.gated else ""
        return (
            f"{gate}download {source.file or 'the data files'} of {source.hub_id} at revision "
            f"{source.revision} ({source.page}/tree/{source.revision}) and give it with "
            "--source FILE (or FOLDER)"
        )


def manifests_dir() -> Path:
    """Where manifests and pins are."""
    return data_dir("corpora")


def corpus_names() -> list[str]:
    """Every corpus that has a manifest."""
    return sorted(path.stem for path in manifests_dir().glob("*.yaml"))


def load_manifest(name: str) -> Manifest:
    """The manifest of a corpus. Raises UsageError with the allowed names."""
    if name not in corpus_names():
        raise UsageError(f"corpus {name!r}: no such corpus; allowed: {', '.join(corpus_names())}")
    path = manifests_dir() / f"{name}.yaml"
    manifest: Manifest = validate(Manifest, read_yaml(path), str(path))
    if manifest.name != name:
        raise UsageError(f"{path}: name: {manifest.name!r}: must be the name of the file, {name!r}")
    return manifest
