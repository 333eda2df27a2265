"""One run on disk: a row per trial, written whole or not at all, and nothing measured ever deleted.

    results/<sweep>/<run_id>/
        manifest.json                            what was asked for, and where it ran
        trials/<trial_id>.parquet                one part per trial; its presence makes the trial a fact
        requests/<trial_id>.parquet              its requests, written before it
        raw/<trial_id>/<name>.gz                 snapshots it was computed from, written before it
        trials.parquet, requests.parquet         the parts of a finished run, compacted
        superseded/<trial_id>.<n>/               what an earlier attempt at a trial left
        set_aside/                               files that are not whole, or not this table's
        logs/

Knows columns and files; nothing of servers, plans or what the numbers mean.
"""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from kpad_bench import arrow, storage
from kpad_bench.arrow import MANIFEST, TABLES
from kpad_bench.claims import Claim, claim
from kpad_bench.configfile import cache_dir
from kpad_bench.disk import as_host_error, free_name, move, write_whole
from kpad_bench.errors import DataError, HostError
from kpad_bench.locks import ownership
from kpad_bench.schema import MUST_MATCH, OK, REQUESTS, SCHEMA_VERSION, STATUSES, TRIALS, WHO

#: Ids become file names: no separator, no leading dot, room for a suffix within the 255 bytes of a name.
_ID = re.compile(r"[A-Za-z0-9_@-][A-Za-z0-9._@-]{0,199}")
#: What has to be known of a trial to skip it, to do it again, or to decide whether it needs another round.
_KNOWN = ("status", "reason", "output_tok_per_s", "full_share_decode", "slot", *MUST_MATCH)
_DONE = tuple(c for c in TRIALS if c in WHO or c.name in _KNOWN)


class RunFolder:
    """The folder of one run. One process writes to it at a time, holding ``lock()``."""

    def __init__(self, path: Path | str) -> None:
        self.path = storage.place(path)
        self._claim: Claim | None = None

    @classmethod
    def create(cls, path: Path | str) -> RunFolder:
        """A new, empty run folder. Raises HostError where one is there already, or none can be made."""
        path = storage.place(path)
        with as_host_error(path):
            try:
                if not storage.is_remote(path):
                    path.mkdir(parents=True)
                elif arrow.is_run(path):
                    raise FileExistsError
            except FileExistsError as error:
                raise HostError(f"{path} is there already; a new run needs a folder of its own") from error
        return cls(path)

    @property
    def run_id(self) -> str:
        """Name of the run: that of its folder."""
        return self.path.name

    def log_path(self, boot_id: str) -> Path:
        """The file of this machine that one server's log goes to; see ``save_log``."""
        name = f"{_checked_name(boot_id, 'boot_id')}.log"
        if storage.is_remote(self.path):
            return cache_dir() / "logs" / self.run_id / name
        return self._made("logs") / name

    def save_log(self, boot_id: str) -> None:
        """Bring the log of a server that is gone to the run, where that is not on this machine."""
        if storage.is_remote(self.path):
            path = self.log_path(boot_id)
            with suppress(FileNotFoundError):  # it was spared, or somebody else runs it
                data = path.read_bytes()
                with as_host_error(self.path):
                    write_whole(self.path / "logs" / path.name, data)
                path.unlink()

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Keep others from writing to the run until this ends. Raises HostError, naming who does."""
        what = f"the run {self.path}"
        if not storage.is_remote(self.path):
            with ownership(self.path / ".lock", what):
                yield
            return
        with claim(self.path / ".lock", what) as self._claim:
            yield

    @contextmanager
    def block_lock(self, block_id: str) -> Iterator[None]:
        """Keep others, on whatever host, from measuring a block of the run until this ends."""
        path, what = self._made("claims") / f"{_checked_name(block_id, 'block_id')}.lock", f"block {block_id}"
        if not storage.is_remote(self.path):
            with ownership(path, what):
                yield
            return
        with claim(path, what) as self._claim:
            yield

    def write_manifest(self, manifest: Mapping[str, Any]) -> None:
        """Save the manifest as JSON, whole or not at all."""
        text = json.dumps(manifest, indent=1, sort_keys=True, ensure_ascii=False, allow_nan=False)
        with as_host_error(self.path):
            write_whole(self._made("") / MANIFEST, f"{text}\n".encode())

    def read_manifest(self) -> dict[str, Any]:
        """The manifest. Raises DataError where it is missing or not a JSON object."""
        path = self.path / MANIFEST
        try:
            manifest = json.loads(path.read_bytes())
        except FileNotFoundError as error:
            raise DataError(f"{path}: missing; {self.path} is not a run of this tool") from error
        except ValueError as error:
            raise DataError(f"{path}: not JSON: {error}; restore it, or move the run away") from error
        if not isinstance(manifest, dict):
            raise DataError(f"{path}: not a JSON object")
        return manifest

    def write_trial(
        self,
        row: Mapping[str, Any],
        requests: Sequence[Mapping[str, Any]],
        raw: Mapping[str, bytes] | None = None,
        *,
        replace_ok: bool = False,
    ) -> None:
        """Add one trial: snapshots, then requests, then the row that makes it count; each whole and synced.

        Columns left out are null; schema_version, and the ids of the requests, are filled in. What an
        earlier attempt left moves to ``superseded/``. An ok trial is replaced only with ``replace_ok``
        (measured again because the driver changed, say). Raises ValueError for an id, column, value or
        status that cannot be, and for an ok trial already there; HostError for a full or read-only disk.
        """
        trial_id = _checked_name(row.get("trial_id"), "trial_id")
        snapshots = {_checked_name(name, "raw name"): data for name, data in (raw or {}).items()}
        if row.get("status") not in STATUSES:
            raise ValueError(f"{trial_id}: status {row.get('status')!r} is none of {', '.join(STATUSES)}")
        ids = {
            "schema_version": SCHEMA_VERSION,
            "run_id": row.get("run_id") or self.run_id,
            "trial_id": trial_id,
        }
        trial_part = arrow.to_bytes(arrow.to_table([_filled(row, ids)], TRIALS))
        request_part = arrow.to_bytes(arrow.to_table([_filled(r, ids) for r in requests], REQUESTS))
        if not replace_ok and self._status(trial_id) == OK:
            raise ValueError(f"{trial_id} is in {self.path} with status ok; it is not measured twice")
        if self._claim is not None:
            self._claim.check()
        with as_host_error(self.path):
            self._supersede(trial_id)
            for name, data in snapshots.items():
                write_whole(self._made(f"raw/{trial_id}") / f"{name}.gz", gzip.compress(data, mtime=0))
            write_whole(self._made("requests") / f"{trial_id}.parquet", request_part)
            write_whole(self._made("trials") / f"{trial_id}.parquet", trial_part)

    def read_done(self) -> tuple[dict[str, dict[str, Any]], list[str]]:
        """Every trial that has a row, by trial_id (ids, outcome, speed, must-match columns), and warnings.

        A part that is not whole or not ours is moved to ``set_aside/`` with a warning, and its trial is
        measured again. Raises DataError where the compacted file cannot be read.
        """
        warnings = []
        table, problems = arrow.run_table(self.path, "trials", _DONE)
        for problem in problems:
            with as_host_error(self.path):
                target = free_name(self._made("set_aside") / f"trials.{problem.path.name}")
                move(problem.path, target)
            warnings.append(f"{problem}; moved to {target}, its trial counts as not measured")
        return {row["trial_id"]: row for row in table.to_pylist()}, warnings

    def supersede(self, trial_ids: Sequence[str]) -> None:
        """Take trials out of the run: what there is of them moves to ``superseded/``."""
        with as_host_error(self.path):
            for name in ("trials", "requests"):  # the row first, so that it stops counting at once
                self._take_out(name, trial_ids)
            for trial_id in trial_ids:
                self._supersede(trial_id)

    def read_superseded(self) -> dict[str, set[str]]:
        """Reasons of earlier attempts, by trial_id; an attempt that was ok has none.

        A file that cannot be read tells nothing: it is no row of this run.
        """
        reasons: dict[str, set[str]] = {}
        for path in self.path.glob("superseded/*/trials.parquet"):
            with suppress(DataError):
                for row in arrow.read_table(path, _DONE).to_pylist():
                    if row["reason"] is not None:
                        reasons.setdefault(row["trial_id"], set()).add(row["reason"])
        return reasons

    def compact(self) -> tuple[int, list[str]]:
        """Gather the parts of a finished run into one file for each table: number of trials, warnings.

        The new file is read back and compared before it takes its place, and parts go only after that,
        so a crash at any point loses nothing and counts nothing twice. Rows of an earlier attempt that
        parts replace move to ``superseded/``. Raises DataError where a part cannot be read.
        """
        _, warnings = self.read_done()  # sets broken parts aside
        n_trials = 0
        with as_host_error(self.path):
            # Requests first: a trial row must never be without its requests.
            for name in ("requests", "trials"):
                n_trials = self._compact(name)
        return n_trials, warnings

    def _compact(self, name: str) -> int:
        columns, path = TABLES[name], self.path / f"{name}.parquet"
        parts = arrow.part_files(self.path, name)
        table, problems = arrow.run_table(self.path, name, columns)
        if problems:
            raise DataError(f"{problems[0]}; move it away to compact the run without it")
        if parts:
            if path.exists():
                self._keep_replaced(name, {part.stem for part in parts})
            write_whole(path, arrow.to_bytes(table), check=lambda new: _compare(new, table, name))
        for part in parts:
            part.unlink()
        return int(table.num_rows)

    def _keep_replaced(self, name: str, trial_ids: set[str]) -> None:
        """Save rows of the compacted file that a part with other content is about to replace."""
        old = arrow.read_table(self.path / f"{name}.parquet", TABLES[name])
        held = old.column("trial_id")
        for trial_id in sorted(trial_ids.intersection(held.to_pylist())):
            rows = old.filter(pc.equal(held, trial_id))
            if not rows.equals(arrow.read_part(self.path / name / f"{trial_id}.parquet", TABLES[name])):
                write_whole(self._superseded(trial_id, f"{name}.parquet"), arrow.to_bytes(rows))

    def _take_out(self, name: str, trial_ids: Sequence[str]) -> None:
        """Move rows of the compacted file to ``superseded/``; without one there is nothing to do."""
        path = self.path / f"{name}.parquet"
        if not path.exists():
            return
        old = arrow.read_table(path, TABLES[name])
        held = old.column("trial_id")
        for trial_id in sorted({*trial_ids}.intersection(held.to_pylist())):
            rows = old.filter(pc.equal(held, trial_id))
            write_whole(self._superseded(trial_id, path.name), arrow.to_bytes(rows))
        kept = old.filter(pc.invert(pc.is_in(held, pa.array(trial_ids, pa.string()))))
        if kept.num_rows < old.num_rows:
            write_whole(path, arrow.to_bytes(kept), check=lambda new: _compare(new, kept, name))

    def _status(self, trial_id: str) -> str | None:
        """Status of the trial as it counts now: its part's, else the compacted file's, else None."""
        part = self.path / "trials" / f"{trial_id}.parquet"
        if part.exists():
            try:
                statuses = arrow.read_part(part, _DONE).column("status").to_pylist()
            except DataError:
                return None
            return statuses[0] if statuses else None
        compacted = self.path / "trials.parquet"
        if not compacted.exists():
            return None
        table = arrow.read_table(compacted, _DONE)
        return next((r["status"] for r in table.to_pylist() if r["trial_id"] == trial_id), None)

    def _supersede(self, trial_id: str) -> None:
        """Move what an earlier attempt left; the row first, so that it stops counting at once."""
        for name in ("trials.parquet", "requests.parquet", "raw"):
            table, _, suffix = name.partition(".")
            path = self.path / table / (f"{trial_id}.{suffix}" if suffix else trial_id)
            if path.exists():
                move(path, self._superseded(trial_id, name))

    def _superseded(self, trial_id: str, name: str) -> Path:
        """A free place for one file of an earlier attempt: in the first folder without that file."""
        number = 1
        while (self.path / "superseded" / f"{trial_id}.{number}" / name).exists():
            number += 1
        return self._made(f"superseded/{trial_id}.{number}") / name

    def _made(self, name: str) -> Path:
        folder = self.path / name if name else self.path
        if not storage.is_remote(folder):
            folder.mkdir(parents=True, exist_ok=True)
        return folder


def find_runs(sweep_folder: Path | str) -> list[RunFolder]:
    """The runs of a sweep, by run_id, the newest last; none where the folder does not exist."""
    folder = storage.place(sweep_folder)
    found = [path for path in folder.iterdir() if arrow.is_run(path)] if folder.is_dir() else []
    return [RunFolder(path) for path in sorted(found)]


def _compare(path: Path, table: pa.Table, name: str) -> None:
    written = arrow.read_table(path, TABLES[name])
    if not written.equals(table.combine_chunks()):
        raise DataError(f"{path}: read back with other rows than were written; the parts stay as they are")


def _filled(row: Mapping[str, Any], ids: Mapping[str, Any]) -> dict[str, Any]:
    for name, value in ids.items():
        if row.get(name) not in (None, value):
            raise ValueError(f"{ids['trial_id']}: {name} is {row[name]!r}, not {value!r}")
    return {**row, **ids}


def _checked_name(name: Any, what: str) -> str:
    if not isinstance(name, str) or not _ID.fullmatch(name):
        raise ValueError(f"{what} {name!r} cannot be part of a file name: {_ID.pattern}")
    return name
