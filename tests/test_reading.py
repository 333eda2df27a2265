"""What is asked of a server after a pass, on one that answers from a list."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from traces import four, passed, request

from kpad_bench import reading


class Endpoint:
    """Counts up to the last of ``totals``; tokenises until ``n_answers`` are given."""

    def __init__(self, totals: list[int], n_answers: int = 0) -> None:
        self.totals, self.n_answers = totals, n_answers
        self.texts: list[str] = []

    def metrics(self) -> str:
        total = self.totals.pop(0) if len(self.totals) > 1 else self.totals[0]
        return f"vllm:generation_tokens_total {total}\n"

    def worker_call(self, _method: str) -> None:
        return None

    def token_ids(self, text: str, _timeout_s: float) -> list[int] | None:
        self.texts.append(text)
        return None if len(self.texts) > self.n_answers else [1, 2] * 200


def server(endpoint: Endpoint) -> Any:
    return SimpleNamespace(endpoint=endpoint, cpu_seconds=lambda: None)


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "TRY_S", 0.0)


@pytest.mark.parametrize(("filler_tokens", "last"), [(0, 46), (9, 55)])
def test_counters_are_read_when_the_last_token_is_booked(filler_tokens: int, last: int) -> None:
    """46 tokens of the pass and what its fillers brought; a number before that would be too small."""
    trace = four()
    trace.fillers = [request(8, {9: filler_tokens})] if filler_tokens else []
    endpoint = Endpoint([100, 130, 146, 155, 170])
    before = reading.read(server(endpoint))
    deltas, _ = reading.deltas_of(before, reading.settled(server(endpoint), before, trace))
    assert deltas.generation_tokens == last


def test_counters_that_never_get_there_are_read_in_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """The wait is bounded, and the reading is what there is."""
    monkeypatch.setattr(reading, "SETTLE_S", 0.0)
    endpoint = Endpoint([100, 120])
    before = reading.read(server(endpoint))
    deltas, _ = reading.deltas_of(before, reading.settled(server(endpoint), before, four()))
    assert deltas.generation_tokens == 20


def long(text: str) -> Any:
    made = request(0, {1: 300})
    made.text = text
    return made


def test_ends_of_long_answers_are_tokenised() -> None:
    """Not those of short or failed ones; the cut edge is left out."""
    endpoint = Endpoint([0], n_answers=9)
    trace = passed(long("a"), request(0, {1: 255}), request(0, {1: 300}, error="cut: reset"), long("b"))
    ends = reading.text_ends(server(endpoint), trace)
    assert endpoint.texts == ["a", "b"]
    assert {index: len(ids) for index, ids in ends.items()} == {0: 392, 3: 392}


def test_one_end_that_is_not_told_stops_the_asking() -> None:
    """The share is unknown then, and a server that does not answer is not asked for each of 256."""
    endpoint = Endpoint([0], n_answers=1)
    ends = reading.text_ends(server(endpoint), passed(*(long(name) for name in "abcd")))
    assert (endpoint.texts, list(ends)) == (["a", "b"], [0])


def test_the_time_for_tokenising_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """When it is up nothing is asked any more."""
    monkeypatch.setattr(reading, "ENDS_S", 0.0)
    endpoint = Endpoint([0], n_answers=9)
    assert reading.text_ends(server(endpoint), passed(long("a"))) == {}
    assert endpoint.texts == []
