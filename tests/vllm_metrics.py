"""A program: what vLLM's own benchmark makes of requests. JSON on stdin, JSON as the last line of stdout.

Apart from the tests, which need not import vLLM. It takes {"duration": s, "outputs": [RequestFuncOutput]}.
"""

from __future__ import annotations

import dataclasses
import json
import sys


def main():
    from vllm.benchmarks.lib.endpoint_request_func import RequestFuncOutput
    from vllm.benchmarks.serve import calculate_metrics

    asked = json.load(sys.stdin)
    outputs = [RequestFuncOutput(**one) for one in asked["outputs"]]
    metrics, _ = calculate_metrics([], outputs, asked["duration"], None, [90, 99], {})
    print(json.dumps(dataclasses.asdict(metrics), default=float))


if __name__ == "__main__":
    main()
