"""What may not be loaded: heavy packages for --help, and vLLM or torch in the client process."""

from __future__ import annotations

import subprocess
import sys

HEAVY = ("vllm", "torch", "transformers", "pandas", "datasets", "pyarrow")


def loaded_by(code):
    """Top-level packages that a fresh Python has loaded once it ran the code, even where it exits."""
    report = "import atexit, sys; atexit.register(lambda: print(*sys.modules, file=sys.stderr))\n"
    command = [sys.executable, "-c", report + code]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return {name.split(".")[0] for name in done.stderr.splitlines()[-1].split()}


def test_help_loads_nothing_heavy():
    """kpad-bench --help answers without vLLM, torch, transformers, pandas, datasets and pyarrow."""
    loaded = loaded_by(
        "sys.argv = ['kpad-bench', '--help']\nimport kpad_bench.cli\nsys.exit(kpad_bench.cli.main())"
    )
    assert "kpad_bench" in loaded
    assert loaded.isdisjoint(HEAVY)


def test_client_loads_neither_torch_nor_vllm():
    """The process that drives the load stays small: no torch, no vLLM, no transformers."""
    loaded = loaded_by("import kpad_bench.sweep")
    assert "msgspec" in loaded
    assert loaded.isdisjoint({"aiohttp", "torch", "vllm", "transformers", "datasets", "pandas"})


def test_package_itself_loads_nothing():
    """Importing kpad_bench alone, as vLLM does on its way to the plugin, loads no third-party package."""
    before = loaded_by("pass")
    assert loaded_by("import kpad_bench") - before == {"kpad_bench"}
