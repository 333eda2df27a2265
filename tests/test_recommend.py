"""What to run: the K, or a baseline, for one corpus or several; and the line, as a shell reads it."""

from __future__ import annotations

import json
import math
import shlex
import subprocess
import sys

import pandas as pd
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from trial_rows import csv_file, ok, write_run

from kpad_bench.argv import server_argv, server_env, server_flags
from kpad_bench.capture import capture_sizes
from kpad_bench.cli import main
from kpad_bench.config import Server
from kpad_bench.configfile import load_arms, load_models
from kpad_bench.errors import UsageError
from kpad_bench.launch import shown_argv, shown_env
from kpad_bench.launchline import measured_line
from kpad_bench.mixture import mix
from kpad_bench.recommend import recommend
from kpad_bench.recommend_text import record, render
from kpad_bench.reduce import load_rows
from kpad_bench.traffic import Asked

SERVER = Server(
    vllm_version="0.32.0", max_model_len=4096, cudagraph_mode="FULL_AND_PIECEWISE", env={"MY_FLAG": "a b"}
)
HEADER = "model,corpus,arm,k,output_tok_per_s\n"


def started(arm, k):
    """The columns of a row that say how its server was started, as the sweep writes them."""
    entry, variant = load_models()["Llama-3.1-8B-Instruct"], load_arms()[arm]
    env = {"PATH": "/bin", "HF_TOKEN": "x", **server_env(entry, variant, SERVER)}
    return {
        "server_argv": shown_argv(server_argv("b1", entry, variant, k, SERVER, [5, 10])),
        "server_env": shown_env(env),
        "gpu_name": "H200",
    }


def run_of(path, speeds, n_rounds=1, **more):
    """A run with one trial for each arm, K, corpus and round; speeds: (arm, k, corpus) -> tok/s by round."""
    trials = []
    for (arm, k, corpus), speed in speeds.items():
        for number in range(1, n_rounds + 1):
            value = speed[number - 1] if isinstance(speed, tuple) else speed
            columns = ok(k, float(value), arm, corpus=corpus, round=number, **started(arm, k), **more)
            trials.append((f"{arm}{k}.{corpus}.r{number}", columns))
    write_run(path, *trials)
    return path


def asked_of(paths, *corpora, model="m", **more):
    """The recommendation from these files."""
    return recommend(load_rows(paths), Asked(model, corpora, **more))


def launched(text):
    """The environment and the argv that a shell makes of a recommendation's text."""
    parts = shlex.split(text, comments=True)
    n_settings = next(i for i, part in enumerate(parts) if part in ("vllm", "python"))
    return dict(part.split("=", 1) for part in parts[:n_settings]), parts[n_settings:]


@pytest.fixture
def command(monkeypatch, capsys):
    """Run ``kpad-bench recommend``: exit code, stdout, stderr."""

    def run(*args):
        monkeypatch.setattr(sys, "argv", ["kpad-bench", "recommend", *map(str, args)])
        with pytest.raises(SystemExit) as caught:
            main()
        return caught.value.code or 0, *capsys.readouterr()

    return run


# --- the line


def test_the_line_is_the_one_that_was_measured(command, tmp_path):
    """Without socket, served name and what only the harness sets; as a shell reads it; padding is on."""
    run_of(tmp_path / "r", {("kpad", 4, "c"): 100, ("kpad", 8, "c"): 120})
    code, out, err = command(tmp_path / "r", "--model", "m", "--corpus", "c")
    env, argv = launched(out)
    assert (code, err) == (0, "")
    assert argv[:3] == ["vllm", "serve", "meta-llama/Llama-3.1-8B-Instruct"]
    assert json.loads(argv[argv.index("--speculative-config") + 1]) == {
        "method": "suffix", "num_speculative_tokens": 8,
    }  # fmt: skip
    entry, kpad = load_models()["Llama-3.1-8B-Instruct"], load_arms()["kpad"]
    assert argv[3:] == server_flags(entry, kpad, 8, SERVER, [5, 10])
    assert env == {
        "ARCTIC_INFERENCE_ENABLED": "0", "MY_FLAG": "a b", "VLLM_PLUGINS": "kpad",
        "VLLM_SUFFIX_PAD_UNIFORM": "1",
    }  # fmt: skip
    assert "VLLM_PLUGINS=kpad exactly" in " ".join(out.replace("#", "").split())


def test_the_text_is_a_script_that_a_shell_runs(tmp_path):
    """Comments and one command: quotes, braces and blanks reach the server as they are."""
    found = asked_of(run_of(tmp_path / "r", {("kpad", 4, "c"): 100, ("kpad", 8, "c"): 120}))
    server = tmp_path / "bin" / "vllm"
    server.parent.mkdir()
    server.write_text('#!/bin/sh\nprintf "%s\\n" "$MY_FLAG" "$VLLM_SUFFIX_PAD_UNIFORM" "$@"\n')
    server.chmod(0o755)
    done = subprocess.run(
        ["/bin/sh"], input=render(found, "text"), env={"PATH": f"{server.parent}:/usr/bin:/bin"},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert (done.stdout.splitlines(), done.stderr) == (["a b", "1", *found.launch.argv[1:]], "")


def test_the_module_launcher_names_the_model_by_its_flag(command, tmp_path):
    """Where the vllm command does not start."""
    run_of(tmp_path / "r", {("kpad", 4, "c"): 100})
    _, out, _ = command(tmp_path / "r", "--model", "m", "--launcher", "module")
    _, argv = launched(out)
    assert argv[:5] == [
        "python", "-m", "vllm.entrypoints.openai.api_server", "--model", "meta-llama/Llama-3.1-8B-Instruct",
    ]  # fmt: skip


def test_another_platform_gets_a_line_of_its_own_that_says_so(tmp_path):
    """No GPU memory, no graphs; the module launcher; figures are of the GPU."""
    model = "Llama-3.1-8B-Instruct"
    run_of(tmp_path / "r", {("kpad", 4, "c"): 100}, max_model_len=2048, model=model)
    found = asked_of(tmp_path / "r", model=model, platform="cpu")
    env, argv = launched(render(found, "text"))
    assert argv[0] == "python"
    assert {"--enforce-eager", "2048"} < set(argv)
    assert argv[argv.index("--tensor-parallel-size") + 1] == "1"  # 8 on the GPUs of models.yaml
    assert not {"--gpu-memory-utilization", "--compilation-config"} & set(argv)
    assert "VLLM_CPU_KVCACHE_SPACE" in env
    notes = " ".join(record(found)["notes"])
    assert "the line was not measured" in notes
    assert "figures are of the gpu" in notes
    assert "no CUDA graphs" in notes


def test_a_csv_gets_a_line_from_the_configuration(tmp_path):
    """From models.yaml and arms.yaml, at the best K of one trial each, marked as assumed and not measured."""
    text = HEADER + "Llama-3.1-8B-Instruct,mbpp,kpad,4,100\nLlama-3.1-8B-Instruct,mbpp,kpad,12,101\n"
    found = asked_of(csv_file(tmp_path, text), "mbpp", model="Llama-3.1-8B-Instruct")
    env, argv = launched(render(found, "text"))
    assert (found.k, found.is_established, found.launch.trial_id) == (12, False, None)
    assert argv[2] == "meta-llama/Llama-3.1-8B-Instruct"
    assert '{"method":"suffix","num_speculative_tokens":12}' in argv
    assert env["VLLM_SUFFIX_PAD_UNIFORM"] == "1"
    notes = " ".join(record(found)["notes"])
    assert "the line was not measured" in notes
    assert "one trial, not established" in notes
    assert "no baseline was measured" in render(found, "text")


def test_a_written_line_captures_what_was_measured(tmp_path):
    """Sizes for the concurrency of the rows, under the ceiling of the widest K that was compared."""
    text = "model,corpus,k,output_tok_per_s,concurrency,tensor_parallel\nm,c,4,100,64,2\nm,c,12,90,64,2\n"
    argv = asked_of(csv_file(tmp_path, text)).launch.argv
    graphs = json.loads(argv[argv.index("--compilation-config") + 1])
    assert graphs["cudagraph_capture_sizes"] == capture_sizes(4, 64, 64 * 13)
    assert argv[argv.index("--tensor-parallel-size") + 1] == "2"


def test_a_model_that_is_no_tag_stands_as_it_is_named(tmp_path):
    """With a word about it; nothing in a name ends a comment or a word of the shell."""
    name = "x'; touch /tmp/no\nrm $HOME\x1b[2J"
    found = asked_of(csv_file(tmp_path, f'{HEADER}"{name}",c,kpad,4,100\n'), model=name)
    text = render(found, "text")
    _, argv = launched(text)
    assert argv[2] == name
    assert "no tag of models.yaml" in text
    comments = text.replace(found.launch.command, "").splitlines()
    assert all(line.startswith("#") and line.isprintable() for line in comments if line)


def test_secrets_are_named_not_written():
    """A row has *** for them; a server that ran with *** as its key would be open to all who read this."""
    argv = ["py", "--model", "m", "--api_key", "***", "***", "--seed", "0", "--uds=/s", "--port", "1"]
    line = measured_line(argv, ["MY_KEY=***", "URL=http://***@h", "A=1", "TZ=UTC"])
    assert (line.flags, line.env) == (("--seed", "0"), {"URL": "http://***@h", "A": "1"})
    assert "MY_KEY, --api-key" in line.notes[0]
    assert "login" in line.notes[1]
    assert measured_line(["py", "serve"], []) is None


def test_cpu_rows_get_the_launcher_that_starts_there(tmp_path):
    """vllm-cpu's vllm command fails; asked for all the same, the text says so."""
    run_of(tmp_path / "r", {("kpad", 4, "c"): 100})
    trial = {**ok(4, 1.0, **started("kpad", 4)), "gpu_name": None, "full_share_reason": "no_graphs"}
    write_run(tmp_path / "cpu", ("t1", trial))
    found = asked_of(tmp_path / "cpu")
    assert (found.launch.platform, found.launch.launcher) == ("cpu", "module")
    assert "use --launcher module" in render(asked_of(tmp_path / "cpu", launcher="serve"), "text")


# --- the choice


def test_the_pick_of_measured_ties_is_the_smallest_k(tmp_path):
    """As in the best-K table; its gains are its own, and not those of the fastest."""
    speeds = {
        ("kpad", 4, "c"): (100, 102, 101),
        ("kpad", 8, "c"): (101, 101.5, 101.2),
        ("van", None, "c"): 50,
    }
    found = asked_of(run_of(tmp_path / "r", speeds, n_rounds=3))
    assert (found.k, found.choice.decision.best_k, found.is_established) == (4, 8, False)
    assert found.versus[0].gain.pct == pytest.approx(102, abs=0.1)
    assert record(found)["family"]["ci_low"] is None
    assert "K=4 and not K=8" in render(found, "text")
    assert "K=4, K=8 are tied" in render(found, "text")


def test_a_clear_winner_is_established_with_its_interval(tmp_path):
    """Three rounds, a lead of a fifth."""
    speeds = {("kpad", 4, "c"): (100, 101, 100), ("kpad", 8, "c"): (120, 122, 121)}
    text = render(asked_of(run_of(tmp_path / "r", speeds, n_rounds=3)), "text")
    assert "K=8 is established as the best of these Ks (3 rounds; 95 % interval of K=8:" in " ".join(
        text.replace("#", "").split()
    )
    assert "risk:" not in text.replace("risk of", "")


@pytest.mark.parametrize(("corpora", "k"), [((), 4), (("a=1", "b=5"), 8), (("b",), 8), (("a=5", "b"), 4)])
def test_a_mixture_takes_the_k_that_loses_least(tmp_path, corpora, k):
    """By weighted geometric mean against each corpus's own best; a fast corpus weighs no more."""
    path = csv_file(tmp_path, HEADER + "m,a,kpad,4,100\nm,a,kpad,8,70\nm,b,kpad,4,9000\nm,b,kpad,8,10000\n")
    found = asked_of(path, *corpora)
    assert found.k == k
    if corpora == ("a=1", "b=5"):
        assert found.behind == pytest.approx({4: 100 * (1 - 0.9 ** (5 / 6)), 8: 100 * (1 - 0.7 ** (1 / 6))})
        assert [one.loss_pct for one in found.on_corpora] == pytest.approx([30, 0])


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_losses_of_a_mixture_are_what_they_are_said_to_be(data):
    """Percent by which the weighted geometric mean of the ratios to each corpus's own best is below one."""
    corpora, ks = ["a", "b", "c"], [4, 6, 8]
    weights = {c: data.draw(st.floats(0.1, 9)) for c in corpora}
    speeds = {(c, k): data.draw(st.floats(1, 1e5)) for c in corpora for k in ks}
    rows = pd.DataFrame(
        {
            "status": "ok", "sweep": "s", "run_id": "r", "arm": "kpad", "corpus": c, "k": k, "round": 1,
            "design": None, "output_tok_per_s": speed, "steady_output_tok_per_s": None,
        }
        for (c, k), speed in speeds.items()
    )  # fmt: skip
    losses = mix(rows, "kpad", ks, weights).losses(weights)
    for k in ks:
        ratios = [(speeds[c, k] / max(speeds[c, other] for other in ks)) ** w for c, w in weights.items()]
        expected = 100 * (1 - math.prod(ratios) ** (1 / sum(weights.values())))
        assert losses[k] == pytest.approx(expected, abs=1e-6)


def test_rounds_of_a_mixture_decide_together(tmp_path):
    """Rounds that hold every K on every corpus are the values of one decision, with gains from them."""
    speeds = {
        ("kpad", 4, "a"): (100, 101, 102), ("kpad", 8, "a"): (90, 91, 91),
        ("kpad", 4, "b"): (100, 99, 101), ("kpad", 8, "b"): (85, 86, 84),
        ("suf", 32, "a"): 50, ("suf", 32, "b"): 40,
    }  # fmt: skip
    found = asked_of(run_of(tmp_path / "r", speeds, n_rounds=3, design="fixed(3)"))
    assert (found.k, found.is_established, found.choice.decision.n_rounds) == (4, True, 3)
    assert str(found.choice.design) == "fixed(3)"
    assert found.versus[0].gain.low_pct is not None
    assert found.versus[0].gain.pct == pytest.approx(100 * (math.sqrt(101 * 100 / 2000) - 1), abs=0.5)


def test_a_mixture_rests_on_rounds_that_hold_everything(tmp_path):
    """A round without one K on one corpus is left out, as it is for one corpus."""
    speeds = {("kpad", k, c): (10.0 * k, 11.0 * k, 99.0 * k) for k in (4, 8) for c in "ab"}
    trials = [
        (f"{k}{c}{number}", ok(k, value, corpus=c, round=number))
        for (_, k, c), values in speeds.items()
        for number, value in enumerate(values, 1)
        if (k, c, number) != (4, "b", 3)
    ]
    write_run(tmp_path / "r", *trials)
    found = asked_of(tmp_path / "r")
    assert found.choice.decision.n_rounds == 2
    assert found.speeds == pytest.approx({4: 42, 8: 84})
    assert [one.output_tok_per_s for one in found.on_corpora] == pytest.approx([84, 84])


def test_sentinels_are_no_part_of_it(tmp_path):
    """Neither of the choice, nor of the corpora that there are."""
    sentinel = ok(8, 900.0, corpus="s", is_sentinel=True)
    write_run(tmp_path / "r", ("t1", ok(4, 100.0)), ("t2", ok(8, 90.0)), ("t3", sentinel))
    found = asked_of(tmp_path / "r")
    assert (found.k, list(found.weights)) == (4, ["c"])


@pytest.mark.parametrize(("corpora", "is_established"), [("ab", False), ("a", True)])
def test_a_mixture_that_the_steady_window_contradicts_is_not_established(tmp_path, corpora, is_established):
    """As for one corpus: most of such a pass is its tail. Not known everywhere, it says nothing."""
    trials = [
        (f"{corpus}{k}.{number}", ok(k, 100.0 + 10 * k, corpus=corpus, round=number,
                                     steady_output_tok_per_s=300.0 - 10 * k if corpus in corpora else None))
        for corpus in "ab" for k in (4, 8) for number in (1, 2, 3)
    ]  # fmt: skip
    write_run(tmp_path / "r", *trials)
    found = asked_of(tmp_path / "r")
    assert (found.k, found.choice.decision.is_established) == (8, True)
    assert found.is_established == is_established
    assert any("the steady window says K=4" in note for note in found.notes) != is_established


def test_servers_that_were_not_started_alike_are_told(tmp_path):
    """The line is that of the latest trial; another corpus had another one."""
    one = {("kpad", 4, "a"): 100}
    run_of(tmp_path / "r1", one, run_id="r1")
    other = ok(4, 100.0, corpus="b", **{**started("kpad", 4), "server_env": ["A=1"]})
    write_run(tmp_path / "r2", ("t", other), run_id="r2")
    found = asked_of([tmp_path / "r2", tmp_path / "r1"])
    assert (found.launch.trial_id, found.launch.line.env) == ("t", {"A": "1"})
    assert "not started alike" in " ".join(found.launch.line.notes)
    assert asked_of(tmp_path / "r1").launch.line.notes == ()


def test_the_line_is_that_of_the_latest_trial_that_went_well(tmp_path):
    """Not of an earlier round, and not of a later trial that failed."""
    rounds = [
        (
            f"t{number}",
            {**ok(4, 100.0, round=number, **started("kpad", 4)), "server_env": [f"ROUND={number}"]},
        )
        for number in (1, 2, 3)
    ]
    rounds[2][1].update(status="invalid", reason="stalled")
    write_run(tmp_path / "r", *rounds)
    launch = asked_of(tmp_path / "r").launch
    assert (launch.trial_id, launch.line.env, launch.line.notes) == ("t2", {"ROUND": "2"}, ())


def test_corpora_that_share_no_rounds_establish_nothing(tmp_path):
    """Measured in two runs: means are compared, and the notes say so."""
    one = {("kpad", 4, "a"): (100, 101), ("kpad", 8, "a"): (80, 81)}
    two = {("kpad", 4, "b"): (100, 101), ("kpad", 8, "b"): (80, 81)}
    paths = [run_of(tmp_path / "r1", one, 2, run_id="r1"), run_of(tmp_path / "r2", two, 2, run_id="r2")]
    found = asked_of(paths)
    assert (found.k, found.is_established) == (4, False)
    assert "no two rounds hold every K on every corpus" in found.notes[0]


@pytest.mark.parametrize("corpora", [("a",), ("a", "b")])
def test_a_baseline_that_is_ahead_of_every_k_is_recommended_plainly(tmp_path, corpora):
    """Its line instead, without padding; whether that is established is said."""
    speeds = {(arm, k, c): v for c in corpora for (arm, k), v in
              {("kpad", 4): 80, ("kpad", 8): 90, ("van", None): 92, ("suf", 32): 95}.items()}  # fmt: skip
    found = asked_of(run_of(tmp_path / "r", speeds))
    text = render(found, "text")
    env, argv = launched(text)
    assert (found.arm, found.k, record(found)["is_baseline"]) == ("suf", 32, True)
    assert '{"method":"suffix","num_speculative_tokens":32}' in argv
    assert "VLLM_SUFFIX_PAD_UNIFORM" not in env
    assert "kpad does not pay here: K=8, the best of it, is at -5.3 % over suf@32" in text
    assert "one comparison, so that is not established" in " ".join(text.replace("#", "").split())


@pytest.mark.parametrize(
    ("van", "is_sure"), [((130, 131, 132), True), ((99, 112, 104), False)], ids=["clear", "noisy"]
)
def test_how_sure_it_is_that_padding_does_not_pay(tmp_path, van, is_sure):
    """By the interval of the gain, where several rounds give one."""
    speeds = {("kpad", 4, "c"): (100, 101, 102), ("van", None, "c"): van}
    found = asked_of(run_of(tmp_path / "r", speeds, n_rounds=3))
    text = " ".join(render(found, "text").replace("#", "").split())
    assert found.arm == "van"
    assert ("the interval reaches zero, so that is not established" not in text) == is_sure


def test_a_pick_that_a_baseline_beats_stays_where_its_tied_rival_does_not(tmp_path):
    """A baseline is recommended only where it is ahead of every K."""
    speeds = {
        ("kpad", 4, "c"): (100, 101, 102),
        ("kpad", 8, "c"): (101, 101, 103),
        ("van", None, "c"): (100, 101.5, 102),
    }
    found = asked_of(run_of(tmp_path / "r", speeds, n_rounds=3))
    assert (found.arm, found.k, found.choice.decision.best_k) == ("kpad", 4, 8)
    assert found.versus[0].gain.pct < 0


def test_no_speculation_is_a_recommendation_too(tmp_path):
    """Without any K, and without caveats of suffix decoding."""
    found = asked_of(run_of(tmp_path / "r", {("kpad", 4, "c"): 80, ("van", None, "c"): 95}))
    _, argv = launched(render(found, "text"))
    assert (found.arm, found.k, record(found)["k"]) == ("van", 0, None)
    assert "--speculative-config" not in argv
    assert "num_speculative_tokens_per_batch_size" not in render(found, "text")


def test_a_k_that_is_not_eligible_everywhere_is_left_out_with_its_reasons(tmp_path):
    """Measured on one corpus alone, or with too few FULL graphs on one."""
    rows = [
        (f"{corpus}{k}", ok(k, speed, corpus=corpus, full_share_decode=share))
        for corpus, k, speed, share in [
            ("a", 4, 100.0, 1.0), ("a", 8, 150.0, 0.5), ("a", 12, 150.0, 1.0), ("b", 4, 100.0, 1.0),
            ("b", 8, 150.0, 1.0),
        ]
    ]  # fmt: skip
    write_run(tmp_path / "r", *rows)
    found = asked_of(tmp_path / "r")
    assert found.k == 4
    assert found.left_out == {8: "full_share 0.50 < 0.9 on a", 12: "not measured on b"}
    assert "left out: not measured on b" in render(found, "text")


def test_a_corpus_without_any_k_is_passed_over_unless_it_is_asked_for(tmp_path):
    """It would otherwise stand in the way of all others."""
    failed = {"status": "failed", "reason": "oom", "arm": "kpad", "k": 4, "corpus": "b"}
    write_run(tmp_path / "r", ("t1", ok(4, 100.0, corpus="a")), ("t2", failed))
    found = asked_of(tmp_path / "r")
    assert found.weights == {"a": 1.0}
    assert found.notes[0] == "b is no part of this: K=4: oom"
    with pytest.raises(UsageError, match=r"no K of kpad may be recommended on b: K=4: oom"):
        asked_of(tmp_path / "r", "b")
    with pytest.raises(UsageError, match=r"on all of a, b: K=4: oom on b"):
        asked_of(tmp_path / "r", "a", "b")


def test_every_concurrency_has_its_own_answer(tmp_path):
    """The line is for the highest, or the one that is asked for; all are told."""
    one = [("l1", ok(4, 100.0, concurrency=8)), ("l2", ok(8, 80.0, concurrency=8))]
    two = [("h1", ok(4, 100.0, concurrency=64)), ("h2", ok(8, 180.0, concurrency=64))]
    write_run(tmp_path / "r", *one, *two)
    found = asked_of(tmp_path / "r")
    assert found.k == 8
    assert [(at.concurrency, at.k) for at in found.by_load] == [(8, 4), (64, 8)]
    text = [" ".join(line.lstrip("# ").split()) for line in render(found, "text").splitlines()]
    place = text.index("by requests at a time, each measured; the line below is for 64:")
    assert text[place + 1 : place + 3] == [
        "8 kpad with K=4, not established",
        "64 kpad with K=8, not established",
    ]
    assert asked_of(tmp_path / "r", concurrency=8).k == 4
    with pytest.raises(UsageError, match="there are: 8, 64"):
        asked_of(tmp_path / "r", concurrency=7)


# --- caveats and formats


@pytest.mark.parametrize("text", ["not a controller", "num_speculative_tokens_per_batch_size", "405B model"])
def test_caveats_stand_where_they_apply(tmp_path, text):
    """Fixed settings, vLLM's dynamic K, and the model that is known to be delicate."""
    found = asked_of(csv_file(tmp_path, HEADER + "L-405B,c,kpad,4,1\n"), model="L-405B")
    assert text in " ".join(record(found)["notes"])


def test_json_and_yaml_hold_the_same_data(command, tmp_path):
    """Everything of the text, and the command both whole and in parts."""
    run_of(tmp_path / "r", {("kpad", 4, "c"): 100, ("van", None, "c"): 50})
    args = (tmp_path / "r", "--model", "m", "--format")
    found = json.loads(command(*args, "json")[1])
    assert found == yaml.safe_load(command(*args, "yaml")[1])
    assert launched(found["command"]) == (found["env"], found["argv"])
    assert (found["k"], found["trial_id"]) == (4, "kpad4.c.r1")
    assert found["family"]["gains"] == [
        {"over": "van", "pct": pytest.approx(100), "low_pct": None, "high_pct": None}
    ]


# --- what cannot be


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["--model", "x"], "--model: 'x': no such model in the rows; there are: m"),
        (["--model", "m", "--corpus", "x=2"], "--corpus: 'x': no such corpus in the rows of this model"),
        (["--model", "m", "--corpus", "c", "--corpus", "c=2"], "'c' is there twice"),
        (["--model", "m", "--corpus", "c=0"], "a weight is a positive number, like c=2"),
        (["--model", "m", "--corpus", "c=nan"], "a weight is a positive number"),
        (["--model", "m", "--corpus", "c=many"], "a weight is a positive number"),
        (["--model", "m", "--arm", "van"], "does not speculate"),
        (["--model", "m", "--arm", "kfill"], "no trials of arm kfill; there are: kpad"),
        (["--model", "m", "--launcher", "docker"], "--launcher: 'docker': allowed: serve, module"),
        (["--model", "m", "--platform", "tpu"], "--platform: 'tpu': allowed: gpu, cpu"),
        (["--model", "m", "--format", "html"], "--format: 'html': allowed: text, json, yaml"),
    ],
)
def test_what_is_not_there_is_a_usage_error(command, tmp_path, args, says):
    """Exit 2 and one message with the way out; nothing on stdout."""
    code, out, err = command(csv_file(tmp_path, HEADER + "m,c,kpad,4,100\n"), *args)
    assert (code, out) == (2, "")
    assert says in err
