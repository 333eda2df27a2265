#!/usr/bin/env python3
"""The tables of docs/evidence-h200.md, from the rows in results/reference.

    python scripts/evidence_tables.py           prints them
    python scripts/evidence_tables.py --write   puts them into the page

Needs this package, no GPU. A ratio is taken between trials of one round (one boot of each server) and corpus,
averaged over the corpora on the log scale; its 95 % interval is over rounds. "Whole" rounds have every
arm on every corpus; a part round weighs the corpora differently.
"""

from __future__ import annotations

import csv
import math
import sys
from collections import defaultdict
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

import pandas as pd

from kpad_bench.reduce import best_k, load_rows, render
from kpad_bench.schema import TRIALS
from kpad_bench.stats import gain

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "evidence-h200.md"
REFERENCE = ROOT / "results" / "reference"
RUN, WARM, SHAPE = (REFERENCE / f"{name}h200-2026-12-01" for name in ("", "warm-", "shape8b-"))
UNPADDED = ("van", "van-v1", "suf@32", "suf@12")
FULL = ("suf-full@32", "kpad@4", "kpad@6", "kpad@8", "kpad@12", "kfill@8", "kfill@12")
CORPORA = ("humaneval", "mbpp", "swebench", "mix-code")
FAMILIES = ("kpad", "kfill")
#: (arm, over which arm, what the comparison tells)
QUESTIONS = (
    ("kpad@12", "suf@12", "padding alone: same K, same graph sizes"),
    ("suf@12", "suf@32", "a smaller K and its graph sizes, no padding"),
    ("kpad@12", "suf@32", "K-pad over suffix decoding as published"),
    ("suf@32", "van", "suffix decoding as published over none"),
    ("suf-full@32", "suf@32", "FULL graphs for ragged batches, no padding"),
    *(("suf-full@32", f"kpad@{k}", f"the same against K-pad, K={k}") for k in (4, 6, 8, 12)),
    ("kfill@8", "kpad@8", "filling before padding, K=8"),
    ("kfill@12", "kpad@12", "the same, K=12"),
    *(("kfill@8", f"kpad@{k}", f"filling at 8 against K-pad at {k}") for k in (4, 6, 12)),
    ("kfill@8", "suf-full@32", "filling and padding against ragged FULL"),
    ("van", "van-v1", "the runner and scheduling of users"),
)


def trials(run: Path) -> pd.DataFrame:
    """The trials of one run, with the arm as the command line writes it."""
    frame = load_rows(run, TRIALS)
    frame["at"] = [
        arm if pd.isna(k) else f"{arm}@{k}" for arm, k in zip(frame["arm"], frame["k"], strict=True)
    ]
    return frame


def whole_rounds(frame: pd.DataFrame) -> pd.DataFrame:
    """The trials of rounds that have every arm on every corpus."""
    full = frame["at"].nunique() * frame["corpus"].nunique()
    sizes = frame.groupby("round")["trial_id"].nunique()
    return frame[frame["round"].isin(sizes.index[sizes == full])]


def by_round(frame: pd.DataFrame, value: str, arm: str, base: str) -> list[tuple[float, float]]:
    """(ratio, 1) of each round that has both arms on some corpus."""
    table = frame.pivot_table(index=["round", "corpus"], columns="at", values=value, observed=True)
    ratios = (table[arm] / table[base]).dropna().astype(float).map(math.log)
    return [(math.exp(mean), 1.0) for mean in ratios.groupby("round").mean()]


def change(frame: pd.DataFrame, arm: str, base: str, value: str = "output_tok_per_s") -> str:
    """Change of a measure in percent, its interval over rounds, and the number of rounds."""
    pairs = by_round(frame, value, arm, base)
    found = gain(pairs)
    assert found.low_pct is not None
    assert found.high_pct is not None
    unsure = "~" if found.low_pct <= 0 <= found.high_pct else ""
    return f"{unsure}{found.pct:+.0f} % [{found.low_pct:+.0f}, {found.high_pct:+.0f}] (n={len(pairs)})"


def spread(values: pd.Series, unit: float = 1, digits: int = 1) -> str:
    """Mean, and least to most."""
    least, mean, most = (unit * float(v) for v in (values.min(), values.mean(), values.max()))
    return f"{mean:.{digits}f} ({least:.{digits}f}-{most:.{digits}f})"


def passes(frame: pd.DataFrame) -> Iterator[str]:
    """How large a pass is: the trials are short."""
    yield (
        "| corpus | trials | complete rounds | prompts | input tokens | output tokens | seconds | "
        "cut at 256 tokens | tail |"
    )
    yield "|---|--:|--:|--:|--:|--:|--:|--:|--:|"
    for corpus in CORPORA:
        mine = frame[frame["corpus"] == corpus]
        n_complete = (mine.groupby("round")["at"].nunique() == frame["at"].nunique()).sum()
        yield (
            f"| {corpus} | {len(mine)} | {n_complete} | {mine['n_prompts'].iloc[0]} | "
            f"{mine['input_tokens'].mean():.0f} | {mine['output_tokens'].mean():.0f} | "
            f"{spread(mine['duration_s'])} | {mine['n_length_finish'].mean():.0f} | "
            f"{mine['tail_share'].mean():.2f} |"
        )


def throughput(frame: pd.DataFrame) -> Iterator[str]:
    """Output tokens per second of every arm on every corpus."""
    yield f"| arm | {' | '.join(CORPORA)} |"
    yield f"|---|{'--:|' * len(CORPORA)}"
    for arm in (*UNPADDED, *FULL):
        mine = frame[frame["at"] == arm]
        speeds = [mine.loc[mine["corpus"] == corpus, "output_tok_per_s"] for corpus in CORPORA]
        yield f"| {arm} | {' | '.join(spread(speed, digits=0) for speed in speeds)} |"


def engine(frame: pd.DataFrame) -> Iterator[str]:
    """What the engine did, arm by arm."""
    yield (
        "| arm | n | FULL share | of all step time | decode step, ms | R | batch | tokens per step | "
        "front end | merged |"
    )
    yield "|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|"
    for arm in (*UNPADDED, *FULL):
        mine = frame[frame["at"] == arm]
        found = gain(by_round(frame, "step_time_mean", arm, "van-v1"))
        low, high = (1 + (bound or 0) / 100 for bound in (found.low_pct, found.high_pct))
        ratio = "1" if arm == "van-v1" else f"{1 + found.pct / 100:.2f} [{low:.2f}, {high:.2f}]"
        counted = not mine["full_share_decode"].isna().any()
        full = f"{mine['full_share_decode'].mean():.3f} | {mine['full_share_time'].mean():.2f}"
        yield (
            f"| {arm} | {len(mine)} | {full if counted else 'not counted | not counted'} | "
            f"{spread(mine['step_time_mean'], 1e3)} | {ratio} | {mine['mean_batch'].mean():.1f} | "
            f"{spread(mine['acceptance_length'], digits=2)} | "
            f"{spread(mine['front_end_cpu_share'], digits=2)} | {mine['chunk_merge_share'].max():.3f} |"
        )


def steps(whole: pd.DataFrame) -> Iterator[str]:
    """What a step costs and yields in one arm over another."""
    yield "| arm over arm | decode step | tokens per step |"
    yield "|---|---|---|"
    for arm, base, _ in QUESTIONS:
        if "van" not in (arm, base):
            each = [change(whole, arm, base, value) for value in ("step_time_mean", "acceptance_length")]
            yield f"| {arm} over {base} | {' | '.join(each)} |"


def gains(frame: pd.DataFrame, whole: pd.DataFrame) -> Iterator[str]:
    """Every arm that replays FULL graphs over every baseline, all corpora."""
    yield f"| arm | {' | '.join(f'over {base}' for base in UNPADDED)} | over van, with the part round |"
    yield f"|---|{'---|' * len(UNPADDED)}---|"
    for arm in FULL:
        each = [change(whole, arm, base) for base in UNPADDED]
        yield f"| {arm} | {' | '.join([*each, change(frame, arm, 'van')])} |"


def comparisons(frame: pd.DataFrame, whole: pd.DataFrame) -> Iterator[str]:
    """Throughput of one arm over another: whole rounds, all rounds, the steady window, and each corpus."""
    titles = [
        "arm over arm",
        "whole rounds",
        "with the part round",
        "steady window",
        *CORPORA,
        "what it tells",
    ]
    yield f"| {' | '.join(titles)} |"
    yield f"|{'---|' * len(titles)}"
    for arm, base, what in QUESTIONS:
        each = [change(frame[frame["corpus"] == corpus], arm, base) for corpus in CORPORA]
        steady = change(whole, arm, base, "steady_output_tok_per_s")
        overall = [change(whole, arm, base), change(frame, arm, base), steady]
        yield f"| {arm} over {base} | {' | '.join([*overall, *each])} | {what} |"


def certainty(table: pd.DataFrame) -> Iterator[str]:
    """What the rounds can tell about the best K of each cell."""
    yield "| corpus | arm | rounds | CV | detectable lead | lead seen | p | tokens per step | R |"
    yield "|---|---|--:|--:|--:|--:|--:|--:|--:|"
    for row in table.itertuples():
        yield (
            f"| {row.corpus} | {row.arm} | {row.n_rounds} | {row.cv_pct:.1f} % | "
            f"{row.detectable_pct:.0f} % | {row.margin_pct:.1f} % | {row.p_value:.2f} | "
            f"{row.acceptance_length:.2f} | {row.step_time_ratio:.2f} |"
        )


def warm(cold: pd.DataFrame, again: pd.DataFrame) -> Iterator[str]:
    """Passes over prompts that the server had just answered, beside the cold ones."""
    yield "| corpus | arm | cold, tok/s | n | warm, tok/s (n=1) | ratio | tokens per step, cold | warm |"
    yield "|---|---|--:|--:|--:|--:|--:|--:|"
    for _, row in again.sort_values(["corpus", "order_index"]).iterrows():
        mine = cold[(cold["corpus"] == row["corpus"]) & (cold["at"] == row["at"])]
        speed = mine["output_tok_per_s"].mean()
        yield (
            f"| {row['corpus']} | {row['at']} | {spread(mine['output_tok_per_s'], digits=0)} | {len(mine)} | "
            f"{row['output_tok_per_s']:.0f} | {row['output_tok_per_s'] / speed:.2f} | "
            f"{mine['acceptance_length'].mean():.2f} | {row['acceptance_length']:.2f} |"
        )


def shape(frame: pd.DataFrame) -> Iterator[str]:
    """Step times at the shape of an 8B model, pass by pass."""
    yield (
        "| arm | decode step, ms | decode steps | tokens in a step of 32 | batch | FULL share | R | "
        "tokens per step |"
    )
    yield "|---|--:|--:|--:|--:|--:|--:|--:|"
    base = frame.loc[frame["at"] == "van-v1", "step_time_mean"].mean()
    for arm in ("van-v1", "kpad@4", "kpad@8", "kpad@12", "suf@12"):
        mine = frame[frame["at"] == arm].sort_values("repeat")
        steps, ratios = mine["step_time_mean"] * 1e3, mine["step_time_mean"] / base
        width = 32 * (1 + (0 if mine["k"].isna().all() else int(mine["k"].iloc[0])))
        yield (
            f"| {arm} | {' / '.join(f'{v:.1f}' for v in steps)} | "
            f"{' / '.join(str(v) for v in mine['n_decode_steps'])} | "
            f"{'at most ' if arm == 'suf@12' else ''}{width} | "
            f"{mine['mean_batch'].mean():.1f} | {mine['full_share_decode'].mean():.2f} | "
            f"{' / '.join(f'{v:.2f}' for v in ratios)} | {mine['acceptance_length'].mean():.1f} |"
        )


def idle(samples: Path) -> Iterator[str]:
    """Whether servers that are not driven use the CPU: the longest time each showed no second of it."""
    yield (
        "| round | watched, s | samples | cores, all processes | servers | "
        "longest time of each without a CPU second | GPU utilization |"
    )
    yield "|--:|--:|--:|--:|--:|--:|--:|"
    with samples.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    for number, group in groupby(rows, key=lambda row: row["round"]):
        mine, quiet, longest = list(group), defaultdict[int, int](int), defaultdict[int, int](int)
        for row in mine:
            for server, used in enumerate(row["server_cpu_s"].split()):
                quiet[server] = 0 if int(used) else quiet[server] + int(row["interval_s"])
                longest[server] = max(longest[server], quiet[server])
        watched = sum(int(row["interval_s"]) for row in mine)
        cores = sum(int(row["all_cpu_s"]) for row in mine) / watched
        busy = [int(row["gpu_utilization_pct"]) for row in mine]
        yield (
            f"| {number} | {watched} | {len(mine)} | {cores:.2f} | {len(longest)} | "
            f"{min(longest.values())}-{max(longest.values())} s | "
            f"mean {sum(busy) / len(busy):.0f} %, most {max(busy)} % |"
        )


def tables() -> dict[str, str]:
    """Every table of the page by name."""
    frame = trials(RUN)
    whole = whole_rounds(frame)
    decided = best_k(load_rows(RUN), FAMILIES)
    lines = {
        "passes": passes(frame),
        "idle": idle(RUN / "idle.csv"),
        "engine": engine(whole),
        "steps": steps(whole),
        "throughput": throughput(whole),
        "gains": gains(frame, whole),
        "comparisons": comparisons(frame, whole),
        "best-k": [str(render(decided, "md")).rstrip()],
        "certainty": certainty(decided),
        "warm": warm(frame, trials(WARM)),
        "shape": shape(trials(SHAPE)),
    }
    return {name: "\n".join(text) + "\n" for name, text in lines.items()}


def filled(page: str, made: dict[str, str]) -> str:
    """The page with its tables made anew. Raises ValueError for one that has no place in it."""
    for name, text in made.items():
        start, end = f"<!-- {name} -->\n", f"<!-- end of {name} -->"
        before, found, rest = page.partition(start)
        _, closed, after = rest.partition(end)
        if not (found and closed):
            raise ValueError(f"{PAGE}: no place for the table {name}: {start.strip()} ... {end}")
        page = before + start + text + end + after
    return page


def main() -> None:
    """Print every table under its name, or put them into the page."""
    made = tables()
    if "--write" in sys.argv[1:]:
        PAGE.write_text(filled(PAGE.read_text(encoding="utf-8"), made), encoding="utf-8")
        return
    for name, text in made.items():
        print(f"<!-- {name} -->\n{text}<!-- end of {name} -->\n")


if __name__ == "__main__":
    main()
