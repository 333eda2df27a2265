"""Shell completion, in a real bash: commands, options, and names from the configuration files."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from kpad_bench import cli_complete
from kpad_bench.configfile import data_dir, read_yaml

BASH = shutil.which("bash")
PRESS_TAB = """
eval "$(_KPAD_BENCH_COMPLETE=source_bash kpad-bench)"
COMP_WORDS=({words})
COMP_CWORD={place}
_kpad_bench_completion kpad-bench
printf '%s\\n' "${{COMPREPLY[@]}}"
"""


def completed(*words: str, cwd: Path | None = None) -> list[str]:
    """What bash offers for the last of these words."""
    assert BASH, "bash is needed for this test"
    text = PRESS_TAB.format(words=shlex.join(["kpad-bench", *words]), place=len(words))
    env = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run(
        [BASH, "--norc", "-c", text],
        env=env, cwd=cwd, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.split()


def entries(name: str) -> set[str]:
    """Names in a configuration file."""
    return set(read_yaml(data_dir("configs") / f"{name}.yaml")[name])


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (("swe",), ["sweep"]),
        (("corpora", "fr"), ["freeze"]),
        (("sweep", "--dry"), ["--dry-run"]),
        (("sweep", "--arm", "suf"), ["suf", "suf-full"]),
        (("sweep", "--config", "nightly"), ["nightly-dgx-b200"]),
        (("corpora", "freeze", "humaneval-"), ["humaneval-a", "humaneval-b"]),
    ],
    ids=" ".join,
)
def test_bash_offers(words, offered):
    """Tab after the beginning of a word."""
    assert sorted(completed(*words)) == offered


def test_bash_offers_every_model_corpus_and_arm(tmp_path):
    """Tab after an option, from any folder: all names of the configuration files."""
    assert set(completed("sweep", "--model", "", cwd=tmp_path)) == entries("models")
    assert set(completed("verify", "--arm", "", cwd=tmp_path)) == entries("arms")
    assert {"sharegpt", "mbpp", "mix"} <= set(completed("sweep", "--corpus", "", cwd=tmp_path))


def test_a_broken_file_completes_to_nothing(monkeypatch, tmp_path):
    """No traceback between the words that somebody types."""
    (tmp_path / "models.yaml").write_text("models: [")
    monkeypatch.setattr("kpad_bench.configfile.data_dir", lambda name: tmp_path)
    assert cli_complete.models("") == []
    assert cli_complete.arms("") == []
