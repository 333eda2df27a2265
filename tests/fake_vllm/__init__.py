"""A fake vLLM 0.32 for integration tests: real processes, real sockets, invented tokens, scripted faults.

Start it like vLLM, by path: ``[sys.executable, ".../tests/fake_vllm/__main__.py", "--model", ...]``, or as
``python -m fake_vllm`` with ``tests`` on the path. It takes vLLM's command line (flags it does not know
are ignored), logs and answers like the real one, and knows nothing of kpad_bench.

What goes wrong is told by a JSON file named in ``FAKE_VLLM_SCRIPT``; see ``script.py`` for its keys.
"""
