#!/usr/bin/env python3
"""The tables of docs/evidence-h200.md, from the rows in results/reference.

    python scripts/evidence_tables.py > tables.md

Needs pandas and this package, no GPU. A ratio is taken between trials of one round (one boot of each server)
and corpus, averaged over the round's corpora on the log scale; its 95 % interval is over the rounds.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import pandas as pd

from kpad_bench.reduce import best_k, load_rows, render
from kpad_bench.stats import gain

REFERENCE = Path(__file__).resolve().parent.parent / "results" / "reference"
RUN, WARM, SHAPE = (REFERENCE / f"{name}h200-2026-12-01" for name in ("", "warm-", "shape8b-"))
ARMS = (
    "van",
    "van-v1",
    "suf@32",
    "suf@12",
    "suf-full@32",
    *("kpad@4", "kpad@6", "kpad@8", "kpad@12"),
    *("kfill@8", "kfill@12"),
)
CORPORA = ("humaneval", "mbpp", "swebench", "mix-code")
#: (arm, over which arm, what the comparison tells)
QUESTIONS = (
    ("kpad@12", "suf@12", "padding, at the same K and the same graph sizes up to rounding"),
    ("suf@12", "suf@32", "a smaller K without padding"),
    ("kpad@12", "suf@32", "K-pad over suffix decoding as published"),
    ("kfill@8", "kpad@8", "filling the slots before padding, K=8"),
    ("kfill@12", "kpad@12", "the same, K=12"),
    ("suf-full@32", "suf@32", "FULL graphs for ragged batches, no padding"),
    ("suf-full@32", "kpad@12", "the same against K-pad"),
    ("kfill@8", "suf-full@32", "filling and padding against it"),
    ("kpad@12", "van-v1", "K-pad over no speculation, the same runner"),
    ("kpad@12", "van", "the same, as users run it"),
    ("kfill@8", "van", "filled K-pad over no speculation, as users run it"),
)


def trials(run: Path) -> pd.DataFrame:
    """The trials of one run, with the arm as the command line writes it."""
    frame = pd.read_parquet(run / "trials.parquet")
    frame["at"] = [
        arm if pd.isna(k) else f"{arm}@{int(k)}" for arm, k in zip(frame["arm"], frame["k"], strict=True)
    ]
    return frame


def by_round(frame: pd.DataFrame, value: str, arm: str, base: str) -> list[tuple[float, float]]:
    """(ratio, 1) of each round that has both arms on some corpus."""
    table = frame.pivot_table(index=["round", "corpus"], columns="at", values=value)
    if arm not in table or base not in table:
        return []
    ratios = (table[arm] / table[base]).dropna().map(math.log)
    return [(math.exp(mean), 1.0) for mean in ratios.groupby("round").mean()]


def shown(frame: pd.DataFrame, value: str, arm: str, base: str) -> str:
    """Change in percent with its interval over rounds, and the number of rounds."""
    pairs = by_round(frame, value, arm, base)
    if not pairs:
        return "-"
    found = gain(pairs)
    if found.low_pct is None:
        return f"{found.pct:+.0f} % (n=1)"
    return f"{found.pct:+.0f} % [{found.low_pct:+.0f}, {found.high_pct:+.0f}] (n={len(pairs)})"


def engine(frame: pd.DataFrame) -> Iterator[str]:
    """What the engine did, arm by arm."""
    yield "| arm | n | FULL share | step, ms | R over van-v1 | batch | tokens per step | front end | merged |"
    yield "|---|--:|--:|--:|--:|--:|--:|--:|--:|"
    for arm in ARMS:
        mine = frame[frame["at"] == arm]
        pairs = by_round(frame, "step_time_mean", arm, "van-v1")
        found = gain(pairs)
        low, high = (1 + (bound or 0) / 100 for bound in (found.low_pct, found.high_pct))
        ratio = "1" if arm == "van-v1" else f"{1 + found.pct / 100:.2f} [{low:.2f}, {high:.2f}]"
        full = mine["full_share_decode"]
        yield (
            f"| {arm} | {len(mine)} | {'not counted' if full.isna().all() else f'{full.mean():.3f}'} | "
            f"{1e3 * mine['step_time_mean'].mean():.1f} | {ratio} | {mine['mean_batch'].mean():.1f} | "
            f"{mine['acceptance_length'].mean():.2f} | {mine['front_end_cpu_share'].mean():.2f} "
            f"(at most {mine['front_end_cpu_share'].max():.2f}) | {mine['chunk_merge_share'].max():.3f} |"
        )


def comparisons(frame: pd.DataFrame) -> Iterator[str]:
    """Throughput of one arm over another, over all corpora and on each."""
    yield f"| comparison | all corpora | {' | '.join(CORPORA)} | what it tells |"
    yield f"|---|---|{'---|' * len(CORPORA)}---|"
    for arm, base, what in QUESTIONS:
        each = [shown(frame[frame["corpus"] == corpus], "output_tok_per_s", arm, base) for corpus in CORPORA]
        whole = shown(frame, "output_tok_per_s", arm, base)
        yield f"| {arm} over {base} | {whole} | {' | '.join(each)} | {what} |"


def warm(cold: pd.DataFrame, again: pd.DataFrame) -> Iterator[str]:
    """Passes over prompts that the server had just answered, beside the cold ones."""
    yield "| corpus | arm | cold, tok/s (n) | warm, tok/s | ratio | tokens per step cold | warm |"
    yield "|---|---|--:|--:|--:|--:|--:|"
    for _, row in again.sort_values(["corpus", "at"]).iterrows():
        mine = cold[(cold["corpus"] == row["corpus"]) & (cold["at"] == row["at"])]
        speed = mine["output_tok_per_s"].mean()
        yield (
            f"| {row['corpus']} | {row['at']} | {speed:.0f} ({len(mine)}) | {row['output_tok_per_s']:.0f} | "
            f"{row['output_tok_per_s'] / speed:.2f} | {mine['acceptance_length'].mean():.2f} | "
            f"{row['acceptance_length']:.2f} |"
        )


def shape(frame: pd.DataFrame) -> Iterator[str]:
    """Step times at the shape of an 8B model."""
    yield "| arm | decode step of each pass, ms | tokens of a full step | batch | FULL share | R |"
    yield "|---|--:|--:|--:|--:|--:|"
    base = frame.loc[frame["at"] == "van-v1", "step_time_mean"].mean()
    for arm in ("van-v1", "kpad@4", "kpad@8", "kpad@12", "suf@12"):
        mine = frame[frame["at"] == arm]
        steps = " / ".join(f"{1e3 * value:.1f}" for value in mine["step_time_mean"])
        width = 32 * (1 + (0 if mine["k"].isna().all() else int(mine["k"].iloc[0])))
        ratio = mine["step_time_mean"].mean() / base
        yield (
            f"| {arm} | {steps} | {width} | {mine['mean_batch'].mean():.1f} | "
            f"{mine['full_share_decode'].mean():.2f} | {ratio:.2f} |"
        )


def main() -> None:
    """Print every table under its name."""
    frame = trials(RUN)
    tables = {
        "engine": engine(frame),
        "comparisons": comparisons(frame),
        "best-k": [str(render(best_k(load_rows(RUN), ["kpad", "kfill"]), "md")).rstrip()],
        "warm": warm(frame, trials(WARM)),
        "shape": shape(trials(SHAPE)),
    }
    for name, lines in tables.items():
        print(f"<!-- {name} -->", *lines, f"<!-- end of {name} -->", "", sep="\n")


if __name__ == "__main__":
    main()
