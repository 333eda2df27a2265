"""Several frozen sets side by side: mixes of them, and no text measured twice in one sweep."""

from __future__ import annotations

from pathlib import Path

import pytest
from corpus_rows import MBPP, ROWS, chats, lines

from kpad_bench import corpus
from kpad_bench.corpus_rules import fold
from kpad_bench.errors import HostError, UsageError


def _declare(folder: Path, name: str = "mix", *, cache_state: str = "cold", **members: int) -> None:
    weights = ", ".join(f"{member}: {weight}" for member, weight in members.items())
    (folder / f"{name}.yaml").write_text(
        f"name: {name}\ndescription: ''\nrule: mix\nprofile: test_v1\nmembers: {{{weights}}}\n"
        f"licence: ''\ncache_state: {cache_state}\n"
    )


@pytest.fixture
def frozen(tmp_path, unpinned) -> Path:
    """A folder with invented HumanEval and MBPP rows frozen, and a mix of one to two of them declared."""
    folder = tmp_path / "frozen"
    corpus.freeze("mbpp", lines(tmp_path / "mbpp.jsonl", MBPP), folder)
    corpus.freeze("humaneval", lines(tmp_path / "he.jsonl", ROWS), folder)
    _declare(unpinned, humaneval=1, mbpp=2)
    return folder


def test_a_mix_shares_no_prompt_with_the_cells_of_its_members(frozen):
    """Measured, warm-up and priming prompts of a mix are measured in no cell of the sweep, and add up."""
    lock = corpus.freeze("mix", out=frozen)
    opened = corpus.open_together(["humaneval", "mix", "mbpp"], frozen)
    members = [opened["humaneval"], opened["mbpp"]]
    mix = opened["mix"]
    assert lock.members == {one.name: one.digest for one in members}
    assert (lock.profile, lock.weights) == ("test_v1", {"humaneval": 1, "mbpp": 2})
    measured = [prompt.prompt_id for prompt in mix.measured]
    assert len(measured) == 3 * len([name for name in measured if name.startswith("humaneval")])
    mixed = {fold(prompt.text) for prompt in mix.measured}
    for member in members:
        others = (*member.measured, *member.warmup, *member.priming)
        assert not mixed & {fold(prompt.text) for prompt in others}
    assert not mixed & {fold(prompt.text) for prompt in (*mix.warmup, *mix.priming)}
    assert lock.read == lock.rows + sum(lock.dropped.values())
    assert corpus.verify(["mix"], frozen) == []
    assert {one.n_elsewhere for one in opened.values()} == {0}


def test_a_mix_without_a_member_is_not_frozen(frozen, unpinned):
    """A missing member is an error that names mixes without it, never renormalised."""
    (frozen / "humaneval.parquet").unlink()
    _declare(unpinned, "mix-other", mbpp=1)
    with pytest.raises(
        HostError, match=r"profile test_v1 needs humaneval frozen .*; mixes without it: mix-other"
    ):
        corpus.freeze("mix", out=frozen)
    _declare(unpinned, mbpp=2000)
    with pytest.raises(HostError, match="too few prompts for one round of profile test_v1; there are mbpp"):
        corpus.freeze("mix", out=frozen)
    for options in ({"source": frozen}, {"lenient": True}):
        with pytest.raises(UsageError, match=r"takes no --source, --tokenizer or --lenient"):
            corpus.freeze("mix", out=frozen, **options)


def test_a_frozen_mix_is_refused_once_a_member_is_gone_or_another(frozen, tmp_path):
    """A mix is what its members were; removing or refreezing one of them makes it stale."""
    corpus.freeze("mix", out=frozen)
    corpus.freeze("mbpp", lines(tmp_path / "fewer.jsonl", MBPP[:80]), frozen)
    with pytest.raises(HostError, match=r"made of mbpp with digest \w{64}, which is frozen with digest"):
        corpus.open_frozen("mix", frozen)
    (frozen / "mbpp.parquet").unlink()
    with pytest.raises(HostError, match=r"corpus mix: made of mbpp .*not frozen any more; freeze mbpp again"):
        corpus.open_frozen("mix", frozen)


def test_other_weights_under_the_same_profile_are_another_mix(frozen, unpinned):
    """A profile whose weights were changed is stale."""
    corpus.freeze("mix", out=frozen)
    _declare(unpinned, humaneval=2, mbpp=1)
    with pytest.raises(HostError, match=r"another manifest .*weights"):
        corpus.open_frozen("mix", frozen)


def _two_chats(tmp_path: Path, frozen: Path) -> tuple[set[str], set[str]]:
    """ShareGPT and WildChat rows; half of the texts of each are in both, written a little differently."""
    ours = [f"Why {n}?" for n in range(80)]
    theirs = [f"  why\n{n}? " for n in range(40, 120)]
    corpus.freeze("sharegpt", lines(tmp_path / "s.jsonl", chats(ours)), frozen)
    corpus.freeze("wildchat", lines(tmp_path / "w.jsonl", chats(theirs)), frozen)
    return {fold(text) for text in ours}, {fold(text) for text in theirs}


def test_a_text_of_two_corpora_is_measured_in_one_of_them(tmp_path, unpinned):
    """In one sweep each text is measured once, whichever way the corpora are named, and digests say so."""
    frozen = tmp_path / "frozen"
    _, theirs = _two_chats(tmp_path, frozen)
    alone = {name: corpus.open_frozen(name, frozen) for name in ("sharegpt", "wildchat")}
    opened = corpus.open_together(["sharegpt", "wildchat"], frozen)
    folded = {name: {fold(one.text) for one in opened[name].measured} for name in opened}
    both = {fold(one.text) for one in alone["sharegpt"].measured} & theirs
    assert both
    assert not folded["sharegpt"] & folded["wildchat"]
    assert folded["sharegpt"] | folded["wildchat"] == {
        fold(one.text) for name in alone for one in alone[name].measured
    }
    assert sum(one.n_elsewhere for one in opened.values()) == len(both)
    assert all(opened[name].n_elsewhere and opened[name].digest != alone[name].digest for name in opened)
    assert opened["sharegpt"].warmup == alone["sharegpt"].warmup
    assert corpus.open_together(["wildchat", "sharegpt"], frozen) == opened
    assert corpus.planned_digests(["sharegpt", "wildchat", "mbpp"], frozen) == {
        "sharegpt": opened["sharegpt"].digest,
        "wildchat": opened["wildchat"].digest,
        "mbpp": None,
    }
    assert corpus.planned_digests(["sharegpt"], frozen) == {"sharegpt": alone["sharegpt"].digest}


def test_a_text_of_two_members_is_in_a_mix_once(tmp_path, unpinned):
    """Duplicates across members are removed before the weights are applied, and counted."""
    frozen = tmp_path / "frozen"
    _two_chats(tmp_path, frozen)
    _declare(unpinned, sharegpt=1, wildchat=1)
    lock = corpus.freeze("mix", out=frozen)
    texts = [fold(one.prompt.text) for one in corpus.open_frozen("mix", frozen).prompts]
    assert len(set(texts)) == len(texts)
    assert lock.dropped["duplicate"] > 0
    assert lock.read == lock.rows + sum(lock.dropped.values())


@pytest.mark.parametrize("state", ["primed", "warm"])
def test_a_twin_of_a_mix_has_its_prompts(frozen, unpinned, state):
    """It is there to be compared with the mix, so it keeps the same prompts in the same sweep."""
    _declare(unpinned, "twin", cache_state=state, humaneval=1, mbpp=2)
    for name in ("mix", "twin"):
        corpus.freeze(name, out=frozen)
    opened = corpus.open_together(["mix", "twin"], frozen)
    assert opened["mix"].measured == opened["twin"].measured
    assert opened["twin"].n_elsewhere == 0


def test_a_mix_is_as_truncated_as_its_members(tmp_path, frozen):
    """A member that was frozen from a cut file makes the mix one of a cut file."""
    cut = tmp_path / "cut.jsonl"
    cut.write_bytes((tmp_path / "mbpp.jsonl").read_bytes()[:-40])
    corpus.freeze("mbpp", cut, frozen, lenient=True)
    lock = corpus.freeze("mix", out=frozen)
    assert (lock.truncated, lock.truncated_after_rows) == (True, 89)
