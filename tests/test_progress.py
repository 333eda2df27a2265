"""What people see while a sweep runs: plain lines, a live view, or nothing."""

from __future__ import annotations

import io
import re
import sys
from dataclasses import replace

import pytest
from rich.console import Console

from kpad_bench import progress as module
from kpad_bench.cells import Cell
from kpad_bench.config import Load
from kpad_bench.plan import Boot, Trial
from kpad_bench.progress import Estimate, PlainProgress, Progress, RichProgress, make_progress, outcome

LOAD = Load(concurrency=1, n_prompts=8, max_tokens=4, temperature=0)
CELL = Cell("tiny.mbpp.kpad@8.x", "tiny", "mbpp", "d", "kpad", 8, LOAD)
TRIAL = Trial("t1", CELL, 1, 1, 0)
BOOT = Boot("b1", "tiny", "kpad", 8, (), (), (TRIAL,))
OK = {"status": "ok", "output_tok_per_s": 123.44, "acceptance_length": 3.456}
FAILED = {"status": "failed", "reason": "kv_none", "detail": "No available memory (log: x.log)"}


@pytest.fixture
def clock(monkeypatch):
    """A clock that moves only when told to."""

    class Clock:
        now = 1000.0

    monkeypatch.setattr(module.time, "monotonic", lambda: Clock.now)
    return Clock


def a_run(view, clock) -> None:
    """Three trials, one of them done before: one ok after a minute, one failed after another."""
    with view:
        view.start(3, {"tiny": 2}, "results/run")
        view.booting(BOOT)
        view.warming(TRIAL)
        view.passing(TRIAL)
        view.tick(None, 0, 8)
        view.tick(98.7, 3, 8)
        clock.now += 60
        view.ended(TRIAL, OK)
        view.note("a note")
        clock.now += 60
        view.ended(TRIAL, FAILED)


def test_plain_lines_say_what_happened_in_order(clock):
    """One line an event, to the stream given, with trials done and the time left; ticks say nothing."""
    stream = io.StringIO()
    a_run(PlainProgress(stream), clock)
    assert [" ".join(line.split()) for line in stream.getvalue().splitlines()] == [
        "3 trials, 1 of them done before; rows go to results/run",
        "boot tiny kpad@8",
        "[2/3] tiny mbpp kpad@8 ok 123.4 tok/s, 3.46 tokens per step 60 s left",
        "a note",
        "[3/3] tiny mbpp kpad@8 failed kv_none: No available memory (log: x.log) 0 s left",
    ]


def test_a_run_of_adaptive_rounds_says_the_most_and_counts_what_is_left(clock):
    """Fewer trials may do: the count and the time left follow."""
    stream = io.StringIO()
    view = PlainProgress(stream)
    view.start(40, {"tiny": 39}, "results/run", is_most=True)
    clock.now += 60
    view.ended(TRIAL, OK)
    view.revise(4, {"tiny": 2})
    clock.now += 60
    view.ended(TRIAL, OK)
    lines = stream.getvalue().splitlines()
    assert lines[0] == "up to 40 trials, 1 of them done before; rows go to results/run"
    assert lines[1].startswith("[2/40]")
    assert lines[2].startswith("[3/4]")
    assert lines[2].endswith("60 s left")


def test_plain_lines_go_to_stderr(capsys, clock):
    """stdout is for results alone."""
    a_run(PlainProgress(), clock)
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "rows go to results/run" in captured.err


def test_none_says_nothing(capsys, clock):
    """--progress none is silent on both streams."""
    a_run(make_progress("none"), clock)
    assert capsys.readouterr() == ("", "")


def live(width: int = 120) -> RichProgress:
    """The live view on a terminal in memory; it is drawn when asked for."""
    view = RichProgress(Console(file=io.StringIO(), force_terminal=True, width=width, color_system=None))
    view.live.auto_refresh = False
    return view


def shown(view: RichProgress) -> str:
    """The live line as it stands."""
    lines = view.console.render_lines(view.live.get_renderable(), pad=False)
    return "\n".join("".join(segment.text for segment in line) for line in lines)


def test_the_live_line_has_cells_done_the_current_cell_speed_and_time_left(clock):
    """All four fields, and what the server is at before there is a speed."""
    view = live()
    with view:
        view.start(4, {"tiny": 3}, "results/run")
        view.booting(BOOT)
        assert shown(view) == "1/4 trials  booting tiny kpad@8"
        view.stage("capturing graphs 40 %")
        assert shown(view) == "1/4 trials  booting tiny kpad@8  capturing graphs 40 %"
        view.warming(TRIAL)
        assert shown(view) == "1/4 trials  warming up kpad@8 on mbpp"
        view.passing(TRIAL)
        assert shown(view) == "1/4 trials  tiny mbpp kpad@8"
        view.tick(None, 0, 8)
        assert shown(view) == "1/4 trials  tiny mbpp kpad@8  0/8 requests"
        view.tick(98.7, 3, 8)
        assert shown(view) == "1/4 trials  tiny mbpp kpad@8  99 tok/s  3/8 requests"
        view.tick(98.7, 3, 8, 2)
        assert shown(view) == "1/4 trials  tiny mbpp kpad@8  99 tok/s  3/8 requests  2 failed"
        clock.now += 300
        view.ended(TRIAL, OK)
        view.passing(TRIAL)
        assert shown(view) == "2/4 trials  tiny mbpp kpad@8  10 min left"


def test_ended_trials_stand_above_the_live_line(clock):
    """Their lines are printed whole, markup and all, and stay."""
    view = live()
    a_run(view, clock)
    text = view.console.file.getvalue()
    assert "rows go to results/run" in text
    assert "123.4 tok/s, 3.46 tokens per step" in text
    view = live()
    with view:
        view.note("[bold]a [path] in brackets")
    assert "[bold]a [path] in brackets" in view.console.file.getvalue()


def test_a_narrow_terminal_cuts_the_live_line(clock):
    """One line whatever its width."""
    view = live(width=30)
    with view:
        view.start(4, {"tiny": 3}, "results/run")
        view.passing(TRIAL)
        view.tick(98.7, 3, 8)
        assert "\n" not in shown(view)
        assert len(shown(view)) <= 30


def test_the_live_view_leaves_the_terminal_when_a_sweep_is_interrupted(clock):
    """Leaving the context ends it, whatever the reason."""
    view = live()
    with pytest.raises(KeyboardInterrupt), view:
        raise KeyboardInterrupt
    assert not view.live.is_started


@pytest.mark.parametrize(
    ("is_terminal", "term", "kind"),
    [
        (True, "xterm", RichProgress),
        (True, "dumb", PlainProgress),
        (True, "", PlainProgress),
        (False, "xterm", PlainProgress),
    ],
)
def test_auto_is_live_on_a_terminal_and_plain_elsewhere(monkeypatch, is_terminal, term, kind):
    """cron, pipes and terminals that cannot redraw a line get lines."""
    monkeypatch.setenv("TERM", term)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: is_terminal, raising=False)
    with make_progress("auto") as view:
        assert type(view) is kind


def test_a_view_can_be_asked_for():
    """rich, plain and none are themselves wherever stderr goes."""
    for style, kind in (("rich", RichProgress), ("plain", PlainProgress), ("none", Progress)):
        with make_progress(style) as view:
            assert type(view) is kind


@pytest.mark.parametrize(
    ("seconds", "n_ended", "text"),
    [(10, 0, ""), (10, 1, "90 s left"), (13, 1, "117 s left"), (100, 2, "7 min left"), (100, 10, "0 s left")],
)
def test_time_left_is_the_mean_of_this_run_s_trials_times_those_left(clock, seconds, n_ended, text):
    """Trials done in an earlier run took their time then."""
    estimate = Estimate()
    estimate.start(110, {"tiny": 10})
    clock.now += seconds
    for _ in range(n_ended):
        estimate.ended("tiny")
    assert estimate.left() == text


def test_time_left_counts_from_the_start_of_the_run(clock):
    """What happened between making the view and starting the run is no trial's time."""
    estimate = Estimate()
    clock.now += 1000
    estimate.start(2, {"tiny": 2})
    clock.now += 10
    estimate.ended("tiny")
    assert estimate.left() == "10 s left"


def test_time_left_knows_that_models_differ(clock):
    """Each model by what its own trials took; one that none has ended of by the mean of all."""
    estimate = Estimate()
    estimate.start(10, {"small": 3, "large": 3, "new": 1})
    for model, seconds in (("small", 2), ("small", 4), ("large", 30)):
        clock.now += seconds
        estimate.ended(model)
    assert estimate.left() == f"{3 + 2 * 30 + 12} s left"


def test_the_live_line_tells_the_share_of_full_graphs_of_ended_trials(clock):
    """Of the same model, arm and K alone; nothing where none is known."""
    view = live()
    with view:
        view.start(5, {"tiny": 4}, "results/run")
        view.ended(TRIAL, {**OK, "full_share_decode": None})
        view.passing(TRIAL)
        assert "FULL" not in shown(view)
        view.ended(TRIAL, {**OK, "full_share_decode": 1.0})
        view.ended(TRIAL, {**OK, "full_share_decode": 0.9})
        view.passing(TRIAL)
        assert shown(view).startswith("4/5 trials  tiny mbpp kpad@8  FULL 95 %")
        view.passing(replace(TRIAL, cell=replace(CELL, k=4)))
        assert "FULL" not in shown(view)


def test_no_colour_where_none_is_wanted(monkeypatch, clock):
    """NO_COLOR leaves no colour codes, and still one live line."""
    monkeypatch.setenv("NO_COLOR", "1")
    view = RichProgress(Console(file=io.StringIO(), force_terminal=True, width=80))
    a_run(view, clock)
    assert not re.search(r"\x1b\[[0-9;]*[1-9][0-9;]*m", view.console.file.getvalue())


@pytest.mark.parametrize(
    ("row", "text"),
    [
        (OK, "ok          123.4 tok/s, 3.46 tokens per step"),
        ({**OK, "acceptance_length": None}, "ok          123.4 tok/s"),
        (FAILED, "failed  kv_none: No available memory (log: x.log)"),
        ({"status": "invalid", "reason": "no_marker", "detail": "d"}, "invalid no_marker: d"),
    ],
)
def test_the_outcome_of_a_trial_is_one_line(row, text):
    """Its speed, or why it has none."""
    assert outcome(row) == text
