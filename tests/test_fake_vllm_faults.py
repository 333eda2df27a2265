"""Every scripted fault of the fake vLLM happens as told, and its processes live and die like vLLM's."""

from __future__ import annotations

import http.client
import json
import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from fake_vllm.client import (
    CHAT,
    DEADLINE_S,
    Boots,
    Connection,
    Fake,
    group_members,
    question,
    spec,
    wait_for,
)


@pytest.fixture
def boot() -> Iterator[Boots]:
    """Fakes that are gone at the end of the test."""
    with Boots() as boots:
        yield boots


def tokens_of(events: list[Any]) -> int:
    """The highest usage of a stream."""
    return max(int(event["usage"]["completion_tokens"]) for event in events if "usage" in event)


def is_alive(fake: Fake, pid: int) -> bool:
    return pid in group_members(fake.process.pid)


def test_sigterm_ends_both_processes(boot: Boots) -> None:
    """Two processes of one group; SIGTERM to the API ends both with status 0 and leaves the socket file."""
    fake = boot()
    assert len(group_members(fake.process.pid)) == 2
    fake.process.terminate()
    assert fake.process.wait(DEADLINE_S) == 0
    assert group_members(fake.process.pid) == {}
    assert os.path.exists(str(fake.address))
    stale = boot.start()
    assert stale.process.wait(DEADLINE_S) == 1
    assert "[Errno 98] Address already in use" in stale.log()


def test_the_core_outlives_a_killed_api_and_ignores_sigterm(boot: Boots) -> None:
    """After SIGKILL of the API the core lives, SIGTERM does nothing to it, SIGKILL of the group ends it."""
    fake = boot()
    core = fake.core_pid()
    fake.process.kill()
    fake.process.wait(DEADLINE_S)
    os.kill(core, signal.SIGTERM)
    assert ignores_sigterm(core)
    assert group_members(fake.process.pid)[core].startswith("VLLM::EngineCore ")
    fake.kill_group()
    assert group_members(fake.process.pid) == {}


def ignores_sigterm(pid: int) -> bool:
    """As the kernel says."""
    with open(f"/proc/{pid}/status") as file:
        ignored = next(line.split()[1] for line in file if line.startswith("SigIgn:"))
    return bool(int(ignored, 16) & 1 << (signal.SIGTERM - 1))


def test_a_killed_core_is_a_dead_engine(boot: Boots) -> None:
    """A stranger's SIGKILL of the core turns health to 503 and requests to 500; version still answers."""
    fake = boot()
    os.kill(fake.core_pid(), signal.SIGKILL)
    wait_for("503", lambda: fake.ask("/health")[0] == 503)
    assert fake.ask("/version")[0] == 200
    code, text = fake.ask(CHAT, question("hi", 4))
    assert code == 500
    assert "EngineCore encountered an issue" in text


def test_the_core_dies_at_a_given_request(boot: Boots) -> None:
    """Open streams end with an error event and [DONE]."""
    fake = boot(script={"die_core_after_requests": 2})
    assert tokens_of(fake.stream("one")[:-1]) > 1
    error, done = fake.stream("two")[-2:]
    assert error["error"]["message"].startswith("EngineCore encountered an issue")
    assert (error["error"]["code"], done) == (500, "[DONE]")
    assert fake.ask("/health")[0] == 503


def test_the_api_dies_at_a_given_request(boot: Boots) -> None:
    """The request is never answered, the core is left behind."""
    fake = boot(script={"die_after_requests": 2})
    fake.stream("one")
    core = fake.core_pid()
    with pytest.raises((http.client.RemoteDisconnected, ConnectionResetError)):
        fake.stream("two")
    assert fake.process.wait(DEADLINE_S) == -signal.SIGKILL
    assert is_alive(fake, core)


def test_the_core_is_lost_without_a_word(boot: Boots) -> None:
    """No token comes from then on, and /health and /version are 200."""
    fake = boot(script={"lose_core_after_requests": 2})
    fake.stream("one")
    core = fake.core_pid()
    for prompt in ("two", "three"):
        connection = Connection(fake.address, 0.3)
        connection.request("POST", CHAT, json.dumps(question(prompt, 40)))
        with pytest.raises(TimeoutError):
            connection.getresponse().read()
        connection.close()
    wait_for("the core is gone", lambda: not is_alive(fake, core))
    assert (fake.ask("/health")[0], fake.ask("/version")[0]) == (200, 200)


def test_it_is_unavailable_from_a_request_on(boot: Boots) -> None:
    """503 for that request, those after it, and /health; /version still answers."""
    fake = boot(script={"unavailable_after_requests": 2})
    fake.stream("one")
    assert fake.ask("/health")[0] == 200
    assert [fake.ask(CHAT, question(prompt, 40))[0] for prompt in ("two", "three")] == [503, 503]
    assert (fake.ask("/health")[0], fake.ask("/version")[0]) == (503, 200)


def test_health_hangs(boot: Boots) -> None:
    """It takes the question and does not answer."""
    fake = boot(script={"health_hang": True})
    with pytest.raises(TimeoutError):
        fake.ask("/health", timeout_s=0.3)
    assert fake.ask("/version")[0] == 200


@pytest.mark.parametrize("key", ["leave_core", "ignore_term"])
def test_teardown_can_be_made_hard(boot: Boots, key: str) -> None:
    """leave_core: only the API obeys SIGTERM. ignore_term: nobody does, and the API logs that it got it."""
    fake = boot(script={key: True})
    core = fake.core_pid()
    fake.process.terminate()
    if key == "leave_core":
        assert fake.process.wait(DEADLINE_S) == 0
    else:
        wait_for("a line of log", lambda: "[shutdown]" in fake.log())
        assert fake.ask("/health")[0] == 200
    assert is_alive(fake, core)


def test_a_boot_can_fail_with_a_log_and_a_status(boot: Boots) -> None:
    """The text is in the log, the status is the process's, nothing is left."""
    fake = boot.start(script={"boot_fail": {"log": "torch.OutOfMemoryError: invented", "rc": 3}})
    assert fake.process.wait(DEADLINE_S) == 3
    assert "torch.OutOfMemoryError: invented\n" in fake.log()
    assert group_members(fake.process.pid) == {}


def test_a_boot_can_hang(boot: Boots) -> None:
    """It logs on, never answers, and still obeys SIGTERM with its core."""
    fake = boot.start(script={"boot_hang": True})
    wait_for("two lines", lambda: fake.log().count("No available shared memory") > 1)
    with pytest.raises(ConnectionRefusedError):
        fake.ask("/health")
    fake.process.terminate()
    assert fake.process.wait(DEADLINE_S) == 0
    assert group_members(fake.process.pid) == {}


def test_rules_pick_by_argv_k_and_nth_boot(boot: Boots) -> None:
    """The nth boot is counted among those that fit the rest of the condition; later rules win."""
    rules = [
        {"if": {"argv": '"num_speculative_tokens": 8'}, "then": {"tokens": 3}},
        {"if": {"k": 8, "boot": 2}, "then": {"tokens": 5}},
        {"if": {"k": None}, "then": {"tokens": 7}},
    ]
    script = {"default": {"tokens": 2}, "rules": rules}
    seen = []
    for flags in (spec(8), [], spec(4), spec(8), spec(8)):
        fake = boot(*flags, script=script)
        seen.append(tokens_of(fake.stream("a")[:-1]))
        fake.kill_group()
        fake.forget_socket()
    assert seen == [3, 7, 2, 5, 3]


def test_an_unknown_key_is_refused(boot: Boots) -> None:
    """A typing error in a script must not look like a fault that was survived."""
    fake = boot.start(script={"stal_after_tokens": 1})
    assert fake.process.wait(DEADLINE_S) == 1
    assert "stal_after_tokens" in fake.log()


def test_streams_can_fail_or_break_off(boot: Boots) -> None:
    """An error event after some tokens, or a cut connection; only the requests that were named."""
    fake = boot(script={"stream_error_after_tokens": 3, "fault_requests": [2]})
    assert "error" not in fake.stream("one")[-2]
    events = fake.stream("one")
    assert (events[-2]["error"]["code"], events[-1], tokens_of(events[:-2])) == (500, "[DONE]", 3)
    fake.kill_group()
    fake.forget_socket()
    fake = boot(script={"drop_connection_after_tokens": 3})
    with pytest.raises(http.client.IncompleteRead) as cut:
        fake.stream("one")
    assert b'"completion_tokens":3,' in cut.value.partial
    assert b'"completion_tokens":4,' not in cut.value.partial


def test_a_stream_can_stall_and_its_client_go_away(boot: Boots) -> None:
    """Nothing comes after the told tokens; the server goes on serving others."""
    fake = boot(script={"stall_after_tokens": 2, "fault_requests": [1]})
    connection = Connection(fake.address)
    connection.request("POST", CHAT, json.dumps(question("one", 40)))
    response = connection.getresponse()
    while b'"completion_tokens":2,' not in response.readline():
        pass
    assert response.readline() == b"\n"
    assert tokens_of(fake.stream("two")[:-1]) > 2
    connection.sock.settimeout(0.001)
    with pytest.raises(TimeoutError):
        response.readline()
    response.close()
    connection.close()
    assert tokens_of(fake.stream("three")[:-1]) > 2


def test_an_abandoned_request_leaves_the_engine(boot: Boots) -> None:
    """A client that hangs up aborts its request, as in vLLM."""
    fake = boot(script={"step_s": 0.005})
    connection = Connection(fake.address)
    connection.request("POST", CHAT, json.dumps(question("one", 2000) | {"ignore_eos": True}))
    connection.getresponse().close()
    connection.close()
    wait_for("abort", lambda: 'finished_reason="abort",model_name="kpad-b1"} 1.0' in fake.ask("/metrics")[1])
    assert fake.counters()["vllm:num_requests_running"] == 0


@pytest.mark.parametrize(
    ("script", "n_usages"), [({"no_usage": True}, 0), ({"no_continuous_usage": True}, 1)]
)
def test_usage_can_be_left_out(boot: Boots, script: dict[str, Any], n_usages: int) -> None:
    """All of it, or all but the final chunk."""
    events = boot(script=script).stream("one")
    assert sum("usage" in event for event in events[:-1]) == n_usages


def test_chunks_can_be_sized_and_hold_reasoning(boot: Boots) -> None:
    """The sizes are cycled, the last chunk takes the rest; the text is in ``reasoning`` alone."""
    fake = boot(script={"tokens_per_chunk": [1, 2, 5], "tokens": 11, "reasoning": True})
    chunks = fake.stream("one")[1:-2]
    assert [chunk["usage"]["completion_tokens"] for chunk in chunks] == [1, 3, 8, 9, 11]
    assert all(set(chunk["choices"][0]["delta"]) == {"reasoning"} for chunk in chunks)


def test_all_requests_can_be_refused(boot: Boots) -> None:
    """With the told text and status 400."""
    code, text = boot(script={"error_400_all": "no template"}).ask(CHAT, question("one", 4))
    assert (code, json.loads(text)["error"]["message"]) == (400, "no template")


def test_metrics_can_lie(boot: Boots) -> None:
    """Missing, cut in the middle, running backwards, or off by some tokens in every window."""

    def tokens(fake: Fake) -> float:
        return fake.counters()["vllm:generation_tokens_total"]

    for script in ({"no_metrics": True}, {"cut_metrics": True}, {"metrics_backwards": True}):
        fake = boot(script=script)
        if "no_metrics" in script:
            assert fake.ask("/metrics")[0] == 404
        elif "cut_metrics" in script:
            assert fake.ask("/metrics")[1].endswith('vllm:generation_tokens_total{engine="0",')
        else:
            assert tokens(fake) > tokens(fake)
        fake.kill_group()
        fake.forget_socket()
    fake = boot(script={"counter_off_by": 5, "tokens": 10})
    before = tokens(fake)
    fake.stream("one")
    assert tokens(fake) - before == 15


def test_the_server_can_lie_about_itself(boot: Boots) -> None:
    """Another K in status, log and series; another name; an ill health; no plugin."""
    script = {"k_ignored": True, "wrong_model_name": "other", "health_status": 503}
    fake = boot(*spec(8), script=script)
    assert fake.status()[0]["k"] == 4
    assert "num_spec_tokens=4)" in fake.log()
    assert json.loads(fake.ask("/v1/models")[1])["data"][0]["id"] == "other"
    assert fake.ask("/health")[0] == 503
    fake.kill_group()
    fake.forget_socket()
    fake = boot(script={"no_plugin": True})
    assert fake.ask("/collective_rpc", {"method": "kpad_status"})[0] == 500


def test_requests_share_steps(boot: Boots) -> None:
    """With slow steps, requests that are open together are served together, as many as max_num_seqs."""
    fake = boot("--max-num-seqs", "3", script={"step_s": 0.01, "tokens": 8})
    with ThreadPoolExecutor(6) as pool:
        list(pool.map(fake.stream, [f"q{n}" for n in range(6)]))
    (status,) = fake.status()
    counters = status["counters"]
    assert counters["decode_steps"] < counters["decode_requests"] <= 3 * counters["decode_steps"]
