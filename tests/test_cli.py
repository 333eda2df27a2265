"""The command line through its entry point: exit codes, and what goes to stdout and stderr."""

from __future__ import annotations

import errno
import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from kpad_bench import cli, cli_tools, models, provenance, server, sweep
from kpad_bench.configfile import data_dir, find_config
from kpad_bench.corpus import corpora_dir

COMMANDS = [
    ["sweep"],
    ["reduce"],
    ["recommend"],
    ["compare"],
    ["models", "fetch"],
    ["corpora", "list"],
    ["corpora", "freeze"],
    ["corpora", "verify"],
]
CSV = "model,corpus,k,output_tok_per_s\ntiny,mbpp,4,10.5\ntiny,mbpp,8,12.25\n"
#: Runs the command line in a Python where some packages do not exist.
WITHOUT = """
import sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {blocked!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Absent())
sys.argv = ["kpad-bench", *{args!r}]
from kpad_bench.cli import main
main()
"""


@pytest.fixture(autouse=True)
def _own_folders(tmp_path, monkeypatch):
    """No test sees the user's frozen prompts or models, or writes into the checkout."""
    monkeypatch.setenv("KPAD_BENCH_CORPORA", str(tmp_path / "corpora"))
    monkeypatch.setenv("KPAD_BENCH_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def run(monkeypatch, capsys):
    """Runs the command; gives (exit code, stdout, stderr)."""

    def command(*args) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["kpad-bench", *map(str, args)])
        with pytest.raises(SystemExit) as caught:
            cli.main()
        captured = capsys.readouterr()
        code = caught.value.code
        return 0 if code is None else code, captured.out, captured.err

    return command


@pytest.fixture
def rows(tmp_path) -> Path:
    """A local file in the schema of sharegpt, with invented rows."""
    path = tmp_path / "rows.jsonl"
    turns = [{"from": "human", "value": f"What is {n} and {n} more?"} for n in range(60)]
    lines = [json.dumps({"id": str(n), "conversations": [turn]}) for n, turn in enumerate(turns)]
    path.write_text("\n".join(lines))
    return path


def small(tmp_path, **changes) -> Path:
    """A configuration of one local model that is there, on the CPU."""
    folder = tmp_path / "tiny"
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text("{}")
    data = {
        "sweep": "small", "models": [str(folder)], "corpora": ["sharegpt"], "arms": ["van", "kpad"], "k": [4],
        "load": {"concurrency": 1, "n_prompts": 2, "n_warmup": 1, "max_tokens": 8, "temperature": 0},
        "server": {"vllm_version": "0.32.0", "platform": "cpu", "max_model_len": 512},
        "thresholds": {"low_disk_gb": 0.0},
    }  # fmt: skip
    path = tmp_path / "small.yaml"
    path.write_text(yaml.safe_dump({**data, **changes}))
    return path


# --- help and version


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_every_command_s_help_has_an_example(run, command):
    """--help ends in 0, on stdout, with a line to copy."""
    code, out, err = run(*command, "--help")
    assert (code, err) == (0, "")
    assert f"Example: kpad-bench {' '.join(command)}" in " ".join(out.split())


def test_help_lists_the_commands(run):
    """The first page names all of them."""
    code, out, _ = run("--help")
    assert code == 0
    assert all(name in out for name in ("sweep", "reduce", "models", "corpora"))


def test_the_version_is_one_line(run):
    """--version on stdout."""
    code, out, err = run("--version")
    assert (code, len(out.splitlines()), err) == (0, 1, "")


@pytest.mark.parametrize("args", [["nonsense"], ["sweep", "--nonsense"], ["reduce"], ["models", "fetch"]])
def test_what_is_no_command_is_a_usage_error(run, args):
    """Unknown commands, unknown options and missing arguments end in 2, told on stderr."""
    code, out, err = run(*args)
    assert (code, out) == (2, "")
    assert err


# --- sweep: the dry run


def test_the_night_s_plan_is_told_without_vllm():
    """462 cells a round, in a Python that can import neither vLLM, torch nor the hub's client."""
    args = ["sweep", "--config", "nightly-dgx-b200", "--dry-run"]
    code = WITHOUT.format(
        blocked={"vllm", "torch", "transformers", "datasets", "arctic_inference"}, args=args
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "462 cells" in done.stdout
    assert done.stdout.count("(corpus not frozen: digest null)") == 462


def test_the_plan_as_json_is_exactly_the_data(run):
    """Cells with their ids, loads and digests; boots, trials and an estimate; the order of the boots."""
    code, out, err = run(
        "sweep", "--config", "nightly-dgx-b200", "--rounds", 1, "--dry-run", "--format", "json"
    )
    plan = json.loads(out)
    assert (code, err) == (0, "")
    assert (len(plan["cells"]), plan["boots"], plan["trials"], plan["rounds"]) == (462, 66, 462, 1)
    assert len({cell["cell_id"] for cell in plan["cells"]}) == 462
    assert all(cell["corpus_digest"] is None and not cell["is_corpus_frozen"] for cell in plan["cells"])
    assert plan["boot_estimate_s"] > 0
    assert [len(boot["trials"]) for boot in plan["order"] if not boot["is_sentinel"]] == [7] * 66
    assert plan["sentinel"] == {"trials": 3, "boots": 3, "boot_estimate_s": 360}
    assert [boot["is_sentinel"] for boot in plan["order"]].count(True) == 3


def test_the_plan_of_adaptive_rounds_says_the_least_and_the_most(run):
    """In words and as data; sentinels are counted apart."""
    args = ("sweep", "--config", "nightly-dgx-b200", "--rounds", "3..8", "--dry-run")
    _, text, _ = run(*args)
    assert "462 cells, 3 to 8 rounds: between 1386 and 3696 trials in between 198 and 528 boots" in text
    assert "; and 3 sentinel trials in boots of their own" in text
    plan = json.loads(run(*args, "--format", "json")[1])
    assert (len(plan["cells"]), plan["rounds"], plan["trials"], plan["boots"]) == (462, 8, 3696, 528)
    assert plan["boot_estimate_s"] / 8 == plan["least"].pop("boot_estimate_s") / 3
    assert plan["least"] == {"rounds": 3, "trials": 1386, "boots": 198}
    assert plan["sentinel"]["trials"] == 3


def test_options_of_the_dry_run_are_the_sweep_s(run):
    """Models, corpora, arms, Ks and the load can be given on the command line."""
    code, out, _ = run(
        "sweep", "--model", "org/M", "--corpus", "mbpp",
        "--corpus", "mix", "--arm", "kpad", "--arm", "suf@12",
        "--k", "4,6", "--rounds", 2, "--isolation", "reset", "--concurrency", 3, "--max-tokens", 7,
        "--n-prompts", 5, "--dry-run", "--format", "json",
    )  # fmt: skip
    plan = json.loads(out)
    assert code == 0
    found = {(cell["model"], cell["corpus"], cell["arm"], cell["k"]) for cell in plan["cells"]}
    arms = [("kpad", 4), ("kpad", 6), ("suf", 12)]
    assert found == {("org/M", corpus, *arm) for corpus in ("mbpp", "mix") for arm in arms}
    assert (plan["boots"], plan["isolation"]) == (6, "reset")
    load = plan["cells"][0]["load"]
    assert (load["concurrency"], load["max_tokens"], load["n_prompts"]) == (3, 7, 5)


def test_one_cell_s_command_line_and_environment(run):
    """--cell alone is a dry run; the whole id or its beginning; the CPU set and the padding are in it."""
    _, out, _ = run("sweep", "--config", "nightly-dgx-b200", "--dry-run", "--format", "json")
    cell_id = next(
        c["cell_id"] for c in json.loads(out)["cells"] if c["cell_id"].startswith("DeepSeek-R1.mix.kpad@8")
    )
    code, out, err = run("sweep", "--config", "nightly-dgx-b200", "--cell", cell_id, "--format", "json")
    cell = json.loads(out)
    assert (code, err, cell["cell_id"], cell["k"]) == (0, "", cell_id, 8)
    assert cell["argv"][:3] == ["taskset", "-c", "0-47,56-103"]
    assert '{"method":"suffix","num_speculative_tokens":8}' in cell["argv"]
    assert {"VLLM_PLUGINS=kpad", "VLLM_SUFFIX_PAD_UNIFORM=1", "ARCTIC_INFERENCE_ENABLED=0"} <= set(
        cell["env"]
    )
    code, text, _ = run("sweep", "--config", "nightly-dgx-b200", "--cell", "DeepSeek-R1.mix.kpad@8")
    assert code == 0
    assert cell_id in text
    assert "VLLM_SUFFIX_PAD_UNIFORM=1" in text


def test_a_secret_on_a_command_line_is_not_shown(run, tmp_path):
    """A key among a configuration's arguments stays out of the dry run, as it stays out of rows."""
    text = find_config("quickstart").read_text().replace('["--enforce-eager"]', '["--api-key", "abc123"]')
    (tmp_path / "keyed.yaml").write_text(text)
    code, out, _ = run(
        "sweep", "--config", str(tmp_path / "keyed.yaml"), "--cell", "smollm2-135m.humaneval-a.van"
    )
    assert code == 0
    assert "--api-key" in out
    assert "abc123" not in out


def test_a_doubt_about_a_cell_is_shown_with_it(run):
    """suf at K=32 does not draft 32 tokens."""
    _, text, _ = run("sweep", "--config", "nightly-dgx-b200", "--cell", "DeepSeek-R1.mix.suf@32")
    assert "warning: k 32: a tree of depth 24" in text


@pytest.mark.parametrize(
    ("cell", "said"), [("absent", "no such cell"), ("DeepSeek-R1.mix.", "cells begin like this")]
)
def test_an_unknown_cell_is_a_usage_error(run, cell, said):
    """Told with some that there are."""
    code, out, err = run("sweep", "--config", "nightly-dgx-b200", "--cell", cell)
    assert (code, out) == (2, "")
    assert said in err
    assert "for example" in err


def test_a_frozen_corpus_plans_with_its_digest(run, rows):
    """And is no longer marked."""
    args = ["sweep", "--corpus", "sharegpt", "--dry-run"]
    _, before, _ = run(*args)
    assert "not frozen, a real sweep refuses them: sharegpt" in before
    run("corpora", "freeze", "sharegpt", "--source", rows)
    _, after, _ = run(*args)
    assert "not frozen" not in after
    _, out, _ = run(*args, "--format", "json")
    assert len({cell["corpus_digest"] for cell in json.loads(out)["cells"]} - {None}) == 1


# --- sweep: what is refused before anything boots


@pytest.mark.parametrize(
    ("args", "code", "said"),
    [
        (["--k", ""], 2, "--k: '': K must be a positive integer"),
        (["--k", "4,x"], 2, "--k: 'x': K must be a positive integer"),
        (["--k", "4,0"], 2, "--k: '0': K must be a positive integer"),
        (["--k", "4,4"], 2, "4 is there twice"),
        (["--arm", "pad"], 2, "'pad': no such arm; allowed: kfill"),
        (["--arm", "van@4"], 2, "van does not speculate"),
        (["--model", "Qwen9"], 2, "'Qwen9': no such model; allowed: DeepSeek-R1"),
        (["--model", "./absent"], 4, "model folder ./absent: no config.json there"),
        (["--corpus", "absent"], 2, "'absent': no such corpus; allowed: humaneval"),
        (["--config", "absent"], 2, "absent: cannot be read"),
        (["--format", "csv"], 2, "--format: 'csv': allowed: table, json"),
        (["--progress", "loud"], 2, "--progress: 'loud': allowed: auto, rich, plain, none"),
        (["--isolation", "none"], 2, "isolation: 'none': allowed: 'boot', 'reset' or 'resident'"),
        (["--rounds", "0"], 2, "rounds: '0': allowed: 1 to 1000 rounds"),
        (["--rounds", "8..3"], 2, "rounds: '8..3': the least comes first: write 3..8"),
        (["--rounds", "1..2"], 2, "rounds: '1..2': the least must be 2 or more"),
        (["--rounds", "3.."], 2, "rounds: '3..': allowed: a number of rounds such as 3, or the least"),
        (["--concurrency", "-1"], 2, "load.concurrency: -1: must be above 0"),
        (["--max-tokens", "99999"], 2, "leaves no room for a prompt"),
    ],
)
@pytest.mark.parametrize("how", [["--dry-run"], []])
def test_bad_input_ends_before_anything_boots(run, monkeypatch, args, code, said, how):
    """One message on stderr, nothing on stdout, the same for a dry run and a real one."""
    monkeypatch.setattr(server, "boot_all", lambda *_: pytest.fail("a server was started"))
    monkeypatch.setattr(
        sweep, "open_together", lambda names: {name: _frozen_or_unknown(name) for name in names}
    )
    found, out, err = run("sweep", *args, *how)
    assert (found, out) == (code, "")
    assert said in err
    assert "Traceback" not in err


def _frozen_or_unknown(name):
    """Every shipped corpus is frozen; others raise as they do."""
    from kpad_bench.corpus import load_manifest

    load_manifest(name)
    return type("Frozen", (), {"digest": "d"})()


def test_an_unfrozen_corpus_is_the_host_s_fault(run, tmp_path):
    """A real sweep needs it (exit 4) and says how to get it."""
    code, out, err = run("sweep", "--config", small(tmp_path))
    assert (code, out) == (4, "")
    assert "corpora freeze sharegpt" in err


def test_without_vllm_a_sweep_says_how_to_install_it(run, tmp_path, rows, monkeypatch):
    """Exit 4, and no run folder is left."""
    run("corpora", "freeze", "sharegpt", "--source", rows)
    monkeypatch.setattr(provenance, "installed_vllm", lambda: None)
    code, out, err = run("sweep", "--config", small(tmp_path), "--out", tmp_path / "out")
    assert (code, out) == (4, "")
    assert "vLLM is not installed here; run `make setup`" in err
    assert not (tmp_path / "out").exists()


def test_without_the_plugin_a_sweep_says_how_to_install_it(run, tmp_path, rows, monkeypatch):
    """vLLM alone would run unpadded."""
    run("corpora", "freeze", "sharegpt", "--source", rows)
    monkeypatch.setattr(provenance, "installed_vllm", lambda: "0.32.0")
    monkeypatch.setattr(provenance, "is_plugin_installed", lambda: False)
    code, _, err = run("sweep", "--config", small(tmp_path))
    assert code == 4
    assert "plugin 'kpad' is not installed" in err


# --- how a command ends


@pytest.mark.parametrize("code", [0, 3])
def test_a_sweep_s_exit_code_is_the_command_s(run, tmp_path, monkeypatch, code):
    """3 when some trials failed; the options reach the sweep."""
    given = []
    monkeypatch.setattr(
        sweep, "run_sweep", lambda resolved, options: given.append((resolved, options)) or code
    )
    found, out, _ = run("sweep", "--config", small(tmp_path), "--out", "o", "--fresh", "--progress", "none")
    assert (found, out) == (code, "")
    ((resolved, options),) = given
    assert resolved.config.sweep == "small"
    assert (options.out, options.fresh, options.progress, options.save_text) == (
        Path("o"),
        True,
        "none",
        False,
    )


def test_ctrl_c_ends_in_130_without_a_traceback(run, tmp_path, monkeypatch):
    """Whoever pressed it knows why."""

    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(sweep, "run_sweep", interrupted)
    code, out, err = run("sweep", "--config", small(tmp_path))
    assert (code, out) == (130, "")
    assert "Traceback" not in err


def test_a_bug_keeps_its_traceback_and_ends_in_1(tmp_path):
    """Nothing swallows what nobody expected."""
    code = "import sys; from kpad_bench import cli, models; models.fetch = lambda *_: 1 // 0; "
    code += "sys.argv = ['kpad-bench', 'models', 'fetch', 'smollm2-135m']; cli.main()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert "Traceback" in done.stderr
    assert done.stderr.rstrip().endswith("ZeroDivisionError: integer division or modulo by zero")


def test_a_reader_that_has_left_is_no_error():
    """sweep --dry-run | head shows no traceback; the exit code is a shell's for a broken pipe."""
    command = [sys.executable, "-m", "kpad_bench.cli", "sweep", "--config", "nightly-dgx-b200", "--dry-run"]
    read_end, write_end = os.pipe()
    os.close(read_end)
    try:
        done = subprocess.run(command, stdout=write_end, stderr=subprocess.PIPE, text=True, check=False)
    finally:
        os.close(write_end)
    assert (done.returncode, done.stderr) == (141, "")


CSV = "model,corpus,k,output_tok_per_s\nmödel,humaneval,4,10\nmödel,humaneval,8,11\n"


@pytest.mark.parametrize(
    ("redirect", "code", "said"),
    [
        (
            ">&-",
            4,
            "kpad-bench: stdout is closed, and the result goes there; open it, or redirect it to a file",
        ),
        (">/dev/full", 4, "kpad-bench: stdout: No space left on device; the result is not whole"),
        (">/dev/null 2>&-", 0, ""),
        (">/dev/null <&-", 0, "1. one trial, not established"),
    ],
)
def test_streams_that_are_closed_or_full(tmp_path, redirect, code, said):
    """No traceback; a result that went nowhere is not a success."""
    path = tmp_path / "rows.csv"
    path.write_text(CSV, encoding="utf-8")
    command = f"'{sys.executable}' -m kpad_bench.cli reduce '{path}' --format csv {redirect}"
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (code, "")
    assert done.stderr.startswith(said)
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("output_format", ["table", "md", "csv", "json"])
def test_output_is_utf8_in_every_locale(tmp_path, output_format):
    """A locale of ASCII changes nothing of the data."""
    path = tmp_path / "rows.csv"
    path.write_text(CSV, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "kpad_bench.cli", "reduce", str(path), "--format", output_format],
        capture_output=True, check=False,
        env={**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
    )  # fmt: skip
    assert done.returncode == 0
    assert "mödel" in done.stdout.decode("utf-8")


# --- reduce


def test_doubts_about_data_go_to_stderr(run, tmp_path):
    """csv, json and parquet are exactly the data, so their footnotes are told beside them."""
    (tmp_path / "rows.csv").write_text(CSV, encoding="utf-8")
    for output_format in ("csv", "json"):
        _, out, err = run("reduce", "rows.csv", "--format", output_format)
        assert "one trial, not established" in err
        assert "one trial, not established" not in out
    _, out, err = run("reduce", "rows.csv")
    assert ("one trial, not established" in " ".join(out.split()), err) == (True, "")


def test_no_candidate_at_all_is_refused(run, tmp_path):
    """An empty table would look like an answer."""
    (tmp_path / "rows.csv").write_text(CSV, encoding="utf-8")
    code, out, err = run("reduce", "rows.csv", "--candidates", " , ")
    assert (code, out) == (2, "")
    assert "name at least one arm, like kpad" in err


def test_reduce_writes_exactly_the_data(run, tmp_path):
    """csv and json on stdout parse as they are; people's messages go to stderr."""
    (tmp_path / "rows.csv").write_text(CSV)
    code, out, _ = run("reduce", "rows.csv", "--format", "csv")
    assert code == 0
    head, row = out.splitlines()
    assert dict(zip(head.split(","), row.split(","), strict=False))["best_k"] == "8"
    code, out, _ = run("reduce", "rows.csv", "--format", "json")
    (row,) = json.loads(out)
    assert (row["best_k"], row["established"]) == (8, False)


@pytest.mark.parametrize("output_format", ["table", "md", "csv", "json", "parquet"])
def test_reduce_writes_every_format_to_a_file(run, tmp_path, output_format):
    """With --out nothing is on stdout."""
    (tmp_path / "rows.csv").write_text(CSV)
    code, out, _ = run("reduce", "rows.csv", "--format", output_format, "--out", "best")
    assert (code, out) == (0, "")
    assert (tmp_path / "best").stat().st_size > 0


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["rows.csv", "--format", "xml"], "--format: 'xml': allowed: table, md, csv, json, parquet"),
        (["absent.csv"], "absent.csv"),
        (["rows.csv", "--out", "absent/best"], "--out: absent/best: cannot be written"),
    ],
)
def test_reduce_refuses_what_it_cannot_do(run, tmp_path, args, said):
    """Exit 2, nothing on stdout."""
    (tmp_path / "rows.csv").write_text(CSV)
    code, out, err = run("reduce", *args)
    assert (code, out) == (2, "")
    assert said in err


def test_binary_data_is_not_written_to_a_terminal(run, tmp_path, monkeypatch):
    """parquet needs a file or a redirection."""
    (tmp_path / "rows.csv").write_text(CSV)
    monkeypatch.setattr(cli.sys.stdout, "isatty", lambda: True, raising=False)
    code, _, err = run("reduce", "rows.csv", "--format", "parquet")
    assert code == 2
    assert "--format parquet is binary" in err


# --- models and corpora


def test_fetching_prints_the_folder_alone(run, monkeypatch):
    """A script can take stdout as a path."""
    monkeypatch.setattr(models, "fetch", lambda tag, say: say("downloading") or Path("/cache") / tag)
    assert run("models", "fetch", "smollm2-135m") == (0, "/cache/smollm2-135m\n", "downloading\n")


def test_fetching_an_unknown_model_is_a_usage_error(run):
    """With the ones that can be fetched."""
    code, out, err = run("models", "fetch", "big")
    assert (code, out) == (2, "")
    assert "allowed: smollm2-135m" in err


def test_a_corpus_is_frozen_listed_and_verified(run, rows):
    """Its lock on stdout; listed as frozen; verified until a byte of it changes (exit 5)."""
    code, out, err = run("corpora", "freeze", "sharegpt", "--source", rows)
    lock = json.loads(out)
    assert (code, lock["name"]) == (0, "sharegpt")
    assert "warning: " in err  # invented rows are not the pinned set
    _, out, _ = run("corpora", "list", "--format", "json")
    (row,) = [row for row in json.loads(out) if row["name"] == "sharegpt"]
    assert lock["digest"] in row.values()
    code, out, err = run("corpora", "verify")
    assert (code, out, err) == (0, "", "all digests match\n")
    path = next(path for path in corpora_dir().rglob("*.parquet") if "sharegpt" in str(path))
    path.write_bytes(b"not what was frozen")
    code, out, err = run("corpora", "verify", "sharegpt")
    assert (code, out) == (5, "")
    assert "sharegpt" in err


def test_freezing_the_same_rows_again_gives_the_same_lock(run, rows, tmp_path):
    """Wherever it is written."""
    _, first, _ = run("corpora", "freeze", "sharegpt", "--source", rows)
    code, second, _ = run("corpora", "freeze", "sharegpt", "--source", rows, "--out", tmp_path / "there")
    assert code == 0
    assert json.loads(first)["digest"] == json.loads(second)["digest"]


def test_every_corpus_is_listed(run):
    """As a table for people and as JSON for scripts, frozen or not."""
    names = {path.stem for path in data_dir("corpora").glob("*.yaml")}
    code, out, err = run("corpora", "list", "--format", "json")
    assert (code, err) == (0, "")
    assert {row["name"] for row in json.loads(out)} == names
    _, table, _ = run("corpora", "list")
    assert {line.split()[0] for line in table.splitlines()[1:]} == names


@pytest.mark.parametrize(
    ("args", "code", "said"),
    [
        (["list", "--format", "xml"], 2, "--format: 'xml': allowed: table, json"),
        (["freeze", "absent"], 2, "'absent': no such corpus; allowed: humaneval"),
        (["freeze", "mix", "--source", "x"], 2, "takes no --source"),
        (["freeze", "mbpp", "--source", "absent.jsonl"], None, "absent.jsonl"),
        (["verify", "absent"], 2, "'absent': no such corpus; allowed: humaneval"),
    ],
)
def test_corpora_refuse_what_is_not_there(run, args, code, said):
    """Names and files are told; nothing is written."""
    found, out, err = run("corpora", *args)
    assert out == ""
    assert said in err
    assert found == code or (code is None and found in {2, 4})
    assert not corpora_dir().exists() or not any(corpora_dir().iterdir())


def test_writing_to_a_gone_reader_is_quiet_in_process(monkeypatch, tmp_path):
    """The rest of the buffer goes to nowhere, so that the interpreter's last flush cannot fail."""

    class Gone(io.StringIO):
        def flush(self):
            raise BrokenPipeError(errno.EPIPE, "Broken pipe")

        def fileno(self):
            return self.where

    gone = Gone()
    gone.where = os.open(tmp_path / "stdout", os.O_CREAT | os.O_WRONLY)
    monkeypatch.setattr(sys, "stdout", gone)
    with pytest.raises(cli.typer.Exit) as caught:
        cli_tools.emit("data")
    assert caught.value.exit_code == cli_tools.EXIT_READER_GONE
    os.write(gone.where, b"more")
    os.close(gone.where)
    assert (tmp_path / "stdout").read_bytes() == b""
