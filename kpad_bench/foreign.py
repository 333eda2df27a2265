"""Summaries of ``vllm bench sweep serve`` read into rows like those of the trials table, marked as foreign.

The layout is that of vLLM 0.32.0 (vllm/benchmarks/sweep/serve.py): a folder for each combination of
parameters, in it ``summary.json``, the list of its runs; above them ``summary.csv``, the same as one table.
What such a file does not tell is null. Its runs were made one after the other, not in blocks: they become
repeats of one round, so that nothing is ever established by them.
"""

from __future__ import annotations

import ast
import csv
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from kpad_bench.errors import DataError
from kpad_bench.schema import FAILED, OK, Column

#: What the rows say in the columns ``source``, ``sweep`` and ``run_id``: one series, whatever its files.
SOURCE = "vllm-bench-sweep"
SUMMARY_JSON, SUMMARY_CSV = "summary.json", "summary.csv"
#: Keys of every run of the serving benchmark: a summary without them is of something else.
REQUIRED = ("model_id", "output_throughput", "completed")
UNKNOWN = "unknown"
#: A pass with fewer good requests is not ok: the default of thresholds.success_share.
SUCCESS_SHARE = 0.99
NOT_IN_BLOCKS = (
    "measured by vllm bench sweep: in no blocks, with no control of the suffix cache and no proof of FULL "
    "graphs; never established"
)
NO_CORPUS = "its files do not tell the prompts; say --metadata corpus=NAME to the benchmark"
NO_ARM = "its files do not tell the arm; say --metadata arm=NAME k=K to the benchmark"
TAKEN_AS_VAN = "no speculation is told of and no draft was counted: taken as van"
_ENDPOINTS = {
    "openai-chat": "/v1/chat/completions",
    "openai": "/v1/completions",
    "vllm": "/v1/completions",
}
_SAME = {
    "model": "model_id", "n_prompts": "num_prompts", "concurrency": "max_concurrency",
    "duration_s": "duration", "n_ok": "completed", "n_failed": "failed",
    "input_tokens": "total_input_tokens", "output_tokens": "total_output_tokens",
    "request_per_s": "request_throughput", "output_tok_per_s": "output_throughput",
    "n_drafts": "spec_decode_num_drafts", "draft_tokens": "spec_decode_draft_tokens",
    "accepted_tokens": "spec_decode_accepted_tokens", "temperature": "temperature",
    "max_model_len": "max_model_len", "tensor_parallel": "tensor_parallel_size",
}  # fmt: skip
_QUANTILES = {50: "median", 90: "p90", 99: "p99"}
_TIMES = {"ttft": "ttft", "tpot": "tpot", "itl": "itl", "e2e": "e2el"}

Record = Mapping[str, Any]


class ForeignRows(NamedTuple):
    """Rows, the place of each ("file, run n"), and doubts about the reading."""

    rows: list[dict[str, Any]]
    places: list[str]
    notes: list[str]


def is_summary(path: Path) -> bool:
    """Whether this is a sweep of vLLM: a folder that it wrote, or one of its summaries."""
    if path.is_dir():
        return bool(_summaries(path))
    if path.suffix != ".csv":
        return path.suffix == ".json"
    try:
        with path.open(encoding="utf-8") as file:
            return set(REQUIRED) <= set(file.readline().strip().split(","))
    except (OSError, UnicodeDecodeError):
        return False


def read_summaries(path: Path, columns: Sequence[Column]) -> ForeignRows:
    """The runs of a sweep's folder, or of one summary. Raises DataError for what is no such thing."""
    kinds = {column.name: column.kind for column in columns}
    found = ForeignRows([], [], [])
    for file in _summaries(path) if path.is_dir() else [path]:
        for number, record in enumerate(_records(file)):
            place = f"{file}, run {record.get('run_number', number)}"
            row = _row(record, place, f"{file.resolve()}#{number}")
            found.rows.append({name: _of_kind(row.get(name), kind) for name, kind in kinds.items()})
            found.places.append(place)
    if not found.rows:
        raise DataError(f"{path}: no run in it")
    failures = sorted(path.glob("**/*failure.json")) if path.is_dir() else []
    if failures:
        found.notes.append(f"{path}: left out: {len(failures)} failed runs, of which no model is told")
    return found


def _summaries(folder: Path) -> list[Path]:
    """The summaries of each combination; else the table of all of them."""
    found = [path for name in (SUMMARY_JSON, f"*/{SUMMARY_JSON}") for path in sorted(folder.glob(name))]
    table = folder / SUMMARY_CSV
    return found or ([table] if table.is_file() else [])


def _records(file: Path) -> Iterator[Record]:
    try:
        text = file.read_text(encoding="utf-8")
        records = json.loads(text) if file.name.endswith(".json") else list(_of_csv(text))
    except OSError as error:
        raise DataError(f"{file}: cannot be read: {error.strerror}") from error
    except (ValueError, csv.Error) as error:
        raise DataError(f"{file}: no summary of vllm bench sweep serve: {error}") from error
    if not isinstance(records, list):
        raise DataError(f"{file}: not a list of runs, as vllm bench sweep serve writes it")
    for record in records:
        missing = [name for name in REQUIRED if not isinstance(record, dict) or record.get(name) is None]
        if missing:
            raise DataError(
                f"{file}: a run without {', '.join(missing)}; only vllm bench sweep serve and serve_workload "
                "are read"
            )
        yield record


def _of_csv(text: str) -> Iterator[dict[str, Any]]:
    """Lines of the table that pandas wrote: its index first, and Python's text of whatever is no number."""
    for line in csv.DictReader(text.splitlines(), strict=True):
        yield {name: _literal(value) for name, value in line.items() if name and value}


def _literal(text: str) -> Any:
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


def _row(record: Record, place: str, trial_id: str) -> dict[str, Any]:
    arm, k, warnings = _arm(record)
    corpus = _told(record, "corpus", "dataset_name")
    status, reason = _status(record)
    row: dict[str, Any] = {
        name: _number(record, key, place) for name, key in _SAME.items() if name != "model"
    }
    for ours, theirs in _TIMES.items():
        for q, name in _QUANTILES.items():
            ms = _number(record, f"{name}_{theirs}_ms", place)
            row[f"{ours}_p{q}_s"] = None if ms is None or not row["n_ok"] else ms / 1e3
    if record.get("request_rate") not in ("inf", math.inf, None):
        warnings.append(f"{record['request_rate']} requests/s were offered: no closed loop")
    return {
        **row,
        "trial_id": trial_id, "source": SOURCE, "sweep": SOURCE, "run_id": SOURCE,
        "model": str(record["model_id"]), "corpus": corpus or UNKNOWN, "arm": arm, "k": k,
        "round": 1, "repeat": int(_number(record, "run_number", place) or 0) + 1,
        "is_sentinel": False, "status": status, "reason": reason,
        "output_tok_per_s": row["output_tok_per_s"] or None,
        "endpoint": _ENDPOINTS.get(str(record.get("backend"))),
        "warnings": [NOT_IN_BLOCKS, *([] if corpus else [NO_CORPUS]), *warnings],
    }  # fmt: skip


def _arm(record: Record) -> tuple[str, int | None, list[str]]:
    """Arm, K, and what is doubtful about them: by metadata, by a parameter, else by what was counted."""
    told, k = _told(record, "arm"), _whole(_told(record, "k"))
    if told:
        name, _, k_of_arm = told.partition("@")
        return name, k or _whole(k_of_arm), []
    method, asked = _speculation(record)
    if method:
        return {"suffix": "suf"}.get(method, method), asked, []
    rates = record.get("spec_decode_per_position_acceptance_rates")
    if isinstance(rates, list):
        return UNKNOWN, len(rates) or None, [NO_ARM]
    return "van", None, [TAKEN_AS_VAN]


def _speculation(record: Record) -> tuple[str | None, int | None]:
    """Method and K as a parameter of the sweep set them: whole, as JSON or not, or each by its own name."""
    found: dict[str, Any] = {}
    for key, value in record.items():
        head, _, rest = key.replace("-", "_").partition(".")
        if head == "speculative_config":
            found |= {rest: value} if rest else _mapping(value)
    method = found.get("method")
    return None if method is None else str(method), _whole(found.get("num_speculative_tokens"))


def _mapping(value: Any) -> dict[str, Any]:
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            return {}
    return value if isinstance(value, dict) else {}


def _status(record: Record) -> tuple[str, str | None]:
    """vLLM writes 0 tokens/s for a pass in which nothing ended well: here it is one that failed."""
    n_ok, n_failed = int(record["completed"]), int(record.get("failed") or 0)
    if n_ok and n_ok >= SUCCESS_SHARE * (n_ok + n_failed):
        return OK, None
    return FAILED, "low_success_share"


def _told(record: Record, *names: str) -> str | None:
    """What ``--metadata`` or a parameter says, by the first of these names, with or without ``kpad_``."""
    for name in names:
        for key in (f"kpad_{name}", name, name.replace("_", "-")):
            if record.get(key) not in (None, ""):
                return str(record[key])
    return None


def _whole(value: Any) -> int | None:
    try:
        return int(float(value)) or None
    except (TypeError, ValueError, OverflowError):
        return None


def _of_kind(value: Any, kind: str) -> Any:
    """The value; an int where pandas has made a float of it, as in a column with gaps."""
    is_whole = kind == "int" and isinstance(value, float) and value.is_integer()
    return int(value) if is_whole else value


def _number(record: Record, key: str, place: str) -> float | int | None:
    value = record.get(key, record.get(key.replace("_", "-")))
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise DataError(f"{place}, {key}: {value!r} is not a number")
    return value
