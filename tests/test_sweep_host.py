"""What a host lacks is told before anything boots, with the way out; CPU sets and attached servers."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import topologies
from conftest import Lab
from fake_vllm.client import Boots, spec

from kpad_bench import corpus, provenance, trial
from kpad_bench.errors import HostError, UsageError
from kpad_bench.topology import Topology


def refused(lab: Lab, error: type[Exception], text: str, **options: Any) -> str:
    """The message with which a sweep is refused; nothing was booted."""
    with pytest.raises(error, match=text) as caught:
        lab.sweep(**options)
    assert lab.boots() == []
    return str(caught.value)


def test_exit_codes_of_the_command(lab: Lab) -> None:
    """0 when all is ok, 3 with a failed trial, 4 with the message alone for a host that is not ready."""
    lab.tell(({"k": 4, "boot": 1}, {"boot_fail": {"log": "MemoryError", "rc": 1}}))
    lab.set(arms=["van", "kpad"])
    assert lab.finish()[0] == 3
    code, errors = lab.finish()
    assert code == 0
    assert "2 trials, 1 of them done before" in errors
    code, errors = lab.finish(KPAD_BENCH_CORPORA=str(lab.path))
    assert code == 4
    assert re.fullmatch(
        r"kpad-bench: corpus humaneval-a is not frozen .* corpora freeze humaneval-a\n", errors
    )


def test_vllm_missing(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """With this Python as the launcher, vLLM has to be in it."""
    lab.set(server={"launcher": ["{python}", "-m", "vllm.entrypoints.openai.api_server"]})
    monkeypatch.setitem(sys.modules, "vllm", None)
    assert "make setup" in refused(lab, HostError, "vLLM is not installed")


def test_plugin_missing(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """vLLM without this package's plugin would run unpadded."""
    lab.set(server={"launcher": ["{python}", "-m", "vllm.entrypoints.openai.api_server"]})
    monkeypatch.setattr(provenance, "installed_vllm", lambda: "0.32.0")
    monkeypatch.setattr(provenance, "is_plugin_installed", lambda: False)
    refused(lab, HostError, "plugin 'kpad' is not installed")


def test_launcher_missing(lab: Lab) -> None:
    """A launcher that is no program is named."""
    lab.set(server={"launcher": ["no-such-vllm", "serve"]})
    refused(lab, HostError, "server.launcher: 'no-such-vllm': no such program")


def test_launcher_that_is_not_executable(lab: Lab) -> None:
    """A file that the system cannot run is the host's fault, not the cell's."""
    path = lab.path / "vllm"
    path.write_text("#!/no/such/interpreter\n")
    path.chmod(0o755)
    lab.set(server={"launcher": [str(path)]})
    refused(lab, HostError, "server.launcher")
    assert lab.living() == {}


def test_model_missing(lab: Lab) -> None:
    """A model folder without a model is told with its path."""
    lab.config["define_models"]["tiny"]["local"] = str(lab.path / "nowhere")
    refused(lab, HostError, f"model tiny: no model in {lab.path}/nowhere")


@pytest.mark.parametrize("who", ["server", "client"])
def test_cpus_missing(lab: Lab, who: str) -> None:
    """CPUs that are not there are named; taskset itself would not complain."""
    lab.set(cpus={who: "0,4000-4001"})
    refused(lab, HostError, f"cpus.{who}: '0,4000-4001': CPUs 4000-4001 are not available")


def test_corpus_not_the_pinned_one(lab: Lab, frozen: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other prompts under a pinned name are refused."""
    other = lab.path / "other"
    shutil.copytree(frozen, other)
    source = lab.path / "rows.jsonl"
    source.write_text(
        "".join(f'{{"task_id": "HumanEval/{n}", "prompt": "def f{n}():\\n"}}\n' for n in range(80))
    )
    corpus.freeze("humaneval-a", source, other)
    monkeypatch.setenv("KPAD_BENCH_CORPORA", str(other))
    refused(lab, HostError, "pinned")


def test_low_disk(lab: Lab) -> None:
    """Too little room is told while there is some."""
    lab.set(thresholds={"low_disk_gb": 1e9})
    assert "make room" in refused(lab, HostError, "GB free")


def test_results_folder_that_is_a_file(lab: Lab) -> None:
    """--out has to be a folder."""
    lab.out.write_text("")
    refused(lab, UsageError, "--out: .*results: not a folder")


def test_port_in_use(lab: Lab) -> None:
    """A taken server.port is told with the way out; the stranger on it is not touched."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        lab.set(server={"port": other.getsockname()[1]})
        assert "another port" in refused(lab, HostError, "is taken")


def test_over_tcp(lab: Lab) -> None:
    """With server.port 0 a free port of the loopback takes the place of the socket."""
    lab.set(server={"port": 0})
    assert lab.sweep() == 0
    (boot,) = lab.boots()
    assert re.search(r"--host 127\.0\.0\.1 --port [1-9]\d+", boot["argv"])


def test_measured_elsewhere(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run of another CPU kind is not gone on with."""
    lab.set(arms=["van", "kpad"])
    lab.tell(({"k": 4}, {"boot_fail": {"log": "MemoryError", "rc": 1}}))
    assert lab.sweep() == 3
    facts = provenance.host_facts()
    monkeypatch.setattr(provenance, "host_facts", lambda: facts | {"cpu_model": "another"})
    with pytest.raises(UsageError, match=r"cpu_model was .*, is 'another'.*--fresh"):
        lab.sweep()


def test_a_foreign_launcher_has_its_own_version(lab: Lab) -> None:
    """Another vLLM than the configured target is a warning on the row, and its run resumes."""
    lab.set(arms=["van", "kpad"], server={"vllm_version": "0.25.1"})
    lab.tell(({"k": 4, "boot": 1}, {"boot_fail": {"log": "MemoryError", "rc": 1}}))
    assert lab.sweep() == 3
    assert lab.sweep() == 0
    assert {row["vllm_version"] for row in lab.rows()} == {"0.32.0"}
    for row in lab.rows():
        assert "vLLM is 0.32.0, the configuration is for 0.25.1" in row["warnings"]


def test_a_relative_launcher(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """A launcher beside the configuration works although servers start in a folder of their own."""
    python, script = lab.config["server"]["launcher"]
    path = lab.path / "serve"
    path.write_text(f'#!/bin/sh\nexec {python} {script} "$@"\n')
    path.chmod(0o755)
    monkeypatch.chdir(lab.path)
    lab.set(server={"launcher": ["./serve"]})
    assert lab.sweep() == 0


def test_a_server_gets_only_what_it_is_told(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """The shell's VLLM variables stay out, a token gets in and is written nowhere of ours."""
    monkeypatch.setenv("VLLM_USE_V2_MODEL_RUNNER", "1")
    monkeypatch.setenv("VLLM_PLUGINS", "other")
    monkeypatch.setenv("SOMETHING_ELSE", "1")
    monkeypatch.setenv("HF_TOKEN", "hf_verysecret")
    lab.set(server={"env": {**lab.config["server"]["env"], "MY_API_KEY": "sk-verysecret"}})
    lab.set(server={"extra_args": ["--api-key", "sk-verysecret"]})
    assert lab.sweep() == 0
    (boot,) = lab.boots()
    assert "VLLM_USE_V2_MODEL_RUNNER" not in boot["env"]
    assert "SOMETHING_ELSE" not in boot["env"]
    assert (boot["env"]["VLLM_PLUGINS"], boot["env"]["TZ"]) == ("kpad", "UTC")
    assert (boot["env"]["HF_TOKEN"], boot["env"]["MY_API_KEY"]) == ("hf_verysecret", "sk-verysecret")
    assert "HF_TOKEN=***" in lab.row()["server_env"]
    assert "verysecret" not in json.dumps(lab.row(), default=str)
    for path in (path for path in lab.out.rglob("*") if path.is_file()):
        assert b"verysecret" not in path.read_bytes(), path


needs_two_cpus = pytest.mark.skipif(
    not {0, 1} <= os.sched_getaffinity(0), reason="needs CPUs 0 and 1 for a set of each side"
)


@needs_two_cpus
@pytest.mark.parametrize("by", ["taskset", "sched_setaffinity"])
def test_cpu_sets(lab: Lab, monkeypatch: pytest.MonkeyPatch, by: str) -> None:
    """The server's set is read back from it; the client's own is another, and is given back."""
    if by == "sched_setaffinity":
        monkeypatch.setenv("PATH", str(lab.path))
    before = os.sched_getaffinity(0)
    lab.set(cpus={"server": "0", "client": "1"})
    assert lab.sweep() == 0
    row = lab.row()
    assert (row["server_cpus"], row["client_cpus"], row["affinity_by"]) == ("0", "1", by)
    assert row["numa"] in ("0", None)
    assert os.sched_getaffinity(0) == before


@needs_two_cpus
def test_a_process_outside_the_set(lab: Lab) -> None:
    """The affinity of every process of the server is read back; one that left its set spoils the number."""
    lab.set(cpus={"server": "0", "client": "1"})
    lab.tell(core_cpus=[1])
    assert lab.sweep() == 3
    row = lab.row()
    assert (row["status"], row["reason"], row["server_cpus"]) == ("invalid", "affinity", "0-1")
    assert re.search(r"pid \d+ \(VLLM::EngineCor\) may run on CPUs 1", row["detail"])


@needs_two_cpus
def test_client_and_server_on_one_core(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two threads of one core are no two sets, although their numbers differ."""
    one_core = Topology.read(topologies.make(lab.path / "sys", [(0, 1)]))
    monkeypatch.setattr(Topology, "read", lambda: one_core)
    lab.set(cpus={"server": "0", "client": "1"})
    refused(lab, HostError, r"cpus\.client: '1': CPUs 1 are SMT siblings of CPUs 0 of cpus\.server")


@needs_two_cpus
def test_a_server_does_not_inherit_the_clients_cpus(lab: Lab) -> None:
    """Without a set of its own the server may use all CPUs."""
    lab.set(cpus={"client": "1"})
    assert lab.sweep() == 0
    assert lab.row()["client_cpus"] == "1"
    assert lab.row()["server_cpus"] != "1"


@pytest.fixture
def boot() -> Iterator[Boots]:
    """Fakes of somebody else."""
    with Boots() as boots:
        yield boots


def test_attach(lab: Lab, boot: Boots) -> None:
    """A running server is measured without a marker or a known cache, and lives on."""
    lab.set(arms=["suf@4"], k=[8])
    fake = boot(*spec(4), on_tcp=True, plugins="")
    host, port = fake.address
    assert lab.sweep(attach=f"http://{host}:{port}/") == 0
    row = lab.row()
    assert (row["status"], row["cache_state"], row["boot_s"], row["server_cpus"]) == ("ok", None, None, None)
    assert row["tokens_reconciled"] is True
    assert row["vllm_version"] == "0.32.0"
    assert lab.boots() == []
    assert fake.ask("/health")[0] == 200


def test_an_attached_server_is_no_sentinel(lab: Lab, boot: Boots) -> None:
    """The sentinel of a configuration is left out: it is another server, and nothing is booted."""
    lab.set(arms=["suf@4"], k=[8], sentinel={"model": "tiny", "corpus": "humaneval-b", "arm": "kpad@8"})
    host, port = boot(*spec(4), on_tcp=True, plugins="").address
    assert lab.sweep(attach=f"http://{host}:{port}") == 0
    assert lab.row()["is_sentinel"] is False


def test_an_attached_run_is_a_run_of_its_own(lab: Lab, boot: Boots) -> None:
    """What was measured on a server of somebody else does not make a booted trial done, nor the other way."""
    assert lab.sweep() == 0
    host, port = boot(on_tcp=True).address
    assert lab.sweep(attach=f"http://{host}:{port}") == 0
    assert lab.row()["server_argv"] == []
    assert len(list(lab.out.glob("lab/*/manifest.json"))) == 2
    assert lab.sweep() == 0
    assert len(lab.boots()) == 1


def test_prompts_that_a_server_has_seen_are_doubted(lab: Lab, boot: Boots) -> None:
    """The same prompts twice on one running server: its prefix cache gives the second pass away."""
    host, port = boot(on_tcp=True).address
    assert lab.sweep(attach=f"http://{host}:{port}") == 0
    assert not [doubt for doubt in lab.row()["warnings"] or [] if "prefix cache" in doubt]
    assert lab.sweep(attach=f"http://{host}:{port}", fresh=True) == 0
    assert [doubt for doubt in lab.row()["warnings"] if "the server has seen these prompts" in doubt]


def test_attach_that_dies(lab: Lab, boot: Boots, monkeypatch: pytest.MonkeyPatch) -> None:
    """An attached server that goes away is a failed row, not the end."""
    monkeypatch.setattr(trial, "DEATH_S", 0.3)
    fake = boot(on_tcp=True, script={"die_after_requests": 4})
    host, port = fake.address
    assert lab.sweep(attach=f"http://me:word@{host}:{port}") == 3
    assert (lab.row()["status"], lab.row()["reason"]) == ("failed", "server_died")
    assert "word" not in str(lab.row())


@pytest.mark.parametrize("name", ["link", "x" * 300, "/proc/self/x"])
def test_a_results_folder_that_cannot_be_made(lab: Lab, name: str) -> None:
    """A link to nowhere, a name too long, a file system that takes no folders: no traceback."""
    (lab.path / "link").symlink_to("/nonexistent/x")
    lab.out = lab.path / name
    refused(lab, HostError, "cannot be written: .* Choose another --out")


def test_attach_refuses(lab: Lab) -> None:
    """Padded arms and plans of several servers cannot be attached (2); nobody there is a host error (4)."""
    lab.set(arms=["kpad"])
    refused(lab, UsageError, "unpadded arm", attach="http://127.0.0.1:9")
    lab.set(arms=["van", "suf"])
    refused(lab, UsageError, "one variant", attach="http://127.0.0.1:9")
    lab.set(arms=["van"])
    refused(lab, HostError, "no server answers", attach="http://127.0.0.1:9")
    refused(
        lab, HostError, r"http://\*\*\*@127.0.0.1:9: no server answers", attach="http://me:word@127.0.0.1:9"
    )
    refused(lab, UsageError, "'localhost:8000': not a URL", attach="localhost:8000")


@pytest.mark.parametrize(
    ("faults", "share"),
    [({"loop_words": 3}, 1.0), ({}, 0.0), ({"loop_words": 3, "no_tokenize": True}, None)],
    ids=["looping", "normal", "not told"],
)
def test_answers_that_loop_are_told(lab: Lab, faults: dict[str, Any], share: float | None) -> None:
    """The server tokenises the ends of long answers again; where it cannot, the share alone is null."""
    lab.tell(tokens=300, **faults)
    lab.set(load={"max_tokens": 300})
    assert lab.sweep() == 0
    row = lab.row()
    assert row["output_tokens"] == 1200
    assert row["loop_share"] == share
    assert row["tokens_reconciled"] is True
