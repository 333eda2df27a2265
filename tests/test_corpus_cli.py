"""``kpad-bench corpora`` as people type it: output, messages and exit codes."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from corpus_rows import MBPP, chats, lines, tokenizer_folder

from kpad_bench import cli


@pytest.fixture
def corpora(tmp_path, unpinned, monkeypatch, capsys):
    """Run ``corpora`` with these words: exit code, stdout, stderr."""
    monkeypatch.setenv("KPAD_BENCH_CORPORA", str(tmp_path / "sets"))

    def run(*words: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["kpad-bench", "corpora", *words])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        said = capsys.readouterr()
        return int(ended.value.code or 0), said.out, said.err

    return run


def _cut(tmp_path: Path) -> str:
    path = lines(tmp_path / "cut.jsonl", MBPP)
    path.write_bytes(path.read_bytes()[:-40])
    return str(path)


def test_a_cut_file_is_refused_and_taken_with_lenient(corpora, tmp_path):
    """Exit 2 with the way out; with the option exit 0, a warning, and the count in what is printed."""
    source = _cut(tmp_path)
    code, out, err = corpora("freeze", "mbpp", "--source", source)
    assert (code, out) == (2, "")
    assert f"{source}: cut at byte" in err
    assert "whole rows before it: 89" in err
    assert "--lenient" in err
    code, out, err = corpora("freeze", "mbpp", "--source", source, "--lenient")
    assert (code, json.loads(out)["truncated_after_rows"]) == (0, 89)
    assert "warning: corpus mbpp: frozen from the 89 whole rows of a file that was cut" in err


def test_a_tokenizer_is_named_by_folder(corpora, tmp_path):
    """Its hash and longest prompt are in the lock that is printed; a second one of its name is refused."""
    folder = str(tokenizer_folder(tmp_path / "toy"))
    source = str(lines(tmp_path / "rows.jsonl", chats([f"Why {n}?" for n in range(40)])))
    code, out, _ = corpora("freeze", "sharegpt", "--source", source, "--tokenizer", folder)
    locked = json.loads(out)["budget"]["tokenizers"]["toy"]
    assert (code, locked["longest_tokens"]) == (0, len("<|user|>Why 10?\n<|assistant|>"))
    code, out, err = corpora("freeze", "sharegpt", "--tokenizer", folder, "--tokenizer", folder + "/")
    assert (code, out) == (2, "")
    assert "toy: two of this name" in err


def test_one_changed_byte_ends_verify_in_5_with_the_corpus_named(corpora, tmp_path):
    """0 before, 5 after, whether the set is named or all are checked."""
    corpora("freeze", "mbpp", "--source", str(lines(tmp_path / "rows.jsonl", MBPP)))
    assert corpora("verify")[0] == 0
    path = tmp_path / "sets" / "mbpp.parquet"
    path.write_bytes(path.read_bytes().replace(b"task: Add 17.", b"task: Add 18.", 1))
    for words in (["verify"], ["verify", "mbpp"]):
        code, out, err = corpora(*words)
        assert (code, out) == (5, "")
        assert err.startswith("kpad-bench: corpus mbpp: ")


def test_a_frozen_set_is_shown(corpora, tmp_path):
    """Counts and as many prompts as asked for on stdout; what is not frozen is the host's fault."""
    corpora("freeze", "mbpp", "--source", str(lines(tmp_path / "rows.jsonl", MBPP)))
    code, out, err = corpora("show", "mbpp", "--prompts", "2")
    assert (code, err) == (0, "")
    assert out.count("You are an expert Python programmer") == 2
    assert "rows read" in out
    code, _, err = corpora("show", "wildchat")
    assert code == 4
    assert "corpora freeze wildchat" in err
