"""Warm-up prompts of one server: once for each corpus, none twice, and a word where there are too few."""

from __future__ import annotations

from pathlib import Path

from conftest import CORPORA, Lab
from hypothesis import given
from hypothesis import strategies as st

from kpad_bench.corpus import open_frozen
from kpad_bench.prompt import Prompt, prompt_sha256
from kpad_bench.warmup import WarmUp


class Corpus:
    """As much of a frozen corpus as is looked at."""

    def __init__(self, name: str, texts: list[str]) -> None:
        self.name = name
        self.warmup = tuple(Prompt(f"{name}/{text}", text, None, prompt_sha256(text)) for text in texts)


def texts(prompts: object) -> list[str]:
    return [prompt.text for prompt in prompts]  # type: ignore[attr-defined]


def test_only_the_first_trial_of_a_corpus_is_warmed_up() -> None:
    """Another corpus gets its own prompts; another server starts anew."""
    one, two = Corpus("one", ["a", "b", "c"]), Corpus("two", ["d", "e"])
    warm_up = WarmUp()
    assert texts(warm_up.take(one, 2)) == ["a", "b"]
    assert texts(warm_up.take(two, 2)) == ["d", "e"]
    assert texts(warm_up.take(one, 2)) == texts(warm_up.take(two, 2)) == []
    assert warm_up.doubts(one) == warm_up.doubts(two) == []
    assert texts(WarmUp().take(one, 2)) == ["a", "b"]


def test_a_mix_gets_what_its_members_have_not_used() -> None:
    """And every row of it says that there were fewer than asked for."""
    member, mix = Corpus("member", ["a", "b"]), Corpus("mix", ["a", "x", "b"])
    warm_up = WarmUp()
    warm_up.take(member, 2)
    assert texts(warm_up.take(mix, 3)) == ["x"]
    warm_up.take(mix, 3)
    assert warm_up.doubts(mix) == ["mix has 1 unused warm-up prompts, 3 were asked for"]
    assert warm_up.doubts(member) == []


@given(
    corpora=st.lists(st.lists(st.sampled_from("abcdefgh"), unique=True), max_size=5),
    order=st.lists(st.integers(0, 4), max_size=12),
    wanted=st.integers(0, 6),
)
def test_no_server_is_warmed_up_with_one_prompt_twice(
    corpora: list[list[str]], order: list[int], wanted: int
) -> None:
    """Whatever the corpora share, and however often and in which order their trials come."""
    named = [Corpus(str(n), shared) for n, shared in enumerate(corpora)]
    warm_up, sent = WarmUp(), []
    for n in order:
        if n < len(named):
            took = texts(warm_up.take(named[n], wanted))
            assert len(took) <= wanted
            sent += took
    assert len(sent) == len(set(sent))


def test_too_few_warm_up_prompts_are_a_warning_in_the_row(lab: Lab, frozen: Path) -> None:
    """Nothing is repeated to make up for them."""
    n = len(open_frozen(CORPORA[0]).warmup)
    lab.set(load={"n_warmup": n + 1}, arms=["van"])
    assert lab.sweep() == 0
    said = f"{CORPORA[0]} has {n} unused warm-up prompts, {n + 1} were asked for"
    assert said in lab.row()["warnings"]
    prompts = [call["prompt"] for call in lab.calls() if call["prompt"]]
    assert len(prompts) == len(set(prompts)) == n + 4
