"""Helpers of the tests of ``reduce``: trial rows as frames, runs and CSV files, and the one row they give."""

from __future__ import annotations

import pandas as pd

from kpad_bench.reduce import best_k, footnotes
from kpad_bench.store import RunFolder


def frame(*rows, **shared):
    """Trial rows as a DataFrame: (arm, k, speed) or (arm, k, speed, {column: value})."""
    records = []
    for arm, k, speed, *more in rows:
        base = {"model": "m", "corpus": "c", "arm": arm, "k": k, "output_tok_per_s": speed}
        records.append({**base, **shared, **(more[0] if more else {})})
    return pd.DataFrame(records)


def in_rounds(speeds, **shared):
    """Trial rows from arm@K -> one speed for each round; None: the round has no such trial."""
    rows = []
    for label, values in speeds.items():
        arm, _, k = label.partition("@")
        for number, speed in enumerate(values, start=1):
            if speed is not None:
                rows.append((arm, int(k) if k else None, float(speed), {"round": number}))
    return frame(*rows, **shared)


def nights(*parts, **shared):
    """Rows of several runs, named n1, n2, ...: each part is a mapping as ``in_rounds`` takes it."""
    return pd.concat(
        [in_rounds(part, sweep="s", run_id=f"n{i}", **shared) for i, part in enumerate(parts, start=1)],
        ignore_index=True,
    )


def only_row(rows, **options):
    """The one row of the best-K table of these rows, and its footnotes in one text."""
    table = best_k(rows, **options)
    assert len(table) == 1
    return table.iloc[0], "\n".join(footnotes(table))


def csv_file(tmp_path, text, name="rows.csv"):
    """A file with this text."""
    path = tmp_path / name
    path.write_text(text)
    return path


def write_run(path, *rows, **shared):
    """A run folder with these trials: (trial_id, columns)."""
    run = RunFolder(path)
    run.write_manifest({})
    for trial_id, row in rows:
        run.write_trial({"trial_id": trial_id, "model": "m", "corpus": "c", "round": 1, **shared, **row}, [])
    return run


def ok(k, speed, arm="kpad", **more):
    """The columns of a trial that went well."""
    return {"status": "ok", "arm": arm, "k": k, "output_tok_per_s": speed, **more}
