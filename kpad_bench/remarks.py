"""What has to be said beside a row of the best-K table: every doubt in a sentence that becomes a footnote.

Takes a row and what it was made from, gives texts; changes no figure.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence

from kpad_bench import stats
from kpad_bench.bestrow import BUDGET, Choice, Row, Versus
from kpad_bench.blocks import ArmAtK, Night, present
from kpad_bench.stats import ASSUMED

_N_NAMED = 3
_NUMBER = re.compile(r"\d+(?:[.,]\d+)*")


def remarks(row: Row, family: str, nights: Collection[Night]) -> list[str]:
    """The doubts about a row, the weightiest first. ``nights`` are all in which the family was measured."""
    texts: list[str] = []
    if row.choice is not None:
        texts += [*_of_choice(row.choice), *_of_rounds(row.choice, nights), *_of_design(row.choice)]
    texts += [f"K={k} left out: {why}" for k, why in row.left_out.items()]
    if row.choice is not None:
        texts += [*_of_blocks(row.versus, row.choice, family), *_of_shares(row.choice.eligible)]
        texts += [*_of_runners(row.versus, row.choice.best)]
    return [*texts, *_of_failures(row.arms), *_of_warnings(row.arms)]


def _of_choice(choice: Choice) -> Iterator[str]:
    """How sure the best K is, and why not more."""
    decision = choice.decision
    if decision.runner_up_k is None:
        yield "only one K could be compared: nothing is established"
    elif decision.tie_basis == ASSUMED:
        yield _not_measured(choice)
    elif choice.is_established and not decision.is_relevant:
        yield (
            f"established, not relevant: K={decision.best_k} is ahead by less than {100 * stats.MARGIN:g} %"
        )
    if choice.steady_best_k not in (None, decision.best_k):
        yield (
            f"the steady window says K={choice.steady_best_k}, the whole pass K={decision.best_k}: not "
            "established"
        )


def _not_measured(choice: Choice) -> str:
    n_rounds = [int(arm.has.sum()) for arm in choice.eligible]
    assumed = f"Assuming that runs vary by {100 * stats.ASSUMED_CV:g} %"
    tied = "tied holds every K that close to the best, and risk is what the pick may lose to one of them"
    if max(n_rounds) > 1:
        counts = ", ".join(f"{n} of K={arm.k}" for n, arm in zip(n_rounds, choice.eligible, strict=True))
        return (
            f"not every K was measured in every round ({counts}), and fewer than two rounds hold them all: "
            f"not established, and drift between rounds is in the means. {assumed}, {tied}"
        )
    unit = "trial" if all(arm.n_ok == 1 for arm in choice.eligible) else "boot"
    return (
        f"one {unit}, not established: one run per K cannot rank Ks. {assumed}, two single runs closer than "
        f"{choice.decision.threshold_pct:.1f} % cannot be told apart: {tied}"
    )


def _of_rounds(choice: Choice, nights: Collection[Night]) -> Iterator[str]:
    """What one value of the decision is, and which rounds are no part of it."""
    cell, n_rounds = choice.cell, choice.decision.n_rounds
    held = cell.nights_in(present(choice.eligible))
    if choice.is_by_night:
        yield (
            f"the night is the unit: each of {n_rounds} runs is one value per K, the mean of its complete "
            "rounds"
        )
    elif len(held) == 1 and len(nights) > 1:
        night = _name(cell.nights[held[0]])
        yield f"measured in one of {len(nights)} runs only ({night}): other nights may differ"
    if not choice.is_by_night and n_rounds > 1:
        yield "the rounds of one run are the unit: established means this night, host and build"
    if n_rounds > 1:
        yield from _incomplete(choice)
        unused = sorted(set(held).difference(cell.nights_in(choice.used)))
        if unused:
            where = _listed([_name(cell.nights[night]) for night in unused])
            yield f"no round that holds every K, left out: {where}"


def _incomplete(choice: Choice) -> Iterator[str]:
    some = present(choice.eligible)
    lacking = some & ~choice.used
    if lacking.any():
        missing = {arm.k: int((lacking & ~arm.has).sum()) for arm in choice.eligible}
        counts = ", ".join(f"{n} without K={k}" for k, n in missing.items() if n)
        yield f"incomplete, and left out: {lacking.sum()} of {some.sum()} rounds ({counts})"


def _of_design(choice: Choice) -> Iterator[str]:
    """Whether the number of rounds was chosen before the results were seen."""
    n_rounds, design = choice.decision.n_rounds, choice.design
    if choice.is_by_night or n_rounds < 2:
        return
    if design is None:
        yield (
            f"the design is not stated, and taken as fixed({n_rounds}): rounds that were added because of "
            "the results need a stricter test"
        )
        return
    if len(choice.designs) > 1:
        yield f"trials of several designs ({_listed(sorted(map(str, choice.designs)))}), decided as {design}"
    if design.is_adaptive and choice.decision.stop is None:
        yield f"{design} ended after {n_rounds} complete rounds without a decision ({BUDGET})"
    if not design.is_adaptive and n_rounds < design.most:
        yield f"{n_rounds} of {design.most} planned rounds are complete"


def _of_blocks(versus: Sequence[Versus], choice: Choice, family: str) -> Iterator[str]:
    """Which baselines were not measured beside the best K, so that drift is in the gain."""
    best, partial = choice.best, []
    for base, _, common in versus:
        nights = [set(choice.cell.nights_in(arm.has)) for arm in (base, best)]
        if nights[0].isdisjoint(nights[1]):
            yield f"{base.label} was measured in another run than {family}: drift between runs is in the gain"
        elif not common.any():
            yield f"{base.label} shares no round with {best.label}: drift between rounds is in the gain"
        elif common.sum() < best.has.sum():
            partial.append(f"{common.sum()} with {base.label}")
    if partial:
        yield f"of {best.has.sum()} rounds of {best.label} the gains rest on {', '.join(partial)}"


def _of_runners(versus: Sequence[Versus], best: ArmAtK) -> Iterator[str]:
    for base in (one.base for one in versus):
        if base.runners and best.runners and base.runners != best.runners:
            runners = [" and ".join(sorted(map(str.upper, arm.runners))) for arm in (base, best)]
            yield (
                f"{base.label} ran on vLLM's {runners[0]} runner, {best.label} on {runners[1]}: the gain "
                "over it is of the runners too"
            )


def _of_shares(eligible: Sequence[ArmAtK]) -> Iterator[str]:
    for arm in eligible:
        for reason, n in sorted(arm.unknown_shares.items()):
            yield f"K={arm.k}: the share of FULL graphs is not known of {n} of {arm.n_ok} trials ({reason})"


def _of_failures(arms: Sequence[ArmAtK]) -> Iterator[str]:
    """Trials that do not count, in one sentence for each reason: a long night has many."""
    by_reason: dict[str, list[str]] = {}
    for arm in arms:
        for reason, n in arm.failures.items():
            n_all = sum(arm.failures.values()) + arm.n_ok
            which = f"{arm.label}, {n} of {n_all} trials" if arm.n_ok else arm.label
            by_reason.setdefault(reason, []).append(which)
    for reason, trials in sorted(by_reason.items()):
        yield f"{'; '.join(trials)} left out: {reason}"


def _of_warnings(arms: Sequence[ArmAtK]) -> Iterator[str]:
    """What trials say against themselves; the same doubt with other figures is told once."""
    alike: dict[str, dict[str, set[str]]] = {}
    for arm in arms:
        for warning in arm.warnings:
            told_by = alike.setdefault(_NUMBER.sub("#", warning), {})
            told_by.setdefault(warning, set()).add(arm.label)
    for _, texts in sorted(alike.items()):
        labels = [arm.label for arm in arms if any(arm.label in found for found in texts.values())]
        first, *others = sorted(texts)
        more = f" (and {len(others)} more with other figures)" if others else ""
        yield f"{', '.join(labels)}: {first}{more}"


def _name(night: Night) -> str:
    return night[1] or "without a name"


def _listed(words: Sequence[str]) -> str:
    more = f" and {len(words) - _N_NAMED} more" if len(words) > _N_NAMED else ""
    return f"{', '.join(words[:_N_NAMED])}{more}"
