"""A frozen set as people see it."""

from __future__ import annotations

from corpus_rows import chats, lines

from kpad_bench import corpus, corpus_show


def _shown(tmp_path, texts, n_prompts: int = 0) -> str:
    corpus.freeze("sharegpt", lines(tmp_path / "rows.jsonl", chats(texts)), tmp_path)
    return corpus_show.show(corpus.open_frozen("sharegpt", tmp_path), n_prompts)


def test_counts_reasons_roles_and_lengths_are_shown(tmp_path, unpinned):
    """Rows read, each reason, each role, the budget, and a histogram over all prompts."""
    texts = [f"Why {n}?" for n in range(100, 140)] + ["x " * 500, "why 100?", "", "y" * 9000]
    text = _shown(tmp_path, texts)
    squeezed = [" ".join(line.split()) for line in text.splitlines()]
    for line in ("rows read 44", "- duplicate 1", "- empty 1", "- over_bytes 1", "prompts 41"):
        assert line in squeezed
    assert "budget 7870 bytes, any tokenizer (8192 - 2 x K 32 - 2)" in squeezed
    assert f"8 - 15 40 {'#' * 40}" in squeezed
    assert "512 - 1023 1 #" in squeezed
    assert "16 - 31 0" in squeezed
    assert "44 rows read, the pinned source has 94145" in text


def test_the_first_measured_prompts_are_shown_in_part_and_harmless(tmp_path, unpinned):
    """As many as asked for, cut where long; what a terminal would obey is replaced."""
    text = _shown(tmp_path, [f"\x1b[2J{n} " + "z" * 700 for n in range(30)], 2)
    first = corpus.open_frozen("sharegpt", tmp_path).measured[:2]
    assert [one.prompt_id in text for one in first] == [True, True]
    assert text.count("characters more") == 2
    assert "\x1b" not in text
    assert "\ufffd[2J" in text
