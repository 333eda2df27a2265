"""What a night is made of, apart: retention, webhook, waiting for GPUs, rows that may stand together."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from types import SimpleNamespace

import pytest
from test_plan import ARMS, MODEL, SERVER, resolved
from trial_rows import nights, write_run

from kpad_bench import doctor_gpu, gpu, retention, webhook
from kpad_bench.doctor_finding import run
from kpad_bench.gpu import GIB, Device
from kpad_bench.nightly_alike import compared, like_newest
from kpad_bench.nightly_summary import MOST_LINES, Summary, span
from kpad_bench.nightly_wait import POLL_S, Clock, wait_for_gpus, why_busy
from kpad_bench.slots import gpus_of
from kpad_bench.store import RunFolder

# --- retention


def a_night(folder, name, *cells, is_night=True, status="ok"):
    """A run with one good trial of each cell, its requests, a snapshot and a log."""
    run = write_run(folder / name)
    run.write_manifest({"night": {"started_at": name, "budget_s": 1.0} if is_night else None})
    for cell in cells:
        row = {"trial_id": f"{cell}.r1.n1", "cell_id": cell, "status": status}
        run.write_trial(row, [{"request_index": 0, "status": "ok"}], {"metrics_before.txt": b"x" * 100})
    run.log_path("b1").write_text("log")
    return run


def bulk(run: RunFolder) -> set[str]:
    return {name for name in retention.BULKY if (run.path / name).exists()}


ALL = {"logs", "raw", "requests"}


def test_older_nights_give_up_all_but_their_rows(tmp_path):
    """Of four nights the newest two stay whole; the others keep rows, manifest and what was made of them."""
    runs = [a_night(tmp_path, f"2026120{n}T200000Z", "a", "b") for n in range(1, 5)]
    runs[1].compact()
    (runs[0].path / "summary.json").write_text("{}")
    done = retention.thin(tmp_path, 2)
    assert done.run_ids == [run.run_id for run in runs[:2]]
    assert done.n_bytes > 0
    assert [bulk(run) for run in runs] == [set(), set(), ALL, ALL]
    assert [sorted(run.read_done()[0]) for run in runs] == [["a.r1.n1", "b.r1.n1"]] * 4
    assert (runs[0].path / "summary.json").exists()
    assert retention.thin(tmp_path, 2).run_ids == []


def test_the_only_night_of_a_cell_keeps_everything(tmp_path):
    """The newest night that has a cell stays whole, however old it is; failed trials do not count."""
    only = a_night(tmp_path, "20261201T200000Z", "a", "c")
    again = a_night(tmp_path, "20261202T200000Z", "a", "c")
    failed = a_night(tmp_path, "20261203T200000Z", "c", status="failed")
    newest = a_night(tmp_path, "20261204T200000Z", "a")
    done = retention.thin(tmp_path, 1)
    assert done.run_ids == [only.run_id, failed.run_id]
    assert done.kept == {again.run_id: "no later night has c"}
    assert [bulk(run) for run in (only, again, failed, newest)] == [set(), ALL, set(), ALL]


def test_others_runs_and_runs_in_use_are_left_alone(tmp_path):
    """A run that was no night, one that somebody writes to, and one whose rows cannot be read stay whole."""
    other = a_night(tmp_path, "20261201T200000Z", "a", is_night=False)
    locked = a_night(tmp_path, "20261202T200000Z", "a")
    broken = a_night(tmp_path, "20261203T200000Z", "a")
    (broken.path / "trials" / "a.r1.n1.parquet").write_bytes(b"half")
    a_night(tmp_path, "20261204T200000Z", "a")
    with locked.lock():
        done = retention.thin(tmp_path, 1)
    assert done.run_ids == []
    assert "in use by another kpad-bench" in done.kept[locked.run_id]
    assert done.kept[broken.run_id] == "its rows cannot be read"
    assert [bulk(run) for run in (other, locked, broken)] == [ALL, ALL, ALL]


@pytest.mark.parametrize("step", range(6))
def test_a_kill_in_the_middle_is_finished_by_the_next_night(tmp_path, monkeypatch, step):
    """Wherever it ends, rows are whole, nothing half removed has its own name, and the next call ends it."""
    old = a_night(tmp_path, "20261201T200000Z", "a")
    a_night(tmp_path, "20261202T200000Z", "a")
    calls = []

    def killed(wrapped):
        def call(*args, **more):
            if len(calls) == step:
                raise KeyboardInterrupt
            calls.append(args)
            return wrapped(*args, **more)

        return call

    with monkeypatch.context() as patch:
        patch.setattr(retention.os, "replace", killed(retention.os.replace))
        patch.setattr(retention.shutil, "rmtree", killed(retention.shutil.rmtree))
        with pytest.raises(KeyboardInterrupt):
            retention.thin(tmp_path, 1)
    assert sorted(old.read_done()[0]) == ["a.r1.n1"]
    assert retention.thin(tmp_path, 1).run_ids == [old.run_id]
    assert bulk(old) == set()
    assert list(old.path.glob(".thinned*")) == []


# --- webhook


class Listener(BaseHTTPRequestHandler):
    """Takes one message, and answers what it is told."""

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.got.append((self.path, json.loads(body)))
        self.server.release.wait(30)
        self.send_response(self.server.answer)
        self.send_header("Location", "http://127.0.0.1:9/elsewhere")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Quiet."""


@contextmanager
def listening(monkeypatch, answer=204, *, is_slow=False) -> Iterator[HTTPServer]:
    """A local server in the place of a chat tool."""
    with HTTPServer(("127.0.0.1", 0), Listener) as server:
        server.got, server.answer, server.release = [], answer, threading.Event()
        if not is_slow:
            server.release.set()
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        monkeypatch.setenv(webhook.VARIABLE, f"http://127.0.0.1:{server.server_port}/secret-path")
        try:
            yield server
        finally:
            server.release.set()
            server.shutdown()
            thread.join()


def test_a_message_is_sent_where_the_environment_says(monkeypatch):
    """One POST of JSON; without the variable there is none."""
    monkeypatch.delenv(webhook.VARIABLE, raising=False)
    assert webhook.post({"text": "x"}) is None
    with listening(monkeypatch) as server:
        assert webhook.post({"text": "näher", "exit_code": 3}) is None
    assert server.got == [("/secret-path", {"text": "näher", "exit_code": 3})]


@pytest.mark.parametrize("answer", [302, 404, 500])
def test_a_refusal_is_told_without_the_url(monkeypatch, answer):
    """Any other answer, a redirect too, is a warning that does not hold the secret."""
    with listening(monkeypatch, answer) as server:
        why = webhook.post({"text": "x"})
    assert why == f"KPAD_BENCH_WEBHOOK: answered {answer}; the night itself is not affected"
    assert len(server.got) == 1


def test_a_server_that_never_answers_is_left(monkeypatch):
    """The wait is bounded."""
    with listening(monkeypatch, is_slow=True) as server:
        why = webhook.post({"text": "x"}, timeout_s=0.2)
        server.release.set()
    assert why is not None
    assert why.startswith(("KPAD_BENCH_WEBHOOK: no answer in 0.2 s", "KPAD_BENCH_WEBHOOK: not "))


@pytest.mark.parametrize(
    "url", ["http://127.0.0.1:1/secret", "ftp://x/secret", "secret", "http://[secret", "http://a b/secret"]
)
def test_an_url_that_leads_nowhere_is_a_warning(monkeypatch, url):
    """Nobody there, another scheme, no URL at all: told, and never repeated."""
    monkeypatch.setenv(webhook.VARIABLE, url)
    why = webhook.post({"text": "x"})
    assert why is not None
    assert "secret" not in why


# --- waiting for GPUs


class Gpus:
    """NVML with two GPUs; ``free_after_s``: when the first one is let go. ``now`` is moved by sleep."""

    def __init__(self, free_after_s=0.0, free=90) -> None:
        self.now, self.free_after_s, self.free = 0.0, free_after_s, free
        self.clock = Clock(lambda: self.now, self.sleep)

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def devices(self):
        free = [10 if self.now < self.free_after_s else self.free, 95]
        return [
            SimpleNamespace(index=n, uuid=f"GPU-{n}", memory_total=100 * GIB, memory_free=free[n] * GIB)
            for n in range(2)
        ]

    def holders(self, indices):
        held = 0 in indices and self.now < self.free_after_s
        return [SimpleNamespace(pid=7, name="train", memory_bytes=GIB, gpu_index=0)] if held else []


def wait(gpus, wait_s=3600.0, **changes):
    said = []
    return wait_for_gpus(resolved(**changes), wait_s, said.append, gpus, gpus.clock), said


def test_it_waits_until_the_gpus_are_free():
    """Polls until the holder is gone, says once who it waits for, and goes on."""
    gpus = Gpus(free_after_s=100)
    busy, said = wait(gpus)
    assert busy == []
    assert gpus.now == 4 * POLL_S
    assert said == [
        "waiting for GPUs, for 60 min at most: GPU 0 is held by train (pid 7), 10.0 of 100.0 GiB free"
    ]


def test_it_does_not_wait_for_ever():
    """At the deadline it says who still holds them."""
    gpus = Gpus(free_after_s=1e9)
    busy, _ = wait(gpus, 100)
    assert gpus.now == 100
    assert busy == ["GPU 0 is held by train (pid 7), 10.0 of 100.0 GiB free"]


def test_memory_that_nobody_known_holds_counts():
    """Less free than a server will take is busy too: in a container the holder may not be seen."""
    gpus = Gpus(free=80)
    assert wait(gpus, 0)[0] == ["GPU 0 is held by nobody known, 80.0 of 100.0 GiB free"]
    assert wait(Gpus(free=86), 0)[0] == []


def test_only_the_gpus_of_the_sweep_count(monkeypatch):
    """Those that servers see, and as many as the widest model takes; none on the CPU or without NVML."""
    one = {"models": {"tiny": MODEL.model_copy(update={"tensor_parallel": 1})}}
    gpus = Gpus(free_after_s=1e9)
    assert why_busy(resolved(**one), gpus)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    assert why_busy(resolved(**one), gpus) == []
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-1,GPU-0")
    assert why_busy(resolved(**one), gpus) == []
    assert why_busy(resolved(), gpus)
    on_cpu = SERVER.model_copy(update={"platform": "cpu"})
    assert why_busy(resolved(server=on_cpu), gpus) == []
    assert why_busy(resolved(), None) == []


ARM = ARMS["van"]
ON = {"CUDA_VISIBLE_DEVICES": "3"}


@pytest.mark.parametrize(
    ("changes", "environ", "used"),
    [
        ({}, None, [0, 1]),
        ({}, "2,1,0", [1, 2]),
        ({"server": SERVER.model_copy(update={"env": {"CUDA_VISIBLE_DEVICES": "3,0"}})}, "1,2", [0, 3]),
        ({"models": {"a": MODEL, "b": MODEL.model_copy(update={"env": ON})}}, "1,2", [1, 2, 3]),
        ({"arms": {"van": ARM, "x": ARM.model_copy(update={"env": ON})}}, None, [0, 1, 3]),
        ({"slots": [{"name": "a", "gpus": [0, 2]}, {"name": "b", "gpus": [3, 1]}]}, "1", [0, 1, 2, 3]),
        ({"slots": [{"name": "a", "gpus": [2, 3]}]}, None, [2, 3]),
        ({"server": SERVER.model_copy(update={"platform": "cpu"})}, None, []),
    ],
    ids=["first", "environment", "server", "a model", "an arm", "slots", "one slot", "cpu"],
)
def test_wait_doctor_and_locks_speak_of_the_same_gpus(monkeypatch, changes, environ, used):
    """Those of the slots, else what each server variant sees, as many as its model takes."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if environ is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", environ)
    sweep = resolved(**changes)
    all_held = [Device(n, f"GPU-{n}", "B200", memory_total=100 * GIB, memory_free=1) for n in range(4)]
    nvml = SimpleNamespace(devices=lambda: all_held, holders=lambda indices: [])
    assert [int(text.split()[1]) for text in why_busy(sweep, nvml)] == used
    found = run(doctor_gpu.checks(sweep, lambda: doctor_gpu.Gpus(all_held, environ=os.environ)))
    memory = [one.found for one in found if one.name == doctor_gpu.MEMORY]
    assert [int(re.findall(r"\d+", text)[0]) for text in memory] == used
    monkeypatch.setattr(gpu, "devices", lambda: all_held)
    assert gpus_of(sweep, 4) == [str(index) for index in used]


@pytest.mark.parametrize(
    ("changes", "environ", "names"),
    [
        ({}, None, ["0", "1"]),
        ({}, "GPU-a, GPU-b,GPU-c", ["GPU-a", "GPU-b"]),
        ({"slots": [{"name": "a", "gpus": [2, 3]}]}, None, ["2", "3"]),
        ({}, "", []),
    ],
)
def test_without_nvml_locks_have_the_names_of_the_configuration(monkeypatch, changes, environ, names):
    """Nobody can tell what they stand for."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if environ is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", environ)
    monkeypatch.setattr(gpu, "devices", list)
    assert gpus_of(resolved(**changes), 4) == names


def test_doctor_counts_what_each_server_variant_sees():
    """A model whose own environment leaves it too few GPUs is named, with that setting."""
    few = MODEL.model_copy(update={"env": ON})
    there = [Device(n, f"GPU-{n}", "B200") for n in range(4)]
    found = run(doctor_gpu.checks(resolved(models={"a": MODEL, "b": few}), lambda: doctor_gpu.Gpus(there)))
    (one,) = [line for line in found if line.name == "gpus"]
    assert one.state == "failure"
    assert one.found == "1 to be seen (CUDA_VISIBLE_DEVICES=3), b needs 2 (tensor_parallel)"


# --- rows of several nights

SPEEDS = {"van": [100.0, 101.0], "kpad@4": [200.0, 201.0], "kpad@8": [220.0, 221.0]}
HOST = {"driver": "d1", "corpus_digest": "c1", "cell_id": None}


def test_rows_like_the_newest_stay():
    """The same host, load and prompts: all nights pool."""
    rows = nights(SPEEDS, SPEEDS, SPEEDS, **HOST, status="ok")
    found = like_newest(rows)
    assert (len(found.rows), found.others) == (len(rows), {})


def test_rows_of_another_driver_or_other_prompts_stand_apart():
    """They are counted by run and by what differs; the newest night decides what belongs together."""
    rows = nights(SPEEDS, SPEEDS, SPEEDS, **HOST, status="ok")
    rows.loc[rows["run_id"] == "n1", "driver"] = "d0"
    rows.loc[rows["run_id"] == "n1", "corpus_digest"] = "c0"
    found = like_newest(rows)
    assert set(found.rows["run_id"]) == {"n2", "n3"}
    assert found.others == {("n1", "driver, corpus_digest"): 6}


def test_a_model_that_was_not_measured_tonight_keeps_its_own_host():
    """A newer driver of one model says nothing of another that was last measured under the old one."""
    rows = nights(SPEEDS, SPEEDS, **HOST, status="ok")
    rows.loc[rows["run_id"] == "n1", "model"] = "old"
    rows.loc[rows["run_id"] == "n2", "driver"] = "d2"
    assert len(like_newest(rows).rows) == len(rows)


def test_failed_rows_stay_with_the_good_ones_of_their_night():
    """Those of a night that stands apart go with it; tonight's always stay."""
    rows = nights(SPEEDS, SPEEDS, SPEEDS, **HOST, status="ok")
    rows.loc[rows["run_id"] == "n1", "driver"] = "d0"
    rows.loc[(rows["k"] == 8), ["status", "driver"]] = ["failed", None]
    found = like_newest(rows).rows
    assert found[found["status"] == "failed"]["run_id"].value_counts().to_dict() == {"n2": 2, "n3": 2}


def test_each_cell_is_compared_with_its_newest_comparable_night():
    """Cells that the night before lacks are compared with the one before it; the rest says why not."""
    rows = nights(SPEEDS, SPEEDS, SPEEDS, **HOST, status="ok")
    rows = rows[~((rows["run_id"] == "n2") & (rows["arm"] == "van"))].reset_index(drop=True)
    rows = rows[~((rows["run_id"] != "n3") & (rows["k"] == 8))].reset_index(drop=True)
    found = compared(rows, like_newest(rows).rows, "n3")
    cells = [(base, [cell.key[2:] for cell in one.cells]) for base, one in found.with_run]
    assert cells == [("n2", [("kpad", 4)]), ("n1", [("van", 0)])]
    assert found.without == {"not measured before": ["m c kpad@8"]}


def test_what_is_not_comparable_says_what_differs():
    """The newest earlier trial of the cell, and every column in which it differs."""
    rows = nights(SPEEDS, SPEEDS, **HOST, status="ok")
    rows.loc[rows["run_id"] == "n1", "driver"] = "d0"
    found = compared(rows, like_newest(rows).rows, "n2")
    assert found.with_run == []
    assert list(found.without) == ["last measured in n1 with another driver (d0, now d1)"]


# --- the page


def test_a_section_has_an_end():
    """A page stays one page: long lists say how much more there is and where."""
    night = a_summary(not_ok=[f"cell {n}: failed" for n in range(100)])
    page = night.page()
    assert f"- cell {MOST_LINES - 1}: failed\n- and {100 - MOST_LINES} more: summary.json has all" in page
    assert len(night.record()["not_ok"]) == 100


def test_durations_are_readable():
    """Seconds, minutes, hours."""
    assert [span(s) for s in (0, 119, 120, 7199, 7200, 36000)] == [
        "0 s", "119 s", "2 min", "2 h 00 min", "2 h 00 min", "10 h 00 min",
    ]  # fmt: skip


def a_summary(**changes):
    from datetime import UTC, datetime

    return Summary("s", "h", datetime(2026, 12, 1, tzinfo=UTC), 36000.0, **changes)


# --- the script and the units

SCRIPTS = Path(__file__).resolve().parent.parent / "scripts"


def test_the_script_of_a_timer_starts_a_night(tmp_path: Path) -> None:
    """From any folder, with the shipped configuration unless another is named; at most 20 lines."""
    script = SCRIPTS / "nightly.sh"
    told = tmp_path / "kpad-bench"
    told.write_text('#!/bin/sh\necho "$TZ" "$@"\n')
    told.chmod(0o755)
    copy = tmp_path / "project" / "scripts" / script.name
    copy.parent.mkdir(parents=True)
    shutil.copy(script, copy)
    env = {"PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run(
        [copy, "--budget", "1h"], env=env, cwd="/", capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout == "UTC nightly --config nightly-dgx-b200 --progress plain --budget 1h\n"
    assert len(script.read_text().splitlines()) <= 20


def test_the_units_name_what_is_there() -> None:
    """The service starts that script, the timer's time is UTC, and Ctrl-C is how a night is stopped."""
    units = {path.suffix: path.read_text() for path in (SCRIPTS / "systemd").iterdir()}
    assert "ExecStart=/opt/kpad-bench/scripts/nightly.sh --budget" in units[".service"]
    assert "KillSignal=SIGINT\n" in units[".service"]
    assert re.search(r"^OnCalendar=.* UTC$", units[".timer"], re.MULTILINE)
