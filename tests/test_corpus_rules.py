"""What a row becomes, and that order and role come from content alone."""

from __future__ import annotations

import hashlib
import random
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from kpad_bench import corpus_rules
from kpad_bench.corpus_extract import Dropped, extract, render
from kpad_bench.corpus_manifest import Manifest
from kpad_bench.corpus_store import digest_of
from kpad_bench.errors import DataError

SOURCE = {"hub_id": "org/set", "revision": "0" * 40}


def _manifest(rule: str = "humaneval", **others) -> Manifest:
    template = {"mbpp": "Task: {text} Tests:\n{tests}", "humaneval": "Complete:\n{text}"}.get(rule, "{text}")
    values = {"name": "toy", "description": "", "rule": rule, "sources": [SOURCE], "licence": "none"}
    return Manifest.model_validate({**values, "template": template, **others})


def _rows(texts, start: int = 0):
    return [("", {"task_id": f"Toy/{n}", "prompt": text}) for n, text in enumerate(texts, start)]


MBPP_FULL = {
    "task_id": 11,
    "text": "Write f(x).",
    "code": "",
    "test_list": ["a", "b", "c"],
    "test_setup_code": "",
}
MBPP_CLEAN = {"task_id": 11, "prompt": "Write f(x).", "code": "", "test_list": ["a", "b", "c", "d"]}
MBPP_PLUS = {"task_id": 11, "prompt": "Write f(x).", "test_list": ["a", "b", "c"], "test": "for x in y: pass"}
MBPP_TEST_LIST = {"task_id": 11, "prompt": "Write f(x).", "test": ["a", "b", "c"]}


@pytest.mark.parametrize("row", [MBPP_FULL, MBPP_CLEAN, MBPP_PLUS, MBPP_TEST_LIST])
def test_all_mbpp_schemas_give_the_task_and_three_asserts(row):
    """Full, sanitized, plus and test-as-list rows of one task give the same prompt."""
    item = extract("mbpp", row, (), "here")
    assert (item.key, item.fields) == ("11", {"text": "Write f(x).", "tests": "a\nb\nc"})


@pytest.mark.parametrize(
    ("rule", "row", "match"),
    [
        (
            "mbpp",
            {"task_id": 11, "text": "Write f(x)"},
            "needs the keys task_id, text, test_list; found task_id, text",
        ),
        (
            "mbpp",
            {"task_id": "HumanEval/3", "prompt": "def g():", "test": "x"},
            "found prompt, task_id, test",
        ),
        ("mbpp", {**MBPP_FULL, "test_list": "assert"}, "test_list: expected a list of texts, found 'assert'"),
        ("mbpp", {**MBPP_FULL, "text": None}, "text: expected a text, found None"),
        ("humaneval", MBPP_CLEAN, "task_id: expected a text, found 11"),
        ("humaneval", {"question": "?"}, "needs the keys task_id, prompt; found question"),
        ("humaneval", {}, "found none"),
        ("swebench", {"instance_id": "a", "text": "b"}, "needs the keys instance_id, problem_statement"),
        ("chat", {"id": "a", "turns": []}, "needs the keys id, conversation; found id, turns"),
        ("chat", {"id": "a", "conversations": "hi"}, "conversations: expected a list"),
    ],
)
def test_another_schema_is_refused_with_the_keys_found(rule, row, match):
    """A row of another data set is no row to drop: the keys that were found are named."""
    with pytest.raises(DataError, match=match):
        extract(rule, row, (), "f.json: row 1")


@pytest.mark.parametrize(
    ("turns", "expected"),
    [
        ([{"from": "human", "value": "hi"}, {"from": "gpt", "value": "yes?"}], "hi"),
        ([{"from": "Human", "value": "hi there"}, {"role": "assistant", "content": "yes?"}], "hi there"),
        (
            [{"from": "gpt", "value": "Continuing"}, {"from": "human", "value": "And step three?"}],
            "And step three?",
        ),
        ([{"role": "USER", "content": "alone"}], "alone"),
        (['{"from": "human", "value": "as JSON text"}'], "as JSON text"),
        ([], Dropped("empty")),
        ([{"from": "bing", "value": "only me"}], Dropped("no_user_turn")),
        ([{"from": "human", "value": "  "}], Dropped("empty")),
        ([{"from": "human", "value": "x"}, {"from": "wizard", "value": "y"}], Dropped("unknown_role")),
        (["no JSON"], Dropped("unknown_role")),
        (
            [{"from": role, "value": "x"} for role in ("human", "function_call", "observation")],
            Dropped("tool_turns"),
        ),
    ],
)
def test_a_chat_gives_its_first_user_turn_and_never_an_assistant_turn(turns, expected):
    """Roles come from one case-folded table; what gives no prompt has a reason."""
    item = extract("chat", {"id": "q_0", "conversations": turns}, (), "")
    assert (item if isinstance(item, Dropped) else item.fields["text"]) == expected


@pytest.mark.parametrize("speaker", ["gpt", "Assistant", "ChatGPT", "BING", "bard", " bot "])
def test_every_spelling_of_an_assistant_is_one(speaker):
    """None of them is ever taken for a user, whichever keys hold it."""
    for turn in ({"from": speaker, "value": "I am first"}, {"role": speaker, "content": "I am first"}):
        turns = [turn, {"from": "Human", "value": "And step three?"}]
        item = extract("chat", {"id": "q", "conversations": turns}, (), "")
        assert not isinstance(item, Dropped)
        assert item.fields["text"] == "And step three?"
        assert extract("chat", {"id": "q", "conversations": [turn]}, (), "") == Dropped("no_user_turn")


def test_repeated_ids_and_prompts_of_chats_add_up():
    """Two records under one id are two prompts, ten of the same greeting are one."""
    turns = [[{"from": "human", "value": text}] for text in ("one", "two", *["hello"] * 9, " Hello")]
    rows = [("", {"id": "z9_0" if n < 2 else f"h{n}_0", "conversations": t}) for n, t in enumerate(turns)]
    sample = corpus_rules.sample(_manifest("chat"), rows)
    assert sorted(one.prompt.text.strip().casefold() for one in sample.prompts) == ["hello", "one", "two"]
    assert (sample.n_read, sample.dropped) == (12, {"duplicate": 9})
    assert len({one.prompt.prompt_id for one in sample.prompts}) == 3


def test_a_chat_keeps_its_system_message_and_drops_later_parts_and_flagged_rows():
    """The system message goes with the prompt; parts after the first and marked rows are counted out."""
    turns = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Why?"}]
    row = {"conversation_id": "c", "conversation": turns}
    assert extract("chat", row, (), "").system == "Be brief."
    assert extract("chat", {**row, "conversation_id": "c_1"}, (), "") == Dropped("later_part")
    flagged = {**row, "openai_moderation": [{"flagged": False}, {"flagged": True}]}
    assert extract("chat", flagged, ("flagged",), "") == Dropped("flagged")
    assert extract("chat", {**row, "redacted": True}, ("toxic", "redacted"), "") == Dropped("redacted")


def test_braces_inside_a_field_stay_as_they_are():
    """A template is filled in one pass."""
    assert render("{text} | {tests}", {"text": "f{tests}", "tests": "{text}{0}"}) == "f{tests} | {text}{0}"


def test_the_golden_digest_of_invented_rows():
    """The rules of rank, id, role and digest are fixed: changing them changes every frozen set."""
    sample = corpus_rules.sample(_manifest(), _rows(["def f():\n", "def g(x):\n    ", "def ä():\n"]))
    assert [(one.prompt.prompt_id, one.role, one.row_key) for one in sample.prompts] == GOLDEN
    assert digest_of(sample.prompts) == GOLDEN_DIGEST


#: From the written-down rules with hashlib alone, not from this package.
GOLDEN = [
    ("toy-ab894d33966fa001", "measured", "Toy/0"),
    ("toy-d4fdbee6883325fd", "warmup", "Toy/2"),
    ("toy-e876e228ae8edd05", "measured", "Toy/1"),
]
GOLDEN_DIGEST = "a46baa012c798386407d5e07955c33abba2dff936c4004c9526a4419cb88fc95"

texts = st.lists(st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1), min_size=1)


@given(texts=texts, seed=st.integers())
def test_the_order_of_the_rows_is_irrelevant(texts, seed):
    """Shuffled rows give the same prompts, order, counts and row hash."""
    rows = [*_rows(texts), *_rows(["anchor"], 1000)]
    shuffled = random.Random(seed).sample(rows, len(rows))
    assert corpus_rules.sample(_manifest(), rows) == corpus_rules.sample(_manifest(), shuffled)


@given(texts=texts, limit=st.integers(1, 20))
def test_the_first_n_of_a_larger_sample_are_the_sample_of_n(texts, limit):
    """A limit takes a prefix of the ranking, and says how many it left."""
    rows = [*_rows(texts), *_rows(["anchor"], 1000)]
    whole = corpus_rules.sample(_manifest(), rows)
    few = corpus_rules.sample(_manifest(max_prompts=limit), rows)
    assert few.prompts == whole.prompts[:limit]
    assert few.dropped.get("over_max_prompts", 0) == len(whole.prompts) - len(few.prompts)


@given(texts=texts)
def test_kept_and_dropped_add_up_and_no_text_occurs_twice(texts):
    """Rows read = prompts + dropped rows, and folded texts are unique, so roles share none."""
    rows = [*_rows(texts), *_rows([text.upper() + " " for text in texts], 500), *_rows(["anchor", " "], 1000)]
    sample = corpus_rules.sample(_manifest(), rows)
    assert sample.n_read == len(rows) == len(sample.prompts) + sum(sample.dropped.values())
    folded = [corpus_rules.fold(one.prompt.text) for one in sample.prompts]
    assert len(set(folded)) == len(folded)
    assert all(
        one.role == corpus_rules.role_of(text) for one, text in zip(sample.prompts, folded, strict=True)
    )


def test_duplicates_by_form_white_space_and_case_are_one_prompt():
    """NFC, white space and case do not make another prompt; the same id with another text does."""
    same = ["Caf\u00e9  x", unicodedata.normalize("NFD", "caf\u00e9 X"), "CAF\u00c9\nx\n"]
    assert corpus_rules.sample(_manifest(), _rows(same)).dropped == {"duplicate": 2}
    one_id = [("", {"task_id": "z9_0", "prompt": text}) for text in ("hello", "other", "hello")]
    sample = corpus_rules.sample(_manifest(), one_id)
    assert (len(sample.prompts), sample.dropped) == (2, {"duplicate": 1})
    assert len({one.prompt.prompt_id for one in sample.prompts}) == 2


def test_a_swebench_instance_counts_once():
    """Lite and Verified overlap, sometimes with other wording: one instance gives one prompt."""
    rows = [("", {"instance_id": "a-1", "problem_statement": text}) for text in ("Bug.", "Bug, edited.")]
    sample = corpus_rules.sample(_manifest("swebench"), [*rows, *rows])
    assert (len(sample.prompts), sample.dropped) == (1, {"duplicate": 3})


@given(texts=texts, limit=st.integers(1, 5), seed=st.integers())
def test_a_limit_holds_few_texts_and_gives_what_sorting_all_would(texts, limit, seed):
    """Ranking with a limit keeps at most twice as many texts and loses none that belongs."""
    rows = [*_rows(texts), *_rows([text + " " for text in texts], 500), *_rows(map(str, range(40)), 1000)]
    ranking = corpus_rules._Ranking(limit)
    for _, row in random.Random(seed).sample(rows, len(rows)):
        draft = corpus_rules._Draft(row["task_id"], row["prompt"], None, row["prompt"], False)
        ranking.add(corpus_rules._rank(_manifest(), draft))
        assert len(ranking._held) < 2 * limit
    whole = corpus_rules._Ranking(None)
    for _, row in rows:
        draft = corpus_rules._Draft(row["task_id"], row["prompt"], None, row["prompt"], False)
        whole.add(corpus_rules._rank(_manifest(), draft))
    assert ranking.lowest() == whole.lowest()[:limit]
    assert ranking.n_duplicates == whole.n_duplicates
    assert ranking.n_over_limit == len(whole.lowest()) - limit


def test_lone_surrogates_become_u_fffd_and_are_counted():
    """JSON can spell half a surrogate pair, UTF-8 cannot: replaced, counted, the original hash kept."""
    sample = corpus_rules.sample(_manifest(template="{text}"), _rows(["\ud83dx", "fine \U0001f600"]))
    broken = next(one for one in sample.prompts if one.row_key == "Toy/0")
    assert (broken.prompt.text, sample.n_surrogate_rows) == ("\ufffdx", 1)
    assert broken.original_sha256 == hashlib.sha256("\ud83dx".encode(errors="surrogatepass")).hexdigest()


def test_a_text_with_nul_is_dropped_and_counted():
    """No tokenizer sees a NUL."""
    assert corpus_rules.sample(_manifest(), _rows(["a\0b", "fine"])).dropped == {"nul": 1}


def test_rows_that_give_no_prompt_at_all_are_refused():
    """An empty source, and one with only unusable rows, say what there was."""
    with pytest.raises(DataError, match="no prompt in 0 rows; dropped: none"):
        corpus_rules.sample(_manifest(), [])
    with pytest.raises(DataError, match=r"no prompt in 2 rows; dropped: {'empty': 2}"):
        corpus_rules.sample(_manifest(), _rows(["", " \n"]))


def test_slices_are_disjoint_and_whole():
    """Every row is in exactly one slice."""
    rows = _rows([f"text {n}" for n in range(50)])
    parts = [corpus_rules.sample(_manifest(slice={"parts": 2, "part": part}), rows) for part in (0, 1)]
    keys = [{one.row_key for one in sample.prompts} for sample in parts]
    assert not keys[0] & keys[1]
    assert len(keys[0] | keys[1]) == 50
    assert parts[0].dropped == {"other_slice": len(keys[1])}


def test_about_an_eighth_of_the_texts_is_for_warm_up():
    """Sixteenths of the hash space: 2 warm-up, 2 priming, 2 mix, 10 measured."""
    roles = [corpus_rules.role_of(f"text {n}") for n in range(4000)]
    shares = {role: roles.count(role) / len(roles) for role in set(roles)}
    assert shares == pytest.approx(
        {"warmup": 1 / 8, "priming": 1 / 8, "mix": 1 / 8, "measured": 5 / 8}, abs=0.02
    )


def test_a_mix_keeps_its_weights_in_every_round_and_never_makes_up_for_a_member():
    """Whole rounds only, members in their own order, stopped by the member that runs short."""
    members = {"a": [f"a{n}" for n in range(9)], "b": [f"b{n}" for n in range(2)]}
    mixed = corpus_rules.interleave(members, {"a": 2, "b": 1}, key=str)
    assert [sorted(mixed[:3]), sorted(mixed[3:])] == [["a0", "a1", "b0"], ["a2", "a3", "b1"]]


@pytest.mark.parametrize(
    ("values", "match"),
    [
        ({"rule": "mix"}, "profile and members go with rule: mix"),
        ({"sources": []}, "needs at least one source"),
        ({"template": "no place"}, "template must hold"),
        ({"rule": "mbpp", "template": "{text}"}, "and {tests} with rule: mbpp"),
        ({"sources": [{"hub_id": "a/b", "revision": "main"}]}, "pattern"),
        ({"lenient": True}, "Extra inputs"),
    ],
)
def test_a_manifest_that_cannot_be_is_refused(values, match):
    """Unknown keys, moving revisions, templates without a place for the text."""
    with pytest.raises(ValidationError, match=match):
        _manifest(**values)
