"""Entry point; works by path and with ``python -m``."""

from __future__ import annotations

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent

if __name__ == "__main__":
    # Started by path, Python puts this folder first; the package is found from the one above.
    if Path(sys.path[0] or ".").resolve() == HERE:
        sys.path[0] = str(HERE.parent)
    from fake_vllm.boot import main

    main(sys.argv[1:])
