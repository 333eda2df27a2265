#!/usr/bin/env python3
"""What the load generator costs and how exact it is, beside the client of ``vllm bench serve``.

    python scripts/bench_client.py [--quick] [--json] [--rounds 4] [--steps-ms 1,2.5,10]

All clients drive one fake server that is known to tell the truth (tests/fake_vllm/fast.py), over TCP, in
alternating runs, 32 requests open, several tokens per event; server and client each on a CPU of its own.
Compared are this project's pass, vLLM's request function and its whole tool. Without vLLM only ours runs.
Every figure is the median over the rounds. Re-issue gaps are the server's: the k-th end of an answer to the
k-th arrival of a request after the first 32. Errors are against what the server did, per request.
With --json the last line is one JSON object.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import os
import random
import statistics
import sys
from typing import Any

from bench_client_processes import Client, Fake

CONCURRENCY = 32
#: The step at which bounds are judged; a B200 decodes in about this time.
STEP_MS = 2.5
Figures = dict[str, float]
#: name in the tables -> unit, places
SHOWN = {
    "us_per_event": ("us", 2),
    "us_per_event_in_pass": ("us", 2),
    "events_per_s_and_core": ("/s", 0),
    "reissue_gap_p50_ms": ("ms", 3),
    "reissue_gap_p99_ms": ("ms", 3),
    "ttft_error_ms": ("ms", 3),
    "ttft_error_p99_ms": ("ms", 3),
    "tpot_error_pct": ("%", 3),
    "tpot_error_p99_pct": ("%", 3),
    "server_late_p50_ms": ("ms", 3),
    "server_late_p99_ms": ("ms", 3),
}


def quantile(values: list[float], q: float) -> float:
    """Of any number of values; 0 of none."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, round(q * (len(ordered) - 1)))] if ordered else 0.0


def make_job(url: str, n_requests: int, most_tokens: int, seed: int) -> dict[str, Any]:
    """Prompts of some 600 characters whose answers have known, different lengths."""
    lengths = random.Random(seed)  # noqa: S311 no secret
    texts = [
        f"request {i}: answer {lengths.randint(most_tokens // 6, most_tokens)} tokens. " + "and so on " * 60
        for i in range(n_requests)
    ]
    return {"url": url, "prompts": texts, "max_tokens": most_tokens}


def measure(fake: Fake, client: Client, job: dict[str, Any], step_ms: float) -> Figures:
    """One run: the client's word against the server's."""
    fake.ask("/step", {"step_ns": round(step_ms * 1e6)})
    said = client.run(job)
    truth = fake.ask("/truth")
    requests = sorted(truth["requests"], key=lambda one: int(one["number"]))
    ends = sorted(one["end_ns"] for one in requests)
    arrivals = sorted(one["arrived_ns"] for one in requests)
    gaps_ms = [(new - old) / 1e6 for old, new in zip(ends, arrivals[CONCURRENCY:], strict=False)]
    ttft_ms, tpot_pct = errors(requests, said)
    n_chunks = sum(one["n_chunks"] for one in requests)
    late_ms = [late / 1e6 for late in truth["late_ns"]]
    found = {
        "us_per_event": said["cpu_s"] / n_chunks * 1e6,
        "us_per_event_in_pass": said.get("pass_cpu_s", said["cpu_s"]) / n_chunks * 1e6,
        "events_per_s_and_core": n_chunks / said["cpu_s"],
        "reissue_gap_p50_ms": quantile(gaps_ms, 0.5),
        "reissue_gap_p99_ms": quantile(gaps_ms, 0.99),
        "ttft_error_ms": quantile(ttft_ms, 0.5),
        "ttft_error_p99_ms": quantile(ttft_ms, 0.99),
        "tpot_error_pct": quantile(tpot_pct, 0.5),
        "tpot_error_p99_pct": quantile(tpot_pct, 0.99),
        "server_late_p50_ms": quantile(late_ms, 0.5),
        "server_late_p99_ms": quantile(late_ms, 0.99),
        "tokens_off": said["tokens"] - sum(one["n_tokens"] for one in requests),
        "n_chunks": n_chunks,
        "first_request_s": (arrivals[0] - client.spawned_ns) / 1e9,
    }
    return found | {name: said[name] for name in ("rss_mb", "rss_peak_mb")}


def errors(requests: list[dict[str, Any]], said: dict[str, Any]) -> tuple[list[float], list[float]]:
    """TTFT off by ms and TPOT off by percent, of each request in order."""
    ttft_ms, tpot_pct = [], []
    for one, ttft_s, tpot_s in zip(requests, said["ttft_s"], said["tpot_s"], strict=True):
        ttft_ms.append(abs(ttft_s * 1e3 - (one["first_ns"] - one["arrived_ns"]) / 1e6))
        true_ns = (one["last_ns"] - one["first_ns"]) / (one["n_tokens"] - 1)
        tpot_pct.append(abs(tpot_s * 1e9 / true_ns - 1) * 100)
    return ttft_ms, tpot_pct


def medians(runs: list[Figures]) -> Figures:
    """Of every figure."""
    return {name: statistics.median(run[name] for run in runs) for name in runs[0]}


class Result:
    """All runs of all clients."""

    def __init__(self) -> None:
        self.by_step: dict[str, dict[float, Figures]] = {}
        self.start_s: Figures = {}
        self.rss_mb: Figures = {}
        self.tokens_off = 0.0
        self.long: Figures | None = None

    def add(self, name: str, step_ms: float, runs: list[Figures]) -> None:
        """The rounds of one client at one step."""
        self.by_step.setdefault(name, {})[step_ms] = medians(runs)
        if name == "ours":
            self.tokens_off += sum(abs(run["tokens_off"]) for run in runs)


def compare(fake: Fake, given: argparse.Namespace, cpu: int | None, names: list[str]) -> Result:
    """Everything that is measured, in alternating order."""
    result = Result()
    with contextlib.ExitStack() as stack:
        clients = {}
        for name in names:  # alone: how long its start takes
            clients[name] = stack.enter_context(Client(name, cpu))
            first = measure(fake, clients[name], make_job(fake.url, 2, 12, 0), STEP_MS)
            result.start_s[name], result.rss_mb[name] = first["first_request_s"], first["rss_mb"]
        for step in given.steps_ms:
            runs: dict[str, list[Figures]] = {name: [] for name in names}
            for number in range(given.rounds):
                n_requests = max(96, round(given.requests * min(1.0, STEP_MS / step)))
                job = make_job(fake.url, n_requests, given.tokens, number)
                for name in names if number % 2 else names[::-1]:
                    runs[name].append(measure(fake, clients[name], job, step))
            for name in names:
                result.add(name, step, runs[name])
        if not given.quick:
            result.long = measure(fake, clients["ours"], make_job(fake.url, 256, 6000, 0), 1.0)
            result.tokens_off += abs(result.long["tokens_off"])
    if len(names) > 1:
        for step in [STEP_MS] if given.quick else given.steps_ms:
            with Client("tool", cpu) as client:
                run = measure(fake, client, make_job(fake.url, given.requests, given.tokens, 0), step)
                result.add("tool", step, [run])
                result.start_s["tool"], result.rss_mb["tool"] = run["first_request_s"], run["rss_peak_mb"]
    return result


def show(result: Result) -> None:
    """The tables."""
    names = list(result.by_step)
    for step in result.by_step["ours"]:
        here = [name for name in names if step in result.by_step[name]]
        print(f"\n{step:g} ms steps{'':24}" + "".join(f"{name:>18}" for name in here))
        for figure, (unit, places) in SHOWN.items():
            values = (result.by_step[name][step][figure] for name in here)
            print(f"  {figure:30} {unit:4}" + "".join(f"{value:18,.{places}f}" for value in values))
    print(f"\n{'':37}" + "".join(f"{name:>18}" for name in result.start_s))
    print(f"  {'start to first request':30} s   " + "".join(f"{v:18.2f}" for v in result.start_s.values()))
    print(f"  {'resident memory':30} MB  " + "".join(f"{v:18.0f}" for v in result.rss_mb.values()))
    if result.long is not None:
        start_mb, peak_mb = (result.long[name] for name in ("rss_mb", "rss_peak_mb"))
        n_chunks = result.long["n_chunks"]
        print(f"  ours, a pass of {n_chunks:,.0f} events: from {start_mb:.0f} MB to {peak_mb:.0f} MB")


def summary(result: Result) -> dict[str, Any]:
    """What is judged, at 2.5 ms steps where nothing else is said."""
    at = {name: steps.get(STEP_MS) or next(iter(steps.values())) for name, steps in result.by_step.items()}
    mine, theirs = at["ours"], at.get("request-function")
    found: dict[str, Any] = {
        "cpu_per_event_ratio_vllm_over_ours": theirs and theirs["us_per_event"] / mine["us_per_event"],
        "cpu_per_event_ratio_in_pass": theirs and theirs["us_per_event"] / mine["us_per_event_in_pass"],
        "tokens_exact": result.tokens_off == 0,
        "ttft_error_ms": max(run["ttft_error_ms"] for run in result.by_step["ours"].values()),
        "tpot_error_pct": max(run["tpot_error_pct"] for run in result.by_step["ours"].values()),
        "start_s": result.start_s["ours"],
        "rss_mb": result.rss_mb["ours"],
    }
    for name in ("reissue_gap_p50_ms", "reissue_gap_p99_ms"):
        found |= {name: mine[name], f"vllm_{name}": theirs and theirs[name]}
    return found | {"rounds": result.by_step}


def judge(found: dict[str, Any]) -> dict[str, bool]:
    """The bounds, and whether they hold. Without vLLM nothing is compared with it."""
    ratio, mine = found["cpu_per_event_ratio_vllm_over_ours"], "reissue_gap_{}_ms"
    beside = {}
    if ratio is not None:
        gaps = [(found[mine.format(q)], found["vllm_" + mine.format(q)]) for q in ("p50", "p99")]
        beside = {
            "CPU per event: vLLM's request function at least 1.3 times ours": ratio >= 1.3,
            "re-issue gaps not above vLLM's": all(ours <= theirs for ours, theirs in gaps),
        }
    return beside | {
        "total tokens exact": found["tokens_exact"],
        "TTFT within 0.2 ms, at every step": found["ttft_error_ms"] <= 0.2,
        "TPOT within 0.5 %, at every step": found["tpot_error_pct"] <= 0.5,
        "start to first request within 1 s": found["start_s"] <= 1.0,
        "resident memory at start within 150 MB": found["rss_mb"] <= 150,
    }


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="2 rounds, 2.5 ms steps, no long pass")
    parser.add_argument("--json", action="store_true", help="end with one JSON line")
    parser.add_argument("--rounds", type=int, default=None)
    parser.add_argument("--steps-ms", type=lambda text: [float(part) for part in text.split(",")])
    parser.add_argument("--requests", type=int, default=256, help="of a run, fewer at long steps")
    parser.add_argument("--tokens", type=int, default=370, help="of the longest answer")
    parser.add_argument("--without-vllm", action="store_true")
    given = parser.parse_args()
    given.rounds = given.rounds or (2 if given.quick else 5)
    given.steps_ms = given.steps_ms or ([STEP_MS] if given.quick else [1.0, STEP_MS, 10.0])
    return given


def main() -> None:
    """Run all clients and print what was found; the status is 1 when a token is missing."""
    given = parse()
    cpus = sorted(os.sched_getaffinity(0))
    server_cpu, client_cpu = (cpus[0], cpus[-1]) if len(cpus) > 1 else (None, None)
    names = ["ours", "request-function"]
    if given.without_vllm or importlib.util.find_spec("vllm") is None:
        names = ["ours"]
        print("vLLM is not installed, or not wanted: nothing to compare with")
    print(
        f"server on CPU {server_cpu}, client on CPU {client_cpu}; {given.rounds} rounds, medians", flush=True
    )
    with Fake(server_cpu) as fake:
        result = compare(fake, given, client_cpu, names)
    show(result)
    found = summary(result)
    print()
    for bound, holds in judge(found).items():
        print(f"  {'holds ' if holds else 'MISSED'}  {bound}")
    if given.json:
        print(json.dumps(found))
    sys.exit(not found["tokens_exact"])


if __name__ == "__main__":
    main()
