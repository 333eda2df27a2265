"""The columns of the three tables, with unit and meaning. The one place a column is declared.

Plain data: no pyarrow, no pandas, so that anything may import it. ``store`` builds the Arrow
schemas from it and ``results/README.md`` is checked against it. Null always means "not measured".
A changed meaning bumps ``SCHEMA_VERSION``.
"""

from __future__ import annotations

from typing import NamedTuple

SCHEMA_VERSION = 1

OK, FAILED, INVALID = "ok", "failed", "invalid"
STATUSES = (OK, FAILED, INVALID)

#: Two trials may be pooled, or one skipped on resume, only when all of these agree.
MUST_MATCH = ("vllm_version", "driver", "gpu_name", "cpu_model", "clock_policy")


class Column(NamedTuple):
    """One column: ``kind`` is ``str``, ``int``, ``float``, ``bool``, ``time``, ``strs`` or ``ints``."""

    name: str
    kind: str
    doc: str


def _columns(*rows: tuple[str, str, str]) -> tuple[Column, ...]:
    return tuple(Column(*row) for row in rows)


def _quantiles(name: str, doc: str) -> tuple[Column, ...]:
    return tuple(
        Column(f"{name}_p{q}_s", "float", f"{doc}, p{q} over ok requests, seconds") for q in (50, 90, 99)
    )


WHO = _columns(
    ("schema_version", "int", "version of this table"),
    ("sweep", "str", "name of the sweep"),
    ("run_id", "str", "one run of the sweep; resuming keeps it"),
    ("block_id", "str", "the comparison this trial belongs to"),
    ("boot_id", "str", "the server process, from the plan"),
    ("cell_id", "str", "hash of everything that can change the number"),
    ("trial_id", "str", "cell, round and repeat"),
    ("round", "int", "1-based"),
    ("repeat", "int", "1-based pass within one boot"),
    ("order_index", "int", "position in the plan"),
    ("is_sentinel", "bool", "measured to compare nights, between blocks; no part of a best K"),
    ("source", "str", "the tool that measured, where it was another one"),
    ("started_at", "time", "UTC start of the pass (of the boot when it never came to a pass)"),
    ("duration_s", "float", "wall time of the pass, seconds"),
)
WHAT = _columns(
    ("model", "str", "tag, hub id or path as asked for"),
    ("model_revision", "str", "pinned revision; null is unpinned or a local folder"),
    ("family", "str", "model family"),
    ("tensor_parallel", "int", "GPUs per server"),
    ("arm", "str", "server variant, without K"),
    ("k", "int", "num_speculative_tokens; null is no speculation"),
    ("corpus", "str", "prompt set"),
    ("corpus_digest", "str", "sha256 of the frozen prompts"),
    ("corpus_truncated", "bool", "frozen from the whole records of a file that was cut off"),
    ("n_prompts", "int", "prompts of the pass"),
    ("concurrency", "int", "requests kept open"),
    ("max_tokens", "int", "output limit per request"),
    ("max_model_len", "int", "context limit of the server"),
    ("temperature", "float", "sampling temperature"),
    ("seed", "int", "sampling seed"),
    ("isolation", "str", "boot, reset or resident"),
    ("design", "str", "how many rounds were planned: fixed(3), or adaptive(3..8)"),
    (
        "cache_state",
        "str",
        "of the suffix tree at the start: cold, primed(N), warm; null where there is none",
    ),
    ("suffix_max_tree_depth", "int", "suffix tree depth; null without speculation"),
    ("suffix_max_spec_factor", "float", "draft length over match length"),
    ("suffix_min_token_prob", "float", "least probability of a draft token"),
    ("suffix_max_cached_requests", "int", "responses the tree keeps"),
)
OUTCOME = _columns(
    ("status", "str", "ok, failed or invalid"),
    ("reason", "str", "class of what went wrong; null when ok"),
    ("detail", "str", "the line that shows the reason, and the log to read"),
    ("n_ok", "int", "requests that ended well"),
    ("n_failed", "int", "requests that did not"),
    ("n_length_finish", "int", "ok requests that ran into max_tokens"),
    ("n_filler", "int", "unmeasured requests that kept the slots full until the last measured one ended"),
    ("loop_share", "float", "share of output tokens in requests that end in a loop"),
    ("input_tokens", "int", "prompt tokens of ok requests"),
    ("output_tokens", "int", "output tokens of ok requests"),
    ("tokens_source", "str", "usage or retokenized"),
    ("tokens_reconciled", "bool", "the server's counter rose by the sum of usage"),
    ("endpoint", "str", "path of the API that was driven"),
    ("server_rc", "int", "exit status of the server when it died by itself"),
    ("warnings", "strs", "doubts that travel with the row"),
)
SPEED = (
    *_columns(
        ("output_tok_per_s", "float", "output tokens of ok requests / wall time of the pass"),
        ("steady_output_tok_per_s", "float", "the same inside the steady window"),
        ("steady_share", "float", "steady window / wall time"),
        ("tail_share", "float", "share of the wall with a slot empty and nothing left to issue"),
        ("request_per_s", "float", "ok requests / wall time"),
    ),
    *_quantiles("ttft", "time to first token"),
    *_quantiles("tpot", "(E2E - TTFT) / (output tokens - 1)"),
    *_quantiles("itl", "gap between token-bearing chunks"),
    *_quantiles("e2e", "time to last token"),
)
STEPS = _columns(
    ("steps_source", "str", "who counted the steps: worker, or front_end where the runner has no counters"),
    ("n_steps", "int", "engine steps that ran the model in the pass"),
    ("n_decode_steps", "int", "steps in which every request was past its prompt"),
    ("uniform_share_decode", "float", "share of decode-only steps with exactly 1+K tokens for every request"),
    ("step_time_mean", "float", "mean decode-only step, start to start, seconds"),
    ("step_time_p50", "float", "median of the same, to 1 %, seconds"),
    ("mean_batch", "float", "requests per decode-only step"),
    ("acceptance_length", "float", "(G - F) / P: output tokens per request and decode step"),
    ("n_drafts", "int", "drafts verified, by vLLM's counter"),
    ("draft_tokens", "int", "draft tokens verified, pads included, by vLLM's counter"),
    ("real_draft_tokens", "int", "draft tokens the suffix tree proposed"),
    ("pad_tokens", "int", "draft tokens that K-pad added"),
    ("pad_hits", "int", "pads accepted by chance"),
    ("accepted_tokens", "int", "accepted draft tokens, by vLLM's counter"),
    ("accepted_per_position", "ints", "accepted draft tokens by position"),
)
GRAPHS = _columns(
    ("full_share", "float", "share of steps that replayed a FULL graph"),
    ("full_share_reason", "str", "why full_share is null: no_graphs, not_counted"),
    ("full_share_decode", "float", "the same among decode-only steps"),
    ("full_share_time", "float", "share of the engine's step time in FULL steps"),
    ("piecewise_share_time", "float", "the same in PIECEWISE steps"),
    ("none_share_time", "float", "the same in steps without a graph"),
    ("piecewise_share", "float", "share of steps in PIECEWISE mode"),
    ("none_share", "float", "share of steps without a graph"),
    ("graph_padding_tokens", "int", "tokens added to reach a captured size"),
    ("capture_sizes", "ints", "captured sizes in tokens"),
    ("attention_backend", "str", "as the server's log says"),
    ("runner", "str", "v1 or v2"),
    ("num_gpu_blocks", "int", "KV cache blocks"),
    ("preemptions", "int", "requests preempted in the pass"),
    ("prefix_hits", "int", "prompt tokens served from the prefix cache in the pass"),
)
HOST = _columns(
    ("boot_s", "float", "start of the process to ready, seconds"),
    (
        "boot_attempts",
        "int",
        "boots until the server was up or given up; 0: the same command had failed before",
    ),
    ("server_argv", "strs", "the command line"),
    ("server_env", "strs", "NAME=value, secrets removed"),
    ("server_cpus", "str", "CPUs that the threads of all its processes may use, read back from them"),
    ("client_cpus", "str", "CPU list of the client"),
    ("slot", "str", "part of the host that it ran on; null: all of it"),
    ("neighbours", "strs", "slots on which other servers were up meanwhile; empty: it ran alone"),
    ("affinity_by", "str", "taskset, numactl, sched_setaffinity or null"),
    ("numa", "str", "NUMA nodes of the server's CPUs"),
    ("client_cpu_share", "float", "CPU seconds of the client / wall time"),
    ("front_end_cpu_share", "float", "CPU seconds of the API process / wall time"),
    ("engine_cpu_share", "float", "CPU seconds of EngineCore and workers / wall time"),
    ("chunk_merge_share", "float", "1 - (token chunks after the first) / P"),
    ("loop_lag_p99_ms", "float", "p99 lateness of the client's event loop, milliseconds"),
    ("reissue_gap_p50_ms", "float", "a slot's end to its next request, median, milliseconds"),
    ("reissue_gap_p99_ms", "float", "the same, p99"),
    ("gpu_name", "str", "GPU kind; null without one"),
    ("gpu_count", "int", "GPUs of the host"),
    ("driver", "str", "GPU driver"),
    ("clock_policy", "str", "how GPU clocks are set"),
    ("gpu_indices", "ints", "GPUs that the server uses, as NVML numbers them"),
    ("gpu_samples", "int", "samples of those GPUs, one a second, that the next columns rest on"),
    ("gpu_clock_mhz_min", "float", "lowest SM clock of any of them during the pass"),
    ("gpu_clock_mhz_mean", "float", "SM clock during the pass"),
    ("gpu_clock_mhz_max", "float", "highest SM clock of any of them during the pass"),
    ("gpu_memory_clock_mhz_min", "float", "lowest memory clock of any of them during the pass"),
    ("gpu_memory_clock_mhz_mean", "float", "memory clock during the pass"),
    ("gpu_memory_clock_mhz_max", "float", "highest memory clock of any of them during the pass"),
    ("gpu_power_w_mean", "float", "power during the pass, of all of them together, watts"),
    ("gpu_energy_j", "float", "energy of the pass, of all of them together, joules"),
    ("gpu_temperature_c_max", "float", "highest temperature, Celsius"),
    ("gpu_memory_gib_max", "float", "most memory in use on one of them, GiB"),
    ("throttle_reasons", "strs", "what held clocks back during the pass; empty: nothing"),
    ("throttled", "bool", "clocks were held back during the pass by one of thresholds.throttle_reasons"),
    ("other_cpu_share", "float", "CPU seconds of processes of others on this host / wall time"),
    ("other_cpu_host_share", "float", "the same / CPUs of the host"),
    ("disturbed", "bool", "other_cpu_share was above thresholds.other_cpu_share"),
    ("cpu_model", "str", "CPU kind"),
    ("governor", "str", "CPU frequency governor"),
    ("smt", "bool", "SMT is on"),
    ("kernel", "str", "kernel release"),
)
VERSIONS = _columns(
    ("vllm_version", "str", "read from the server"),
    ("vllm_commit", "str", "build id when the version carries one"),
    ("torch_version", "str", "in the server's environment"),
    ("cuda_version", "str", "null on the CPU"),
    ("arctic_version", "str", "arctic-inference in the server's environment"),
    ("kpad_bench_version", "str", "this package"),
    ("git_commit", "str", "commit of this package, when run from a checkout"),
    ("host", "str", "host name; reported, never matched"),
)

TRIALS = WHO + WHAT + OUTCOME + SPEED + STEPS + GRAPHS + HOST + VERSIONS

REQUESTS = _columns(
    ("schema_version", "int", "version of this table"),
    ("run_id", "str", "run"),
    ("trial_id", "str", "trial"),
    ("request_index", "int", "order of issue in the pass"),
    ("prompt_id", "str", "id in the frozen corpus"),
    ("prompt_sha256", "str", "of the prompt text"),
    ("input_tokens", "int", "by usage"),
    ("output_tokens", "int", "by usage"),
    ("finish_reason", "str", "as the server says"),
    ("status", "str", "ok or failed"),
    ("error", "str", "what went wrong"),
    ("start_ns", "int", "issue of the request, ns after the start of the pass"),
    ("ttft_s", "float", "seconds"),
    ("tpot_s", "float", "seconds; null below two output tokens"),
    ("e2e_s", "float", "seconds"),
    ("n_chunks", "int", "token-bearing chunks"),
    ("reasoning_chars", "int", "characters in reasoning deltas"),
    ("output_sha256", "str", "of the output text"),
    ("output_text", "str", "only with --save-text"),
)

BEST_K = _columns(
    ("model", "str", "model"),
    ("corpus", "str", "corpus"),
    ("arm", "str", "family of arms that was compared"),
    ("best_k", "int", "argmax of the mean: the published definition"),
    ("output_tok_per_s", "float", "of best_k"),
    ("ci_low", "float", "lower end of its interval"),
    ("ci_high", "float", "upper end"),
    ("n_trials", "int", "trials of best_k"),
    ("n_rounds", "int", "complete rounds (nights, where several are pooled) that the decision rests on"),
    ("runner_up_k", "int", "second best"),
    ("margin_pct", "float", "lead of best_k over runner_up_k, percent"),
    ("tie_set", "ints", "Ks not shown to be worse"),
    ("tie_basis", "str", "measured or assumed"),
    ("established", "bool", "the tie set is one K and it was measured"),
    ("relevant", "bool", "the lead is at least the practical margin"),
    ("p_value", "float", "of best_k being no better than its closest rival"),
    ("q_value", "float", "p_value adjusted over the table (Benjamini-Hochberg)"),
    ("cv_pct", "float", "variation between rounds that is neither round nor K, percent"),
    ("detectable_pct", "float", "least lead that had an 80 % chance of being established, percent"),
    ("stop_reason", "str", "why an adaptive design ended: established, futile, limit, budget; null: fixed"),
    ("pick_k", "int", "the K to run"),
    ("regret_pct", "float", "what pick_k may lose, percent"),
    ("regrets", "strs", "K: the same for every K of the tie set"),
    ("steady_best_k", "int", "argmax by the steady window; null where it is not known for every K"),
    ("vs_suf_pct", "float", "gain of best_k over suf K=32, percent"),
    ("vs_suf_low_pct", "float", "lower end"),
    ("vs_suf_high_pct", "float", "upper end"),
    ("vs_van_pct", "float", "gain over no speculation, percent"),
    ("vs_van_low_pct", "float", "lower end"),
    ("vs_van_high_pct", "float", "upper end"),
    ("vs_best_baseline_pct", "float", "gain over the best of van, suf and suf@K present, percent"),
    ("vs_best_baseline_low_pct", "float", "lower end"),
    ("vs_best_baseline_high_pct", "float", "upper end"),
    ("van_tok_per_s", "float", "no speculation, same cells"),
    ("suf_tok_per_s", "float", "unpadded suffix K=32, same cells"),
    ("acceptance_length", "float", "of best_k: output tokens per request and decode step"),
    ("step_time_ratio", "float", "R: mean step time of best_k over that of van-v1"),
    ("not_eligible", "strs", "K: reason, for every K left out"),
)


def names(columns: tuple[Column, ...]) -> tuple[str, ...]:
    """Column names in table order."""
    return tuple(column.name for column in columns)
