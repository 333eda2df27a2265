"""Which lever to pull for which kind of model: no speculation, unpadded suffix decoding, or K-pad and its K.

Made from the rows alone: every line is a recommendation for one model, put under its family and kind. Takes
trial rows, gives text or plain data; decides nothing that ``recommend`` does not.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import pandas as pd
import yaml

from kpad_bench.argv import DYNAMIC_K
from kpad_bench.bestrow import SUF, VAN, Versus, rounded
from kpad_bench.configfile import load_models
from kpad_bench.errors import UsageError
from kpad_bench.pooling import COLUMNS as POOLED
from kpad_bench.recommend import Recommendation, recommend
from kpad_bench.recommend_text import DELICATE, WIDTH, gain_text, wrapped
from kpad_bench.reduce import best_k
from kpad_bench.schema import TRIALS
from kpad_bench.tables import aligned, printable
from kpad_bench.traffic import Asked, distinct, of_model

FORMATS = ("text", "json", "yaml")
#: The columns of the trials table that the table is made from.
COLUMNS = tuple(column for column in TRIALS if column in POOLED or column.name == "family")
#: Arms as the things one can do; any other arm goes by its name.
_LEVERS = {
    "van": "no speculation",
    "van-v1": "no speculation",
    "suf": "unpadded suffix",
    "suf-full": "ragged FULL graphs",
    "kpad": "K-pad",
    "kfill": "K-pad, filled",
}
_UNKNOWN = "unknown"
_NOTHING = "-"
_TITLES = (
    "family (kind) / model",
    "lever",
    "K",
    "sure",
    "over van",
    "over suf",
    "pays on",
    "best K by corpus",
)
_LEGEND = (
    "lever: what to run; K: of the lever. sure: the K is established among the Ks of its family. over van, "
    "over suf: gain of the best padded K, with its 95 % interval where there is one. pays on: corpora where "
    "the best padded K is ahead of the better baseline, of those where one was measured."
)


class OnCorpus(NamedTuple):
    """The best K of one model on one corpus, and its gain over the better baseline there, percent."""

    corpus: str
    best_k: int
    is_established: bool
    gain_pct: float | None


class ModelLever(NamedTuple):
    """What to do for one model. ``found`` None: nothing may be recommended, for this reason."""

    family: str
    kind: str
    model: str
    found: Recommendation | None
    reason: str
    on_corpora: list[OnCorpus]

    @property
    def lever(self) -> str | None:
        """What to run, in words; None where that is not known."""
        return None if self.found is None else _LEVERS.get(self.found.arm, self.found.arm)


def decision_table(rows: pd.DataFrame, asked: Asked) -> list[ModelLever]:
    """The lever of every model in the rows (``asked.model`` is not looked at), by family, kind and name.

    Raises UsageError where no trial can be used at all, and what ``recommend`` raises for the options.
    """
    models = distinct(rows["model"])
    levers = [_lever(rows, asked._replace(model=model)) for model in models]
    if levers and all(lever.found is None for lever in levers):
        raise UsageError(f"nothing may be recommended: {'; '.join(f'{x.model}: {x.reason}' for x in levers)}")
    return sorted(levers, key=lambda lever: (lever.family.lower(), lever.kind, lever.model))


def render(levers: Sequence[ModelLever], output_format: str) -> str:
    """The table in one of ``FORMATS``."""
    if output_format == "json":
        return json.dumps(_record(levers), indent=1, ensure_ascii=False, allow_nan=False) + "\n"
    if output_format == "yaml":
        text: str = yaml.safe_dump(_record(levers), sort_keys=False, allow_unicode=True, width=WIDTH)
        return text
    return _text(levers)


def _lever(rows: pd.DataFrame, asked: Asked) -> ModelLever:
    family, kind = _family(rows, asked.model)
    try:
        mine = of_model(rows, asked.model)
        found, reason = recommend(mine.assign(), asked), ""
    except UsageError as error:
        return ModelLever(family, kind, asked.model, None, str(error), [])
    return ModelLever(family, kind, asked.model, found, reason, list(_on_corpora(mine, asked, found)))


def _family(rows: pd.DataFrame, model: str) -> tuple[str, str]:
    """Family and kind: of models.yaml, else the family that the rows name."""
    entry = load_models().get(model)
    if entry is not None:
        return entry.family, entry.load_class
    named = distinct(rows.loc[rows["model"] == model, "family"]) if "family" in rows else []
    return (named[0] if named else _UNKNOWN), _UNKNOWN


def _on_corpora(rows: pd.DataFrame, asked: Asked, found: Recommendation) -> Iterator[OnCorpus]:
    used = rows[rows["corpus"].isin(list(found.weights))]
    if found.by_load:
        used = used[used["concurrency"] == found.by_load[-1].concurrency]
    elif asked.concurrency is not None:
        used = used[used["concurrency"] == asked.concurrency]
    table = best_k(used, candidates=(asked.family,), allow_mixed=asked.allow_mixed)
    for row in table.to_dict("records"):
        if row["best_k"] is not None and not pd.isna(row["best_k"]):
            gain = row["vs_best_baseline_pct"]
            known = None if gain is None or pd.isna(gain) else float(gain)
            yield OnCorpus(str(row["corpus"]), int(row["best_k"]), bool(row["established"]), known)


def _over(found: Recommendation, name: str) -> Versus | None:
    """The gain over a baseline: no speculation, or the unpadded arm (at the largest K that is there)."""
    mine = [one for one in found.versus if one.base.name == name]
    return max(mine, key=lambda one: one.base.k, default=None)


def _text(levers: Sequence[ModelLever]) -> str:
    lines: list[list[str]] = []
    groups: dict[int, str] = {}
    for place, lever in enumerate(levers):
        group = f"{lever.family} ({lever.kind})"
        if place == 0 or group != f"{levers[place - 1].family} ({levers[place - 1].kind})":
            groups[len(lines)] = printable(f"{group}: {_levers_of(levers, lever)}")
        lines.append(_line(lever))
    shown, notes = [list(_TITLES), *lines], list(_notes(levers))
    if _width(shown) > WIDTH:  # what is longest goes below
        shown = [line[:-1] for line in shown]
        notes += [f"best K by corpus, {x.model}: {_by_corpus(x.on_corpora)}" for x in levers if x.on_corpora]
    widths = [max(len(line[i]) for line in shown) for i in range(len(shown[0]))]
    text = [aligned(shown[0], widths)]
    for place, line in enumerate(shown[1:]):
        text += [groups[place]] if place in groups else []
        text.append(aligned(line, widths))
    text += ["", *wrapped([_LEGEND], "", "")]
    for number, note in enumerate(notes, 1):
        text += wrapped([f"{number}. {note}"], "", "   ")
    return "\n".join(text) + "\n"


def _width(lines: Sequence[Sequence[str]]) -> int:
    return sum(max(len(line[i]) for line in lines) + 2 for i in range(len(lines[0]))) - 2


def _levers_of(levers: Sequence[ModelLever], one: ModelLever) -> str:
    """The levers of a family and kind, and of how many of its models each is."""
    mine = [x.lever or "nothing" for x in levers if (x.family, x.kind) == (one.family, one.kind)]
    counted = {name: mine.count(name) for name in mine}
    if len(counted) == 1:
        return mine[0]
    return ", ".join(f"{name} for {n} of {len(mine)}" for name, n in counted.items())


def _line(lever: ModelLever) -> list[str]:
    name, found = f"  {printable(lever.model)}", lever.found
    if found is None:
        return [name, "nothing", *[_NOTHING] * (len(_TITLES) - 2)]
    overs = [_over(found, base) for base in (VAN, SUF)]
    known = [one.gain_pct for one in lever.on_corpora if one.gain_pct is not None]
    return [
        name,
        lever.lever or _NOTHING,
        str(found.k) if found.k else _NOTHING,
        "yes" if found.is_established else "no",
        *(_NOTHING if one is None else gain_text(one.gain) for one in overs),
        f"{sum(gain > 0 for gain in known)} of {len(known)}" if known else _NOTHING,
        _by_corpus(lever.on_corpora),
    ]


def _by_corpus(on_corpora: Sequence[OnCorpus]) -> str:
    """Like ``4: mbpp, swebench; 6: humaneval``."""
    by_k: dict[int, list[str]] = {}
    for one in on_corpora:
        by_k.setdefault(one.best_k, []).append(printable(one.corpus))
    if len(by_k) == 1:
        return f"{next(iter(by_k))}: all"
    return "; ".join(f"{k}: {', '.join(by_k[k])}" for k in sorted(by_k))


def _notes(levers: Sequence[ModelLever]) -> Iterator[str]:
    """What the table does not say for itself, and what its source says of such figures."""
    found = {lever.model: lever.found for lever in levers if lever.found is not None}
    yield (
        "a best K is the result of fixed settings and not a controller: measure again when model, traffic, "
        f"load or build change; and never give {DYNAMIC_K} with suffix decoding, which kills the server"
    )
    single = [model for model, one in found.items() if one.choice.decision.n_rounds < 2]
    if single:
        yield f"one trial for each K, so nothing is established: {_all_or(single, levers)}"
    bare = [model for model, one in found.items() if not one.versus]
    if bare:
        yield (
            "no baseline was measured on all of these corpora, so whether speculation or padding pays is not "
            f"known there: {_all_or(bare, levers)}"
        )
    reversed_ = [f"{model} ({pct:+.0f} %)" for model, one in found.items() if (pct := _reversal(one))]
    if reversed_:
        yield f"unpadded suffix decoding is slower than no speculation: {', '.join(reversed_)}"
    delicate = [model for model in found if DELICATE.search(model)]
    if delicate:
        yield (
            f"{', '.join(delicate)}: sensitive to K and memory: a larger K may fail at start for want of KV "
            "cache"
        )
    for lever in levers:
        if lever.found is None:
            yield f"{lever.model}: {lever.reason}"


def _all_or(models: Sequence[str], levers: Sequence[ModelLever]) -> str:
    return "every model" if len(models) == len(levers) else ", ".join(models)


def _reversal(found: Recommendation) -> float | None:
    """Percent by which unpadded suffix decoding trails no speculation; None where it does not."""
    speeds = [one.base.mean if one else None for one in (_over(found, VAN), _over(found, SUF))]
    if None in speeds or not speeds[0] or not speeds[1] or speeds[1] >= speeds[0]:
        return None
    return 100 * (speeds[1] / speeds[0] - 1)


def _record(levers: Sequence[ModelLever]) -> dict[str, Any]:
    """The table as plain data. Percentages compare throughputs; null is not known."""
    return {"models": [_model_record(lever) for lever in levers], "notes": list(_notes(levers))}


def _model_record(lever: ModelLever) -> Mapping[str, Any]:
    found = lever.found
    record: dict[str, Any] = {"model": lever.model, "family": lever.family, "kind": lever.kind}
    record |= {"lever": lever.lever, "reason": lever.reason or None}
    if found is None:
        return record
    return record | {
        "arm": found.arm,
        "k": found.k or None,
        "corpora": found.weights,
        "established": found.is_established,
        "n_rounds": found.choice.decision.n_rounds,
        "padded": {
            "arm": found.family,
            "k": found.family_k,
            "gains": [
                {"over": one.base.label, **{n: rounded(v) for n, v in one.gain._asdict().items()}}
                for one in found.versus
            ],
        },
        "by_corpus": [
            {"corpus": one.corpus, "best_k": one.best_k, "established": one.is_established}
            | {"vs_best_baseline_pct": one.gain_pct}
            for one in lever.on_corpora
        ],
    }
