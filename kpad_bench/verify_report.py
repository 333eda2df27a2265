"""What ``verify`` found, as a table for people and as JSON for programs. Decides nothing."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from kpad_bench.answers import Answered, Padding
from kpad_bench.equality import (
    GATE_LOGPROB,
    GATE_PERPLEXITY,
    Comparison,
    Divergence,
    Judgement,
    Rule,
    Slip,
)
from kpad_bench.frequency import POWER, Frequencies, least

#: Places shown of one arm; the JSON has them all.
N_PLACES = 5
_COLUMNS = (
    "compared", "prompts", "equal", "benign", "suspicious",
    "max|dlogp|", "max dppl", "pad hits", "uniform", "",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class PaddedArm:
    """One padded arm against the unpadded ones, and what follows."""

    answered: Answered
    against_suf: Comparison
    against_van: Comparison
    slips: tuple[Slip, ...]
    judgement: Judgement
    frequencies: tuple[Frequencies, ...] = ()

    @property
    def is_same(self) -> bool:
        """Nothing tells it from noise."""
        return not self.judgement.reasons


@dataclass(frozen=True, slots=True)
class Report:
    """A whole verification. ``what``: model, corpus and the like, as they are printed."""

    what: Mapping[str, Any]
    rule: Rule
    floor: tuple[Comparison, ...]
    unpadded: tuple[Answered, ...]
    arms: tuple[PaddedArm, ...]
    warnings: tuple[str, ...] = ()
    not_done: tuple[str, ...] = field(default=())

    @property
    def is_same(self) -> bool:
        """No padded arm can be told from noise."""
        return all(arm.is_same for arm in self.arms)

    @property
    def is_exact(self) -> bool:
        """Every arm wrote the same tokens."""
        compared = [*self.floor, *(arm.against_suf for arm in self.arms)]
        return not any(one.divergences for one in compared)

    def summary(self) -> str:
        """The verdict without its reasons."""
        worse = ", ".join(arm.answered.name for arm in self.arms if not arm.is_same)
        return f"padding can be told from noise in {worse}" if worse else self.verdict()

    def verdict(self) -> str:
        """One sentence."""
        if not self.is_same:
            worse = [arm for arm in self.arms if not arm.is_same]
            told = "; ".join(
                f"{arm.answered.name}: {text}" for arm in worse for text in arm.judgement.reasons.values()
            )
            return f"padding can be told from noise: {told}"
        exact = ": every arm wrote the same tokens" if self.is_exact else ""
        return f"padding cannot be told from noise{exact}"


def floor_doubts(
    floor: Sequence[Comparison], rule: Rule, n_slips: int, unpadded: Sequence[Answered]
) -> Iterator[str]:
    """What is odd about the unpadded arms themselves. ``n_slips``: the most that one of them has."""
    n_diverged = sum(len(one.divergences) for one in floor)
    if rule.must_be_exact and n_diverged:
        yield f"unpadded arms diverge from each other {n_diverged} times where they should compute alike"
    n_wild = sum(len(one.suspicious(rule.near_tie)) for one in floor)
    if n_wild:
        yield f"{n_wild} divergences between unpadded arms are no near ties: the floor itself is in doubt"
    if n_slips:
        yield f"an unpadded arm wrote {n_slips} tokens that are not its own likeliest ones"
    for one in unpadded:
        if one.padding.pads:
            yield f"{one.name} says that it pads: it is no baseline"


def as_json(report: Report) -> str:
    """All of it but the answers."""
    record = {
        "verdict": "same" if report.is_same else "differs",
        "exact": report.is_exact,
        "why": report.verdict(),
        **report.what,
        "must_be_exact": report.rule.must_be_exact,
        "near_tie": report.rule.near_tie,
        "alpha": report.rule.alpha,
        "gate": {"dlogprob": GATE_LOGPROB, "dperplexity": GATE_PERPLEXITY},
        "floor": [_comparison(one, report.rule) for one in report.floor],
        "unpadded": [_answered(one) for one in report.unpadded],
        "padded": [_arm(arm, report.rule) for arm in report.arms],
        "warnings": list(report.warnings),
        "not_done": list(report.not_done),
    }
    return json.dumps(_finite(record), indent=1, allow_nan=False)


def as_table(report: Report) -> str:
    """A line per comparison, the places that matter, and the verdict."""
    lines = [", ".join(f"{name} {value}" for name, value in report.what.items() if value is not None), ""]
    rows = [_row(one, report.rule, None, "floor") for one in report.floor]
    for arm in report.arms:
        sense = "ok" if arm.is_same else ", ".join(arm.judgement.reasons)
        rows.append(_row(arm.against_suf, report.rule, arm.answered.padding, sense))
        rows.append(_row(arm.against_van, report.rule, None, ""))
    lines += _aligned([_COLUMNS, *rows])
    lines += ["", *_limits(report)]
    for arm in report.arms:
        lines += [*_places(arm, report.rule), *_frequencies(arm)]
    lines += [f"warning: {text}" for text in report.warnings]
    lines += [f"not done: {text}" for text in report.not_done]
    return "\n".join([*lines, "", report.verdict()])


def _row(one: Comparison, rule: Rule, padding: Padding | None, sense: str) -> tuple[str, ...]:
    n_suspicious = len(one.suspicious(rule.near_tie))
    return (
        f"{one.other} against {one.base}",
        str(one.n_prompts),
        str(one.n_equal),
        str(len(one.divergences) - n_suspicious),
        str(n_suspicious),
        f"{one.max_dlogprob.value:.2g}",
        f"{one.max_dperplexity.value:.2g}",
        "" if padding is None or padding.pad_hits is None else f"{padding.pad_hits}/{padding.pad_tokens}",
        "" if padding is None or padding.uniform_share is None else f"{padding.uniform_share:.3f}",
        sense,
    )


def _limits(report: Report) -> Iterator[str]:
    rule = report.rule
    yield (
        f"benign: the other token within {rule.near_tie:.3g} of the unpadded arm's best (calibrated on the "
        f"floor). Gate: |dlogp| {GATE_LOGPROB}, dppl {GATE_PERPLEXITY}, beyond the floor. "
        f"alpha {rule.alpha:.2g}"
    )
    if rule.must_be_exact:
        yield "this platform computes every arm alike: any divergence counts"


def _places(arm: PaddedArm, rule: Rule) -> Iterator[str]:
    """Suspicious divergences first, then benign ones."""
    ordered = sorted(arm.against_suf.divergences, key=lambda d: (d.is_benign(rule.near_tie), d.position))
    for found in ordered[:N_PLACES]:
        sort = "benign" if found.is_benign(rule.near_tie) else "suspicious"
        yield f"{arm.answered.name} {sort}: {_place(found)}"
    if len(ordered) > N_PLACES:
        yield f"{arm.answered.name}: {len(ordered) - N_PLACES} more in --format json"


def _frequencies(arm: PaddedArm) -> Iterator[str]:
    """The frequencies of sampled tokens, with what the test could have seen."""
    if arm.frequencies:
        worst = least(arm.frequencies)
        sizes = [one.found_from for one in arm.frequencies if one.found_from is not None]
        seen = f"; finds a distance of {max(sizes):.2g} in {POWER:.0%} of the cases" if sizes else ""
        yield (
            f"{arm.answered.name} at temperature 1: {len(arm.frequencies)} tests, "
            f"least p = {worst.p_value:.2g}{seen}"
        )


def _place(found: Divergence) -> str:
    left, right = ("the end" if t is None else f"token {t}" for t in (found.base_token, found.other_token))
    gap = "" if found.gap is None else f", top-2 gap {found.gap:.3g}"
    behind = ""
    if found.base_token is not None and found.other_token is not None:
        far = f"{found.behind:.3g} behind the unpadded arm's best" if found.behind is not None else ""
        behind = f", {far or 'not among the likeliest of the unpadded arm'}"
    own = found.own_behind or 0.0
    slip = f", {own:.3g} behind its own arm's best: no greedy choice" if own > 0 else ""
    return f"prompt {found.prompt_id} position {found.position}: {left} became {right}{gap}{behind}{slip}"


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return ["  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip() for row in rows]


def _comparison(one: Comparison, rule: Rule) -> dict[str, Any]:
    n_suspicious = len(one.suspicious(rule.near_tie))
    return {
        "base": one.base,
        "other": one.other,
        "n_prompts": one.n_prompts,
        "n_equal": one.n_equal,
        "n_diverged": len(one.divergences),
        "n_benign": len(one.divergences) - n_suspicious,
        "n_suspicious": n_suspicious,
        "n_common_tokens": one.n_tokens,
        "max_dlogprob": one.max_dlogprob._asdict(),
        "max_dperplexity": one.max_dperplexity._asdict(),
        "divergences": [
            found._asdict() | {"is_benign": found.is_benign(rule.near_tie)} for found in one.divergences
        ],
    }


def _answered(one: Answered) -> dict[str, Any]:
    padding = {name: getattr(one.padding, name) for name in one.padding.__slots__}
    n_tokens = sum(len(answer.token_ids) for answer in one.answers)
    return {"arm": one.name, "n_tokens": n_tokens, "boot_s": one.boot_s, "log": one.log, "padding": padding}


def _arm(arm: PaddedArm, rule: Rule) -> dict[str, Any]:
    return _answered(arm.answered) | {
        "verdict": "same" if arm.is_same else "differs",
        "reasons": dict(arm.judgement.reasons),
        "p_value": arm.judgement.p_value,
        "against_suf": _comparison(arm.against_suf, rule),
        "against_van": _comparison(arm.against_van, rule),
        "frequencies": [one._asdict() for one in arm.frequencies],
        "n_not_greedy": len(arm.slips),
        "not_greedy": [slip._asdict() for slip in arm.slips[:100]],
    }


def _finite(value: Any) -> Any:
    """JSON has no infinity: None there."""
    if isinstance(value, Mapping):
        return {key: _finite(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
