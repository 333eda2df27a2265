"""What a sweep says of its corpora: in rows, in notes, and by refusing."""

from __future__ import annotations

import pytest
from conftest import Lab
from corpus_rows import MBPP, chats, lines

from kpad_bench import corpus
from kpad_bench.errors import HostError
from kpad_bench.prompt import Prompt, assert_distinct


@pytest.fixture
def home(lab, tmp_path, unpinned, monkeypatch) -> Lab:
    """A lab whose frozen sets are empty and its own."""
    monkeypatch.setenv("KPAD_BENCH_CORPORA", str(tmp_path / "sets"))
    return lab


def test_rows_of_a_set_from_a_cut_file_say_so(home, tmp_path):
    """Column and warning travel with the number; a row of a whole set says that it is whole."""
    source = lines(tmp_path / "mbpp.jsonl", MBPP)
    for is_cut in (True, False):
        if is_cut:
            cut = tmp_path / "cut.jsonl"
            cut.write_bytes(source.read_bytes()[:-40])
        corpus.freeze("mbpp", cut if is_cut else source, lenient=is_cut)
        assert home.set(corpora=["mbpp"]).sweep(fresh=True) == 0
        row = home.row()
        assert row["corpus_truncated"] is is_cut
        warned = [text for text in row["warnings"] if "from the 89 whole rows of a file that was cut" in text]
        assert len(warned) == is_cut


def test_two_corpora_with_common_texts_send_each_of_them_once(home, tmp_path, capsys):
    """What both hold is sent for one of them; rows carry the digest of what was left, and a note says it."""
    texts = [f"Why {n}?" for n in range(12)]
    for name in ("sharegpt", "wildchat"):
        source = lines(tmp_path / f"{name}.jsonl", chats([*texts, *(f"{name} {n}" for n in range(12))]))
        corpus.freeze(name, source)
    names = ["sharegpt", "wildchat"]
    assert home.set(corpora=names, load={"n_prompts": 40}).sweep() == 0
    opened = corpus.open_together(names)
    assert {row["corpus"]: row["corpus_digest"] for row in home.rows()} == {
        name: one.digest for name, one in opened.items()
    }
    sent = [request["prompt_sha256"] for request in home.requests()]
    assert len(sent) == len(set(sent)) == sum(len(one.measured) for one in opened.values())
    said = capsys.readouterr().err
    assert f"sharegpt: {opened['sharegpt'].n_elsewhere} of its prompts are measured in another corpus" in said


def test_a_changed_prompt_is_refused_before_anything_boots(home, tmp_path):
    """A sweep opens what verify would not pass: never."""
    corpus.freeze("mbpp", lines(tmp_path / "mbpp.jsonl", MBPP))
    path = tmp_path / "sets" / "mbpp.parquet"
    path.write_bytes(path.read_bytes().replace(b"task: Add 17.", b"task: Add 18.", 1))
    with pytest.raises(HostError, match="corpus mbpp"):
        home.set(corpora=["mbpp"]).sweep()
    assert home.boots() == []


def test_a_prompt_that_would_be_sent_twice_is_a_bug():
    """Warm-up, priming and pass of one trial never share a text."""
    prompts = [Prompt(f"p{n}", "", None, sha256) for n, sha256 in enumerate("abca")]
    assert_distinct(prompts[:3])
    with pytest.raises(AssertionError, match="p3 would reach one server twice"):
        assert_distinct(prompts)
