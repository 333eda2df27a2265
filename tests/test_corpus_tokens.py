"""Counting tokens as the server sees them, and the budget that a lock records."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from corpus_rows import ROWS, TEMPLATE, chats, lines, tokenizer_folder
from hypothesis import given
from hypothesis import strategies as st

from kpad_bench import corpus, corpus_store
from kpad_bench.corpus_manifest import Budget
from kpad_bench.corpus_tokens import Counter, Limits, prompt_bytes, read_tokenizer
from kpad_bench.errors import DataError, UsageError

TINY = Budget(prompt_tokens=400, ks=(4, 8))  # 400 - 18 = 382 tokens, 126 bytes
LONG = "log line " * 90_000


def _counter(folder: Path, template: str = TEMPLATE) -> Counter:
    return Counter(read_tokenizer("toy", tokenizer_folder(folder / "toy", template)))


def test_a_budget_leaves_room_for_output_and_drafts_of_the_largest_k():
    """16384 - 8192 - (2 x 32 + 2) tokens; a prompt of unknown tokenizer also leaves room for a template."""
    budget = Budget()
    assert (budget.largest_k, budget.limit_tokens, budget.limit_bytes) == (32, 8126, 7870)
    with pytest.raises(ValueError, match="prompt_tokens 300 leave no room"):
        Budget(prompt_tokens=300)


def test_a_prompt_is_counted_with_its_template(tmp_path):
    """The template's own text counts, the turn of the assistant is opened, nothing is added twice."""
    counter = _counter(tmp_path)
    assert counter.count([{"role": "user", "content": "hi"}]) == len("<|user|>hi\n<|assistant|>")
    both = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "ä"}]
    assert counter.count(both) == len("<|system|>Be brief.\n<|user|>ä\n<|assistant|>".encode())


def test_a_template_that_asks_for_today_gets_a_fixed_date(tmp_path):
    """A lock is the same tomorrow."""
    counter = _counter(tmp_path, "{{ strftime_now('%d %B %Y') }}" + "{{ eos_token }}")
    assert counter.count([]) == len("26 July 2024</s>")


def test_a_template_that_refuses_a_system_message_drops_the_prompt(tmp_path):
    """Such a prompt would be a refused request in every pass."""
    refusing = "{% if messages[0]['role'] == 'system' %}{{ raise_exception('no system') }}{% endif %}x"
    limits = Limits(TINY, [_counter(tmp_path, refusing)])
    assert limits.fits("hi", "Be brief.") == "refused_by_template"
    assert limits.fits("hi", None) is None


def test_prompts_are_dropped_by_tokens_where_a_tokenizer_is_named_and_by_bytes_where_none_is(tmp_path):
    """By tokens the limit is exact; by bytes every byte-level tokenizer would keep to it."""
    named, unnamed = Limits(TINY, [_counter(tmp_path)]), Limits(TINY, [])
    frame = len("<|user|>\n<|assistant|>")
    assert named.fits("x" * (382 - frame), None) is None
    assert named.fits("x" * (383 - frame), None) == "over_tokens"
    assert unnamed.fits("x" * 126, None) is None
    assert unnamed.fits("x" * 127, None) == unnamed.fits("x" * 100, "y" * 27) == "over_bytes"
    assert unnamed.fits("ä" * 64, None) == "over_bytes"


def test_a_tokenizer_that_is_not_byte_level_is_found_out(tmp_path):
    """What was short by bytes is counted in the end, so a long template does not slip through."""
    limits = Limits(TINY, [_counter(tmp_path, "x" * 380 + "{{ messages[0]['content'] }}")])
    assert limits.fits("hello", None) is None
    with pytest.raises(DataError, match=r"tokenizer toy: .* 385 tokens .*the limit is 382"):
        limits.longest([corpus.Prompt("p", "hello", None, "")])


@pytest.fixture(scope="module")
def toy(tmp_path_factory) -> Counter:
    """One tokenizer for many examples."""
    return _counter(tmp_path_factory.mktemp("toy"), "{{ messages[0]['content'] }}")


@given(text=st.text())
def test_a_byte_level_tokenizer_gives_a_byte_at_most_a_token(toy, text):
    """The bound for tokenizers that a lock does not name holds for any text."""
    assert toy.count([{"role": "user", "content": text}]) <= prompt_bytes(text, None)


def test_bytes_are_counted_after_composition_too():
    """NFC can lengthen a text; some tokenizers compose before they look at bytes."""
    assert prompt_bytes("\u0958", None) == 6
    assert prompt_bytes("ab", "c") == 3


def test_the_hash_of_a_tokenizer_covers_template_and_special_tokens(tmp_path):
    """Another template is another tokenizer; the folder's name is none of it."""
    base = read_tokenizer("a", tokenizer_folder(tmp_path / "a")).sha256
    assert read_tokenizer("b", tokenizer_folder(tmp_path / "b")).sha256 == base
    assert read_tokenizer("c", tokenizer_folder(tmp_path / "c", TEMPLATE + " ")).sha256 != base
    inside = tokenizer_folder(tmp_path / "d")
    (inside / "chat_template.jinja").unlink()
    config = {"eos_token": "</s>", "chat_template": [{"name": "default", "template": TEMPLATE}]}
    (inside / "tokenizer_config.json").write_text(json.dumps(config))
    assert read_tokenizer("d", inside).sha256 == base


@pytest.mark.parametrize(
    ("name", "content", "match"),
    [
        ("chat_template.jinja", "", "no chat template"),
        ("tokenizer.json", None, r"needs tokenizer.json and tokenizer_config.json"),
        ("tokenizer_config.json", "[1]", r"needs tokenizer.json and tokenizer_config.json"),
    ],
)
def test_a_folder_without_a_tokenizer_is_refused(tmp_path, name, content, match):
    """Folder and file are named."""
    folder = tokenizer_folder(tmp_path / "toy")
    (folder / name).unlink() if content is None else (folder / name).write_text(content)
    with pytest.raises(UsageError, match=match) as error:
        read_tokenizer("toy", folder)
    assert str(folder) in str(error.value)


@pytest.mark.parametrize(("name", "content"), [("tokenizer.json", "{}"), ("chat_template.jinja", "{% if %}")])
def test_a_tokenizer_that_cannot_be_loaded_is_refused(tmp_path, name, content):
    """A damaged file ends in a message, not in a traceback of a library."""
    folder = tokenizer_folder(tmp_path / "toy")
    (folder / name).write_text(content)
    with pytest.raises(UsageError, match="cannot be loaded"):
        Counter(read_tokenizer("toy", folder))


# In a lock


def test_a_very_long_prompt_is_dropped_and_counted_never_cut(tmp_path, unpinned):
    """A prompt of 810,000 characters falls out, with and without a tokenizer, and no other changes."""
    rows = [*chats([f"Why {n}?" for n in range(30)]), *chats([LONG], "long")]
    source = lines(tmp_path / "rows.jsonl", rows)
    files = read_tokenizer("toy", tokenizer_folder(tmp_path / "toy"))
    plain = corpus.freeze("sharegpt", source, tmp_path / "plain")
    counted = corpus.freeze("sharegpt", source, tmp_path / "counted", tokenizers=[files])
    assert (plain.dropped, counted.dropped) == ({"over_bytes": 1}, {"over_tokens": 1})
    assert plain.digest == counted.digest
    assert plain.budget.tokenizers == {}
    assert plain.budget.longest_bytes == len("Why 10?")
    locked = counted.budget.tokenizers["toy"]
    assert (locked.sha256, locked.longest_tokens) == (files.sha256, len("<|user|>Why 10?\n<|assistant|>"))
    texts = {one.text for one in corpus.open_frozen("sharegpt", tmp_path / "counted").measured}
    assert texts <= {f"Why {n}?" for n in range(30)}


def test_a_lock_with_tokenizers_is_the_same_for_shuffled_rows(tmp_path, unpinned):
    """What is longest does not depend on what came first."""
    files = read_tokenizer("toy", tokenizer_folder(tmp_path / "toy"))
    rows = chats([f"Why {n}? " * (n + 1) * 9 for n in range(90)])
    written = []
    for name, order in (("a", rows), ("b", rows[::-1])):
        corpus.freeze(
            "sharegpt", lines(tmp_path / f"{name}.jsonl", order), tmp_path / name, tokenizers=[files]
        )
        written.append(corpus_store.lock_path("sharegpt", tmp_path / name).read_bytes())
    assert written[0] == written[1]


def test_a_set_frozen_under_another_budget_is_stale(tmp_path, unpinned):
    """A manifest with another budget means other prompts: freeze again."""
    corpus.freeze("humaneval", lines(tmp_path / "rows.jsonl", ROWS), tmp_path)
    path = unpinned / "humaneval.yaml"
    path.write_text(path.read_text() + "budget: {prompt_tokens: 4096}\n")
    assert "another manifest (rule, seed, template, budget or weights)" in str(
        corpus.verify(["humaneval"], tmp_path)[0]
    )


def test_tokenizers_are_imported_only_to_count(tmp_path):
    """Freezing by bytes and hashing a tokenizer need no tokenizer library."""
    folder = tokenizer_folder(tmp_path / "toy")
    source = lines(tmp_path / "rows.jsonl", ROWS)
    code = (
        "import sys; from pathlib import Path; from kpad_bench import corpus, corpus_tokens; "
        f"corpus_tokens.read_tokenizer('toy', Path({str(folder)!r})); "
        f"corpus.freeze('humaneval', Path({str(source)!r}), Path({str(tmp_path)!r})); "
        "assert not {'tokenizers', 'jinja2', 'transformers', 'huggingface_hub'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
