"""Doctor on data: weights, their pins and terms, and frozen prompt sets. Never prints a token."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from kpad_bench.config import Resolved
from kpad_bench.corpus import FrozenCorpus, open_frozen
from kpad_bench.corpus_fit import check_fit
from kpad_bench.doctor_finding import Check, Finding, failure, of_error, ok, warning
from kpad_bench.errors import KpadError
from kpad_bench.hubcache import missing_models
from kpad_bench.model_lock import is_commit
from kpad_bench.models import models_dir


def checks(resolved: Resolved, env: Mapping[str, str]) -> list[Check]:
    """All of this subject."""
    return [
        Check("models", lambda: _models(resolved)),
        Check("revisions", lambda: _revisions(resolved)),
        Check("terms", lambda: _terms(resolved, env)),
        Check("corpora", lambda: _corpora(resolved)),
    ]


def _models(resolved: Resolved) -> Iterator[Finding]:
    absent = missing_models(resolved)
    for tag, entry in resolved.models.items():
        if entry.local is not None:
            path = models_dir() / entry.local
            if (path / "config.json").is_file():
                yield ok(f"model {tag}", str(path))
            else:
                yield failure(f"model {tag}", f"no model in {path}", f"kpad-bench models fetch {entry.local}")
        elif tag in absent:
            yield from of_error(
                f"model {tag}",
                KpadError(absent[tag].removeprefix(f"model {tag}: ")),
                "kpad-bench models prefetch",
            )
        else:
            yield ok(f"model {tag}", "whole in the hub cache")


def _revisions(resolved: Resolved) -> Iterator[Finding]:
    loose = [tag for tag, e in resolved.models.items() if e.hf_id is not None and not is_commit(e.revision)]
    if loose:
        yield warning(
            "revisions", f"unpinned: {', '.join(loose)}", "kpad-bench models prefetch writes what it resolves"
        )
    else:
        yield ok("revisions", "every model of the hub is pinned to a commit, or none is of the hub")


def _terms(resolved: Resolved, env: Mapping[str, str]) -> Iterator[Finding]:
    gated = [tag for tag, entry in resolved.models.items() if entry.gated]
    if gated and not env.get("HF_TOKEN"):  # nothing here reads a token from a file
        yield warning(
            "terms", f"gated, and no token is set: {', '.join(gated)}",
            "accept the terms on the models' pages and set HF_TOKEN; only fetching needs it",
        )  # fmt: skip
    else:
        yield ok("terms", "a token is set" if gated else "no gated model")


def _corpora(resolved: Resolved) -> Iterator[Finding]:
    opened: dict[str, FrozenCorpus] = {}
    for name in resolved.corpora:
        try:
            opened[name] = open_frozen(name)
            yield ok(
                f"corpus {name}", f"{len(opened[name].measured)} prompts, digest {opened[name].digest[:12]}"
            )
        except KpadError as error:
            yield from of_error(f"corpus {name}", error, f"kpad-bench corpora freeze {name}")
    if len(opened) == len(resolved.corpora):
        try:
            check_fit(resolved, opened.values())
            yield ok("tokenizers", "the locks of the corpora cover every model")
        except KpadError as error:
            yield from of_error("tokenizers", error)
