"""The client benchmark without vLLM: nothing about time is asserted, everything about counts."""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from fake_vllm.fast import SIZES, pieces, sizes

SCRIPT = Path(__file__).parent.parent / "scripts" / "bench_client.py"
FAST = Path(__file__).parent / "fake_vllm" / "fast.py"


def test_bench_client_ends_with_one_json_line():
    """A short run of ours alone: every token is counted, and the line holds what scripts read."""
    argv = [
        sys.executable,
        str(SCRIPT),
        "--quick",
        "--rounds",
        "1",
        "--requests",
        "40",
        "--without-vllm",
        "--json",
    ]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    *table, line = done.stdout.splitlines()
    found = json.loads(line)
    assert found["tokens_exact"] is True
    assert found["cpu_per_event_ratio_vllm_over_ours"] is None
    assert 0 <= found["reissue_gap_p50_ms"] <= found["reissue_gap_p99_ms"]
    assert "vLLM is not installed, or not wanted: nothing to compare with" in table
    assert any("total tokens exact" in text for text in table)


@pytest.mark.parametrize("n_tokens", [1, 2, 3, 7, 16, 100])
@pytest.mark.parametrize("has_usage", [False, True])
def test_the_fast_servers_truth_adds_up(n_tokens, has_usage):
    """A piece per step, sized in turn; usage counts to the end; the role comes with the first token."""
    assert sum(sizes(n_tokens)) == n_tokens
    assert all(size == SIZES[i % len(SIZES)] for i, size in enumerate(sizes(n_tokens)[:-1]))
    written = pieces(n_tokens, has_usage)
    assert len(written) == len(sizes(n_tokens)) + 1
    assert written[0].count(b'"role":"assistant"') == 1
    assert written[-1].endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")
    total = b'"completion_tokens":%d' % n_tokens
    assert total in written[-1]
    assert (total in written[-2]) == has_usage
    assert b'"finish_reason":"stop"' in written[-2]


def test_the_fast_server_tells_what_it_did():
    """Every answer since the step was set, and what it was asked for; it has no other page."""
    server = subprocess.Popen([sys.executable, str(FAST)], stdout=subprocess.PIPE, text=True)
    try:
        url = f"http://127.0.0.1:{json.loads(server.stdout.readline())['port']}"

        def ask(path, body=None):
            data = None if body is None else json.dumps(body).encode()
            with urllib.request.urlopen(url + path, data, timeout=20) as answer:
                return answer.read()

        ask("/step", {"step_ns": 1000})
        prompt = {"role": "user", "content": "request 3: answer 9 tokens"}
        answer = ask("/v1/chat/completions", {"messages": [prompt], "stream_options": {}})
        assert answer.endswith(b"data: [DONE]\n\n")
        (one,) = json.loads(ask("/truth"))["requests"]
        assert (one["number"], one["n_tokens"], one["n_chunks"]) == (3, 9, len(sizes(9)))
        assert one["arrived_ns"] <= one["first_ns"] <= one["last_ns"] <= one["end_ns"]
        ask("/step", {"step_ns": 1000})
        assert json.loads(ask("/truth")) == {"requests": [], "late_ns": []}
        with pytest.raises(urllib.error.HTTPError, match="404"):
            ask("/metrics")
    finally:
        server.kill()
        server.communicate()
