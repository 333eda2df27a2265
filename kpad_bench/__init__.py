"""kpad-bench: measure which padded draft length K makes suffix decoding fastest.

Importing this package costs nothing: the vLLM plugin in ``kpad_bench.padding`` is loaded inside
every vLLM process, and ``kpad-bench --help`` has to answer at once. Keep this module free of imports.
"""

__version__ = "0.1.0"
