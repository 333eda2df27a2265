"""The server's counters by exact name, and the plugin's by rank."""

from __future__ import annotations

import re

import pytest

from kpad_bench import metrics
from kpad_bench.counters import (
    Deltas,
    LoggedDrafts,
    counter_doubts,
    delta,
    logged_drafts,
    parse_samples,
    snapshot,
)

MODERN = """\
# HELP vllm:generation_tokens_total Number of generation tokens processed.
# TYPE vllm:generation_tokens_total counter
vllm:generation_tokens_total{engine="0",model_name="m"} 1e+06
vllm:generation_tokens_created{engine="0",model_name="m"} 1.796131507408362e+09
vllm:request_generation_tokens_count{engine="0",model_name="m"} 3.0
vllm:time_to_first_token_seconds_count{engine="0",model_name="m"} 10.0
vllm:time_to_first_token_seconds_bucket{engine="0",le="+Inf",model_name="m"} 10.0
vllm:inter_token_latency_seconds_count{engine="0",model_name="m"} 500.0
vllm:request_time_per_output_token_seconds_count{engine="0",model_name="m"} 7.0
vllm:spec_decode_num_accepted_tokens_total{engine="0",model_name="m"} 90.0
vllm:spec_decode_num_accepted_tokens_created{engine="0",model_name="m"} 1.7e+09
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="m",position="0"} 60.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="m",position="1"} 30.0
vllm:prefix_cache_hits_total{engine="0",model_name="m"} 5.0
vllm:external_prefix_cache_hits_total{engine="0",model_name="m"} 77.0
vllm:cache_config_info{block_size="128",engine="0",num_gpu_blocks="182",num_gpu_blocks_override="None"} 1.0
"""


def test_twins_and_cousins_are_never_mixed_in():
    """Accepted tokens are 90: not with the creation time, not with the counts by position."""
    now = snapshot(MODERN)
    assert now.total("accepted_tokens") == 90
    assert now.total("generation_tokens") == 1_000_000
    assert now.total("decode_events") == 500
    assert now.total("prefix_hits") == 5
    assert now.num_gpu_blocks == 182


def test_a_sum_by_prefix_is_what_is_avoided():
    """Of a total of 90, a creation time of 1.7e9 and 60 + 30 by position, 90 were accepted, in any order."""
    stem = "vllm:spec_decode_num_accepted_tokens"
    lines = [
        f"{stem}_total 90",
        f"{stem}_created 1.7e+09",
        f'{stem}_per_pos_total{{position="0"}} 60',
        f'{stem}_per_pos_total{{position="1"}} 30',
        f'{stem}_per_pos_created{{position="0"}} 1.7e+09',
    ]
    for order in (lines, lines[::-1]):
        now = snapshot("\n".join([*order, ""]))
        assert now.total("accepted_tokens") == 90
        assert now.total("accepted_per_position") == 90
        assert now.total("n_drafts") is None


@pytest.mark.parametrize(
    ("text", "value"),
    [("1e+06", 1_000_000), ("1.0005E+06", 1_000_500), ("2.5e-1", 0.25), ("17", 17), ("+3.0", 3), (".5", 0.5)],
)
def test_values_are_read_in_any_notation(text, value):
    """Prometheus clients switch to exponents at a million."""
    assert snapshot(f"vllm:generation_tokens_total {text}\n").total("generation_tokens") == value


GENERATIONS = {
    "newest": (
        ["generation_tokens_total", "inter_token_latency_seconds_count", "prefix_cache_hits_total"],
        ["vllm:gpu_prefix_cache_hits_total{} 9"],
    ),
    "before": (
        ["generation_tokens_total", "time_per_output_token_seconds_count", "gpu_prefix_cache_hits_total"],
        ["vllm:gpu_cache_usage_perc{} 0.5"],
    ),
    "oldest": (
        ["generation_tokens", "time_per_output_token_seconds_count", "gpu_prefix_cache_hits"],
        [
            "vllm:gpu_prefix_cache_hit_rate{} -1.0",
            "vllm:spec_decode_efficiency{} 0.6",
            "vllm:spec_decode_draft_acceptance_rate{} 0.6",
            "vllm:spec_decode_num_emitted_tokens_total{} 106",
        ],
    ),
}


@pytest.mark.parametrize("generation", GENERATIONS)
def test_names_of_all_generations_are_found(generation):
    """The name found is reported; spec counters that a dump lacks are None, not 0."""
    names, others = GENERATIONS[generation]
    lines = [f'vllm:{name}{{model_name="m"}} {i + 1}.0' for i, name in enumerate(names)]
    now = snapshot("\n".join([*lines, *others, ""]))
    assert [now.total(n) for n in ("generation_tokens", "decode_events", "prefix_hits")] == [1, 2, 3]
    assert [now.found[n] for n in ("generation_tokens", "decode_events", "prefix_hits")] == [
        f"vllm:{name}" for name in names
    ]
    assert now.total("n_drafts") is None


def test_two_generations_at_once_are_not_added():
    """A server that shows the old name beside the new one is counted once."""
    text = "vllm:time_per_output_token_seconds_count 8\nvllm:inter_token_latency_seconds_count 9\n"
    assert snapshot(text).total("decode_events") == 9


def test_counts_under_two_names_are_not_subtracted():
    """A dump cut before the newer name still has the older one: the rise is not known then."""
    older, newer = (
        "vllm:time_per_output_token_seconds_count 8\n",
        "vllm:inter_token_latency_seconds_count 90\n",
    )
    assert delta(snapshot(older), snapshot(older + newer)).decode_events is None
    assert delta(snapshot(older + newer), snapshot(older)) == Deltas()


def test_labels_may_hold_anything():
    """Quotes, backslashes, braces, commas and line ends inside a label are part of the label."""
    line = (
        r'a:b{x="1",path="C:\\n \"q\" {,}\n",} +Inf 1700'
        + "\n"
        + r'a:b{path="} 5"} 2.5e3 # {id="7"} 1'
        + "\n"
    )
    samples = list(parse_samples(line))
    assert [(s.name, dict(s.labels), s.value) for s in samples] == [("a:b", {"path": "} 5"}, 2500.0)]
    finite = next(parse_samples(line.replace("+Inf", "3")))
    assert dict(finite.labels) == {"x": "1", "path": 'C:\\n "q" {,}\n'}


def test_nan_and_nonsense_are_skipped():
    """A sample that is no number is as good as missing."""
    text = "vllm:generation_tokens_total NaN\nvllm:prompt_tokens_total what\n{}\n\nvllm:preemptions"
    now = snapshot(text)
    assert now.total("generation_tokens") is None
    assert now.series == {}


def test_engines_are_summed():
    """Each engine has its own series."""
    text = "".join(f'vllm:generation_tokens_total{{engine="{i}"}} {10 + i}\n' for i in range(3))
    blocks = "".join(f'vllm:cache_config_info{{engine="{i}",num_gpu_blocks="100"}} 1\n' for i in range(3))
    assert snapshot(text + blocks).total("generation_tokens") == 33
    assert snapshot(text + blocks).num_gpu_blocks == 300


def test_engines_are_summed_at_each_position():
    """Two engines with two positions each have two positions together, and P of both."""
    name = "vllm:spec_decode_num_accepted_tokens_per_pos_total"

    def dump(factor):
        places = [(engine, position) for engine in (0, 1) for position in (0, 1)]
        lines = [f'{name}{{engine="{e}",position="{p}"}} {factor * (10 * e + p + 1)}' for e, p in places]
        lines += [f'vllm:inter_token_latency_seconds_count{{engine="{e}"}} {factor * 100}' for e in (0, 1)]
        return snapshot("\n".join([*lines, ""]))

    found = delta(dump(1), dump(2))
    assert found.accepted_per_position == [1 + 11, 2 + 12]
    assert found.decode_events == 200
    assert found.backwards == ()


def test_an_engine_that_came_or_went_makes_the_rise_unknown():
    """Its tokens before the pass are not known, so the sum over engines would be wrong."""
    one, two = (f'vllm:generation_tokens_total{{engine="{engine}"}} 50\n' for engine in (0, 1))
    assert delta(snapshot(one), snapshot(one + two)).generation_tokens is None
    assert delta(snapshot(one + two), snapshot(one)).generation_tokens is None


def grown(text, **values):
    """The dump with the values of some samples (by name without vllm:) replaced."""
    lines = []
    for line in text.splitlines():
        name = re.split(r"[{ ]", line)[0].removeprefix("vllm:")
        lines.append(f"{line.rsplit(' ', 1)[0]} {values[name]}" if name in values else line)
    return "\n".join([*lines, ""])


def test_delta_is_what_the_pass_added():
    """G, F, P and the rest are differences; what neither dump has is None."""
    after = grown(
        MODERN,
        generation_tokens_total="1.0005e+06",
        time_to_first_token_seconds_count="18.0",
        inter_token_latency_seconds_count=700,
        spec_decode_num_accepted_tokens_per_pos_total=61,
    )
    found = delta(snapshot(MODERN), snapshot(after))
    assert (found.generation_tokens, found.first_tokens, found.decode_events) == (500, 8, 200)
    assert found.accepted_per_position == [1, 31]
    assert (found.accepted_tokens, found.n_drafts, found.preemptions) == (0, None, None)
    assert (found.num_gpu_blocks, found.backwards) == (182, ())


def test_positions_are_in_order_of_their_label():
    """Position 10 comes after position 9, and a gap makes the list unknown."""
    name = "vllm:spec_decode_num_accepted_tokens_per_pos_total"

    def dump(factor, positions):
        return snapshot("".join(f'{name}{{position="{p}"}} {factor * (20 - p)}\n' for p in positions))

    assert delta(dump(1, range(12)), dump(2, range(12))).accepted_per_position == list(range(20, 8, -1))
    assert delta(dump(1, [0, 2]), dump(2, [0, 2])).accepted_per_position is None


def test_a_counter_that_fell_is_named_and_unknown():
    """A restart shows as a fall, also when another engine's rise hides it in the sum."""
    before = 'vllm:generation_tokens_total{engine="0"} 50\nvllm:generation_tokens_total{engine="1"} 50\n'
    after = 'vllm:generation_tokens_total{engine="0"} 500\nvllm:generation_tokens_total{engine="1"} 2\n'
    found = delta(snapshot(before), snapshot(after))
    assert found.backwards == ("generation_tokens",)
    assert found.generation_tokens is None


def test_a_cut_dump_leaves_nulls():
    """A dump cut anywhere gives None for what it lacks, never a shortened number."""
    whole = snapshot(MODERN)
    for n in range(len(MODERN)):
        found = delta(whole, snapshot(MODERN[:n]))
        assert found.generation_tokens in (None, 0)
        assert found.backwards == ()
    assert delta(whole, snapshot(None)) == Deltas()


def test_zero_drafts_are_zero():
    """Counters that are there and 0 are 0; only their creation time is large."""
    text = "vllm:spec_decode_num_drafts_total 0.0\nvllm:spec_decode_num_drafts_created 1.7e+09\n"
    found = delta(snapshot(text), snapshot(text))
    assert (found.n_drafts, found.draft_tokens) == (0, None)


def test_acceptance_length_does_not_see_inflated_drafts():
    """The same output with 124 or 176 drafts of 266 or 704 tokens: one definition, one number."""
    text = """\
vllm:generation_tokens_total 510
vllm:time_to_first_token_seconds_count 10
vllm:inter_token_latency_seconds_count 250
vllm:spec_decode_num_accepted_tokens_total 240
vllm:spec_decode_num_drafts_total 124
vllm:spec_decode_num_draft_tokens_total 266
"""
    none = snapshot("".join(f"{line.split()[0]} 0\n" for line in text.splitlines()))
    inflated = grown(text, spec_decode_num_drafts_total=176, spec_decode_num_draft_tokens_total=704)
    found = [delta(none, snapshot(dump)) for dump in (text, inflated)]
    assert [(d.n_drafts, d.draft_tokens, d.accepted_tokens) for d in found] == [
        (124, 266, 240),
        (176, 704, 240),
    ]
    assert [metrics.acceptance_length(d) for d in found] == [2.0, 2.0]


SUMMARIES = {
    "April 2025": "Draft acceptance rate: 58.3%, Accepted: 7 tokens, Drafted: 12 tokens",
    "September 2025": "Draft acceptance rate: 70.0%, Mean acceptance length: 3.80, Accepted throughput: 4.20 "
    "tokens/s, Drafted throughput: 6.00 tokens/s, Accepted: 21 tokens, Drafted: 30 tokens, Per-position "
    "acceptance rate: 0.900, 0.700, 0.500",
    "0.25.1 and 0.32.0": "Mean acceptance length: 2.50, Accepted throughput: 3.00 tokens/s, Drafted "
    "throughput: 8.00 tokens/s, Accepted: 15 tokens, Drafted: 40 tokens, Per-position "
    "acceptance rate: 0.800, 0.700, Avg Draft acceptance rate: 37.5%",
    "no draft": "Mean acceptance length: 1.00, Accepted throughput: 0.00 tokens/s, Drafted throughput: 0.00 "
    "tokens/s, Accepted: 0 tokens, Drafted: 0 tokens, Per-position acceptance rate: 0.000, Avg Draft "
    "acceptance rate: nan%",
}
HEAD = "(APIServer pid=7) INFO 01-02 03:04:05 [metrics.py:96] SpecDecoding metrics: "
COUNTS = {
    "April 2025": (7, 12),
    "September 2025": (21, 30),
    "0.25.1 and 0.32.0": (15, 40),
    "no draft": (0, 0),
}


@pytest.mark.parametrize("wording", SUMMARIES)
def test_every_wording_of_the_logs_summary_is_read(wording):
    """The counts are found by name, wherever they stand and whatever the rate beside them says."""
    assert logged_drafts(f"INFO x\n{HEAD}{SUMMARIES[wording]}\r\n") == LoggedDrafts(*COUNTS[wording])


def test_summaries_of_a_log_are_added():
    """Each line is one interval; a line that lacks a count is left out, and of none there is nothing."""
    log = "\n".join(f"{HEAD}{text}" for text in SUMMARIES.values())
    assert logged_drafts(log) == LoggedDrafts(43, 82)
    assert logged_drafts(f"{log}\n{HEAD}Accepted: 5 tokens") == LoggedDrafts(43, 82)
    assert logged_drafts(f"Accepted: 5 tokens, Drafted: 6 tokens\n{HEAD}nothing of the kind") is None


def test_missing_counters_are_said_with_what_the_log_tells():
    """The log's counts stand in a warning, not being those of the pass; else nothing is said."""
    log = f"{HEAD}{SUMMARIES['0.25.1 and 0.32.0']}\n"
    (said,) = counter_doubts(Deltas(), 4, log)
    assert "15 of 40 draft tokens" in said
    (said,) = counter_doubts(Deltas(generation_tokens=5), 4, "")
    assert "nothing of drafts" in said
    assert "15 of" not in counter_doubts(Deltas(), None, log)[0]
    assert counter_doubts(Deltas(generation_tokens=5), None, log) == []
    assert counter_doubts(Deltas(generation_tokens=5, draft_tokens=0), 4, log) == []
    assert counter_doubts(Deltas(backwards=("generation_tokens",)), 4, log) == []
