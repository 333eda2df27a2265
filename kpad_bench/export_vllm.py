"""Trial rows as the result files of ``vllm bench serve --save-result``, one JSON file for each trial.

Keys and meanings are those of vLLM 0.32.0 (vllm/benchmarks/serve.py). A key is there only where the row
holds the same thing: what is not known, or is another thing here, is left out and never zero. docs/export.md
has the table. What vLLM cannot say of a pass stands in keys with ``kpad_`` in front, as its ``--metadata``
would put it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kpad_bench import arrow, storage
from kpad_bench.disk import as_host_error, write_whole
from kpad_bench.errors import DataError
from kpad_bench.rows import PLACE, read_rows
from kpad_bench.schema import OK, REQUESTS, TRIALS

Row = Mapping[str, Any]
#: By the path of the API that was driven, the backend of vLLM's client that drives the same.
BACKENDS = {"/v1/chat/completions": "openai-chat", "/v1/completions": "openai"}
#: Columns that are the same thing under another name.
SAME = {
    "model": "model_id",
    "n_prompts": "num_prompts",
    "concurrency": "max_concurrency",
    "duration_s": "duration",
    "n_ok": "completed",
    "n_failed": "failed",
    "input_tokens": "total_input_tokens",
    "output_tokens": "total_output_tokens",
    "request_per_s": "request_throughput",
    "output_tok_per_s": "output_throughput",
}
#: The same among the counters of speculation, where no unmeasured request is in them.
COUNTERS = {
    "n_drafts": "spec_decode_num_drafts",
    "draft_tokens": "spec_decode_draft_tokens",
    "accepted_tokens": "spec_decode_accepted_tokens",
}
TIMES = {"ttft": "ttft", "tpot": "tpot", "itl": "itl", "e2e": "e2el"}
QUANTILES = {50: "median", 90: "p90", 99: "p99"}
METADATA = (
    *("sweep", "run_id", "trial_id", "cell_id", "round", "repeat", "is_sentinel", "arm", "k", "corpus"),
    *("corpus_digest", "cache_state", "isolation", "max_tokens", "temperature", "acceptance_length"),
    *("steady_output_tok_per_s", "full_share_decode", "pad_tokens", "gpu_name", "driver", "vllm_version"),
)


def write_results(
    paths: Sequence[Path], out: Path, say: Callable[[str], None], *, is_detailed: bool = False
) -> int:
    """Write the file of every ok trial under the paths into a folder; their number.

    ``is_detailed`` adds what vLLM's ``--save-detailed`` does, as far as it is known. Trials that failed or
    are invalid have no place in vLLM's format: they are counted and said. Raises UsageError and DataError
    for rows that cannot be read, HostError where nothing can be written.
    """
    read = read_rows(paths, TRIALS)
    for note in read.notes:
        say(note)
    trials = read.table.to_pylist()
    good = [row for row in trials if row["status"] == OK]
    if len(good) < len(trials):
        say(f"left out: {len(trials) - len(good)} of {len(trials)} trials, which are not ok")
    if not good:
        raise DataError("no trial is ok: there is nothing to export")
    written: dict[str, Row] = {}
    with as_host_error(out):
        out.mkdir(parents=True, exist_ok=True)
        for row, requests in _with_requests(good):
            name = file_name(row)
            if name in written:
                if _said(row) == _said(written[name]):
                    continue
                raise DataError(
                    f"{row[PLACE]} and {written[name][PLACE]} tell trial {row['trial_id']} differently"
                )
            written[name] = row
            text = json.dumps(result(row, requests, is_detailed=is_detailed), allow_nan=False)
            write_whole(out / name, text.encode())
    return len(written)


def file_name(row: Row) -> str:
    """``RUN.TRIAL.json``; a trial without a run has its id alone."""
    ids = [str(row[name]) for name in ("run_id", "trial_id") if row[name]]
    return f"{'.'.join(ids)}.json".replace("/", "_")


def result(row: Row, requests: Sequence[Row], *, is_detailed: bool = False) -> dict[str, Any]:
    """One trial in vLLM's words. ``requests`` may be none: then what needs them is left out."""
    found: dict[str, Any] = {
        **_setting(row),
        **{name: row[column] for column, name in SAME.items()},
        "total_token_throughput": _over(_sum(row["input_tokens"], row["output_tokens"]), row["duration_s"]),
        **(_detail(requests) if is_detailed else {}),
        **(_speculation(row) if not row["n_filler"] else {}),
        **dict(_times(row, requests)),
        **{f"kpad_{name}": row[name] for name in METADATA},
    }
    return {name: value for name, value in found.items() if value is not None}


def _said(row: Row) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name != PLACE}


def _with_requests(trials: Sequence[Row]) -> Iterator[tuple[Row, list[Row]]]:
    """Every trial with its requests, in order of issue; the requests of one run are read at a time."""
    by_place: dict[str, list[Row]] = {}
    for row in trials:
        by_place.setdefault(row[PLACE], []).append(row)
    for place, rows in by_place.items():
        read = storage.place(place)
        run = read.parent if read.name == "trials.parquet" else read
        table = arrow.run_table(run, "requests", REQUESTS)[0] if run.is_dir() else None
        for row in rows:
            yield row, [] if table is None else _requests_of(table, row["trial_id"])


def _requests_of(table: pa.Table, trial_id: str) -> list[Row]:
    mine = table.filter(pc.equal(table.column("trial_id"), trial_id))
    return list(mine.sort_by("request_index").to_pylist())


def _setting(row: Row) -> dict[str, Any]:
    """What was asked for. A closed loop is vLLM's infinite request rate under a limit of concurrency."""
    started, lasted = row["started_at"], row["duration_s"]
    end = None if started is None or lasted is None else started + timedelta(seconds=lasted)
    backend = BACKENDS.get(row["endpoint"] or "")
    return {
        "date": None if end is None else f"{end:%Y%m%d-%H%M%S}",
        "endpoint_type": backend,
        "backend": backend,
        "label": row["arm"] if row["k"] is None else f"{row['arm']}@{row['k']}",
        "request_rate": None if row["concurrency"] is None else "inf",
    }


def _speculation(row: Row) -> dict[str, Any]:
    """Counters and vLLM's own ratios of them; nothing where nothing was drafted, as in vLLM's files."""
    drafts, tokens, accepted = (row[name] for name in COUNTERS)
    if not drafts or not tokens or accepted is None:
        return {}
    positions = row["accepted_per_position"]
    return {
        "spec_decode_acceptance_rate": 100 * accepted / tokens,
        "spec_decode_acceptance_length": 1 + accepted / drafts,
        **{name: row[column] for column, name in COUNTERS.items()},
        "spec_decode_per_position_acceptance_rates": positions and [one / drafts for one in positions],
    }


def _times(row: Row, requests: Sequence[Row]) -> Iterator[tuple[str, float | None]]:
    """Milliseconds. Percentiles are the row's; mean and standard deviation come from the requests."""
    for ours, theirs in TIMES.items():
        values = [one[f"{ours}_s"] for one in requests if one["status"] == OK] if ours != "itl" else []
        known = np.array([value for value in values if value is not None], dtype=float)
        if known.size:
            yield f"mean_{theirs}_ms", float(known.mean()) * 1e3
            yield f"std_{theirs}_ms", float(known.std()) * 1e3
        for q, name in QUANTILES.items():
            seconds = row[f"{ours}_p{q}_s"]
            yield f"{name}_{theirs}_ms", None if seconds is None else seconds * 1e3


def _detail(requests: Sequence[Row]) -> dict[str, Any]:
    """One value for each request, in order of issue; null where a failed request has none."""
    if not requests:
        return {}
    texts = [one["output_text"] for one in requests]
    return {
        "input_lens": [one["input_tokens"] for one in requests],
        "output_lens": [one["output_tokens"] if one["status"] == OK else 0 for one in requests],
        "ttfts": [one["ttft_s"] for one in requests],
        "latencies": [one["e2e_s"] for one in requests],
        "start_times": [None if one["start_ns"] is None else one["start_ns"] / 1e9 for one in requests],
        "generated_texts": None if None in texts else texts,
        "errors": [one["error"] or "" for one in requests],
    }


def _sum(*values: float | None) -> float | None:
    return None if None in values else sum(value for value in values if value is not None)


def _over(value: float | None, by: float | None) -> float | None:
    return value / by if value is not None and by else None
