"""The fake vLLM is itself tested: other tests believe what it serves and counts."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from fake_vllm.client import CHAT, COMPLETIONS, Boots, question, spec, text_of


@pytest.fixture
def boot() -> Iterator[Boots]:
    """Fakes that are gone at the end of the test."""
    with Boots() as boots:
        yield boots


@pytest.mark.parametrize("on_tcp", [False, True], ids=["uds", "tcp"])
def test_it_boots_and_names_itself(boot: Boots, on_tcp: bool) -> None:
    """Over either kind of address it answers health, version and the served name, and logs its K."""
    fake = boot(*spec(8), "--max-model-len", "300", on_tcp=on_tcp)
    assert fake.ask("/health") == (200, "")
    assert json.loads(fake.ask("/version")[1]) == {"version": "0.32.0"}
    (card,) = json.loads(fake.ask("/v1/models")[1])["data"]
    assert (card["id"], card["root"], card["max_model_len"]) == ("kpad-b1", "/models/tiny", 300)
    assert "num_spec_tokens=8)" in fake.log()


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_a_stream_has_vllms_shape(boot: Boots, path: str) -> None:
    """Role chunk without a token, cumulative usage, finish reason, usage chunk without choices, [DONE]."""
    events = boot(*spec(4)).stream("tell me a story", 40, path)
    assert events.pop() == "[DONE]"
    last = events.pop()
    if path == CHAT:
        role = events.pop(0)
        assert role["choices"][0]["delta"] == {"role": "assistant", "content": ""}
        assert role["usage"]["completion_tokens"] == 0
    counts = [event["usage"]["completion_tokens"] for event in events]
    assert counts[0] == 1
    assert counts == sorted(set(counts))
    assert len(counts) < counts[-1]  # some chunks hold several tokens
    assert last["choices"] == []
    assert last["usage"]["completion_tokens"] == counts[-1]
    reasons = [event["choices"][0]["finish_reason"] for event in events]
    assert reasons[:-1] == [None] * (len(events) - 1)
    assert reasons[-1] in ("stop", "length")


def test_usage_comes_only_when_asked_for(boot: Boots) -> None:
    """Without stream options there is no usage; with include_usage alone only at the end."""
    fake = boot()
    assert not any("usage" in event for event in fake.stream("hello", 4, stream_options=None)[:-1])
    events = fake.stream("hello", 4, stream_options={"include_usage": True})[:-1]
    assert ["usage" in event for event in events] == [False] * (len(events) - 1) + [True]


def test_all_arms_answer_the_same_and_count_what_they_did(boot: Boots) -> None:
    """G is the sum of usage, F the requests, (G - F) / P tokens per decode step; only pads are uniform."""
    texts, lengths = [], []
    for flags, pads in (([], False), (spec(8), False), (spec(8), True)):
        fake = boot(*flags, pads=pads)
        with ThreadPoolExecutor(4) as pool:
            streams = list(pool.map(fake.stream, [f"question {n} of mine" for n in range(8)]))
        texts.append([text_of(events) for events in streams])
        n_tokens = sum(events[-2]["usage"]["completion_tokens"] for events in streams)
        n_later_chunks = sum(len(events) - 4 for events in streams)  # less role, first token, usage, DONE
        seen, (status,) = fake.counters(), fake.status()
        plugin = status["counters"]
        assert seen["vllm:generation_tokens_total"] == n_tokens
        assert seen["vllm:time_to_first_token_seconds_count"] == 8
        n_decodes = seen["vllm:inter_token_latency_seconds_count"]
        assert n_decodes == n_later_chunks >= plugin["decode_requests"]
        assert seen["vllm:prompt_tokens_total"] == sum(e[-2]["usage"]["prompt_tokens"] for e in streams)
        lengths.append((n_tokens - 8) / n_decodes)
        assert plugin["uniform_decode_steps"] == (plugin["decode_steps"] if pads or not flags else 0)
        assert plugin["steps"] == plugin["mode_none"] == seen["vllm:iteration_tokens_total_count"]
        if flags:
            drafted = seen["vllm:spec_decode_num_draft_tokens_total"]
            assert drafted == plugin["real_draft_tokens"] + plugin["pad_tokens"]
            assert (plugin["pad_tokens"] > 0) == pads
            assert (drafted == 8 * n_decodes) == pads
        fake.kill_group()
        fake.forget_socket()
    assert texts[0] == texts[1] == texts[2]
    assert lengths[0] == 1 < lengths[1] == lengths[2]


def test_metrics_look_like_the_prometheus_clients(boot: Boots) -> None:
    """Counters have _created twins, big values an exponent, and every position of K its series."""
    text = boot(*spec(4), script={"counter_off_by": 1_000_000}).ask("/metrics")[1]
    assert 'vllm:generation_tokens_total{engine="0",model_name="kpad-b1"} 1e+06\n' in text
    assert re.search(r'vllm:generation_tokens_created\{engine="0",model_name="kpad-b1"\} 1\.\d+e\+09\n', text)
    assert len(re.findall(r'_per_pos_total\{engine="0",model_name="kpad-b1",position="\d"\} 0\.0', text)) == 4
    assert re.search(r'vllm:cache_config_info\{.*num_gpu_blocks="\d+"', text)


def test_the_plugin_answers_and_empties(boot: Boots) -> None:
    """The marker comes with K; the suffix cache learns each answer, and emptying it says how many it held."""
    fake = boot(*spec(6), pads=True, plugins="other,kpad", script={"rank_count": 2})
    fake.stream("one")
    first, second = fake.status()
    assert (first["marker"], first["k"], first["pads"], first["cached_requests"]) == ("kpad/1", 6, True, 1)
    assert (first["rank"], first["is_output_rank"]) == (0, True)
    assert (second["rank"], second["is_output_rank"]) == (1, False)
    emptied = json.loads(fake.ask("/collective_rpc", {"method": "kpad_empty_cache"})[1])["results"]
    assert [(rank["emptied"], rank["cached_requests"]) for rank in emptied] == [(True, 1)] * 2
    assert fake.status()[0]["cached_requests"] == 0
    assert fake.ask("/collective_rpc", {"method": "kpad_nonsense"})[0] == 500


@pytest.mark.parametrize("plugins", ["", " kpad", "a, kpad", "kpadx"])
def test_a_misspelt_plugin_is_not_loaded(boot: Boots, plugins: str) -> None:
    """vLLM compares the entries of VLLM_PLUGINS as they are."""
    assert boot(plugins=plugins).ask("/collective_rpc", {"method": "kpad_status"})[0] == 500


def test_rpc_needs_the_development_mode(boot: Boots) -> None:
    """Without VLLM_SERVER_DEV_MODE=1 neither the rpc nor the cache reset has a route."""
    fake = boot(VLLM_SERVER_DEV_MODE="0")
    assert fake.ask("/collective_rpc", {"method": "kpad_status"})[0] == 404
    assert fake.ask("/reset_prefix_cache", {})[0] == 404


def test_prefix_hits_are_counted_until_the_reset(boot: Boots) -> None:
    """A repeated long prompt hits whole blocks, and none after the prefix cache was emptied."""
    fake, prompt = boot(), "log line " * 150
    hits = []
    for is_reset in (False, False, True):
        if is_reset:
            assert fake.ask("/reset_prefix_cache", {})[0] == 200
        fake.stream(prompt)
        hits.append(fake.counters()["vllm:prefix_cache_hits_total"])
    assert hits == [0, 256, 256]


@pytest.mark.parametrize(
    ("change", "status", "says"),
    [
        ({"model": "kpad-b2"}, 404, "The model `kpad-b2` does not exist."),
        ({"max_tokens": 0}, 400, "max_tokens must be at least 1"),
        ({"messages": []}, 400, "prompt is empty"),
        ({"messages": [{"role": "user", "content": "a " * 99}]}, 400, "maximum context length is 64 tokens"),
        ({"min_p": 0.1}, 400, "not yet supported with speculative decoding"),
    ],
)
def test_bad_requests_are_refused_as_vllm_does(
    boot: Boots, change: dict[str, Any], status: int, says: str
) -> None:
    """The status, and the text in vLLM's error shape."""
    fake = boot("--max-model-len", "64", *spec(4))
    code, text = fake.ask(CHAT, question("hi", 4) | change)
    error = json.loads(text)["error"]
    assert (code, error["code"]) == (status, status)
    assert says in error["message"]


def test_an_answer_in_one_piece_tells_ids_and_log_probabilities(boot: Boots) -> None:
    """Asked for both: an id per token, each the likeliest one; a scripted wrong token is the second best."""
    asked = question("hi", 12) | {"return_token_ids": True, "logprobs": True, "stream": False}
    right = boot(*spec(4))
    wrong = boot(*spec(4), script={"wrong_token_at": 2, "is_own_choice": False}, on_tcp=True)
    (ours,), (theirs,) = (json.loads(fake.ask(CHAT, asked)[1])["choices"] for fake in (right, wrong))
    assert ours["token_ids"][:2] == theirs["token_ids"][:2]
    assert ours["token_ids"][2] != theirs["token_ids"][2]
    for choice, is_right in ((ours, True), (theirs, False)):
        step = choice["logprobs"]["content"][2]
        best = max(step["top_logprobs"], key=lambda entry: entry["logprob"])
        assert (best["token"] == step["token"]) is is_right
        assert step["token"] == f"token_id:{choice['token_ids'][2]}"
    bare = json.loads(right.ask(CHAT, question("hi", 12) | {"stream": False})[1])["choices"][0]
    assert (bare.get("token_ids"), bare["logprobs"]) == (None, None)


def test_an_answer_may_loop_and_be_tokenised(boot: Boots) -> None:
    """Scripted answers repeat their first words, and a word has the same id wherever it stands."""
    fake = boot(script={"loop_words": 2, "tokens": 5})
    text = text_of(fake.stream("tell me a story"))
    words = text.split()
    assert len(words) == 5
    assert words == words[:2] * 2 + words[:1]
    ids = json.loads(fake.ask("/tokenize", {"prompt": text, "add_special_tokens": False})[1])["tokens"]
    assert ids == ids[:2] * 2 + ids[:1]
