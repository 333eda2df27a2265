"""Answers that end in a loop: the model repeats itself until max_tokens, and is drafted perfectly.

Pure: token ids in. The stream carries none, so they come from tokenising the end of a text again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kpad_bench.stream import PassTrace, RequestTrace

#: An answer loops when its last WINDOW tokens repeat with a period of at most LONGEST_PERIOD.
WINDOW, LONGEST_PERIOD = 256, 63
#: So they repeat at least this often; asked of a shorter list too, where tokens are long (runs of spaces).
LEAST_REPEATS = WINDOW // (LONGEST_PERIOD + 1)
#: Characters of an answer's end that hold WINDOW tokens of all but the densest texts.
END_CHARS = 2_000
#: Tokens left out at the cut end of a text, where the tokenizer may merge otherwise than in its middle
#: (SmolLM2's, tried on 9 kinds of loops: 4 are missed with 0, none with 2).
EDGE = 8


def period(tokens: Sequence[int]) -> int:
    """The least p > 0 with tokens[i] == tokens[i - p] throughout (Knuth, Morris and Pratt); 0 of nothing."""
    borders = [0] * len(tokens)
    for i in range(1, len(tokens)):
        length = borders[i - 1]
        while length and tokens[i] != tokens[length]:
            length = borders[length - 1]
        borders[i] = length + (tokens[i] == tokens[length])
    return len(tokens) - borders[-1] if tokens else 0


def is_loop(tokens: Sequence[int]) -> bool:
    """The last 256 tokens, or all of fewer, repeat with a period under 64 and at least four times."""
    tail = tokens[-WINDOW:]
    return 0 < period(tail) <= min(LONGEST_PERIOD, len(tail) // LEAST_REPEATS)


def long_answers(trace: PassTrace) -> list[RequestTrace]:
    """The ok requests with enough output tokens to be a loop."""
    return [one for one in trace.requests if one.is_ok and (one.completion_tokens or 0) >= WINDOW]


def text_end(request: RequestTrace) -> str:
    """The end of an answer, to be tokenised; lone surrogates replaced."""
    return request.text[-END_CHARS:].encode("utf-8", "replace").decode()


def loop_share(trace: PassTrace, ends: Mapping[int, Sequence[int]]) -> float | None:
    """Share of the output tokens of ok requests that are in requests which end in a loop.

    ``ends``: request index -> token ids of the end of the answer. None when one of the long answers is
    not in it, or when there are no tokens.
    """
    n_tokens = sum(one.completion_tokens or 0 for one in trace.requests if one.is_ok)
    long = long_answers(trace)
    if not n_tokens or any(one.index not in ends for one in long):
        return None
    n_looped = sum(one.completion_tokens or 0 for one in long if is_loop(ends[one.index]))
    return n_looped / n_tokens
