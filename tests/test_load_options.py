"""What ``load.fill`` and ``load.endpoint`` do to a sweep's rows."""

from __future__ import annotations

import pytest
from conftest import CORPORA, Lab

from kpad_bench.corpus import open_frozen

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"


def sent(lab: Lab) -> list[str]:
    """Prompts in the order they reached the servers, without what the chat template adds."""
    return [call["prompt"].removeprefix("user: ") for call in lab.calls() if call["prompt"]]


def test_fillers_keep_the_slots_full_and_are_not_measured(lab: Lab) -> None:
    """Prompts that no pass measures follow the measured ones; the row counts them and nothing of theirs."""
    corpus = open_frozen(CORPORA[0])
    lab.set(load={"fill": True, "concurrency": 3, "n_prompts": 5})
    lab.tell(step_s=0.002)
    assert lab.sweep() == 0
    row = lab.row()
    assert (row["status"], row["n_ok"], row["n_prompts"]) == ("ok", 5, 5)
    assert row["n_filler"] > 0
    assert row["output_tokens"] == sum(one["output_tokens"] for one in lab.requests())
    assert len(lab.requests()) == 5
    texts = [prompt.text for prompt in corpus.measured]
    fillers = sent(lab)[2 + 5 :]
    assert [text.strip() for text in fillers] == [text.strip() for text in texts[5 : 5 + len(fillers)]]
    assert row["tokens_reconciled"] is not False
    assert row["tail_share"] < 0.2
    assert row["warnings"] == []


def test_without_more_prompts_the_slots_go_empty_and_the_row_says_so(lab: Lab) -> None:
    """All prompts of the corpus but one are measured: one filler, then none."""
    n_prompts = len(open_frozen(CORPORA[0]).measured) - 1
    lab.set(load={"fill": True, "concurrency": 4, "n_prompts": n_prompts, "max_tokens": 8})
    assert lab.sweep() == 0
    row = lab.row()
    assert (row["status"], row["n_ok"], row["n_filler"]) == ("ok", n_prompts, 1)
    assert "fillers ran out after 1, before the last measured request ended" in row["warnings"]


def test_no_fillers_unless_asked_for(lab: Lab) -> None:
    """The published load has a tail."""
    assert lab.sweep() == 0
    assert lab.row()["n_filler"] == 0
    assert len(sent(lab)) == 2 + 4


@pytest.mark.parametrize("asked", ["auto", "completions"])
def test_a_model_without_a_chat_template_is_driven_where_the_load_allows_it(lab: Lab, asked: str) -> None:
    """All requests go to /v1/completions, the row names it, and the prompts' lengths are still checked."""
    lab.tell(no_chat_template=True)
    lab.set(load={"endpoint": asked})
    assert lab.sweep() == 0
    row = lab.row()
    assert (row["status"], row["endpoint"]) == ("ok", COMPLETIONS)
    assert [call["path"] for call in lab.calls() if call["prompt"]] == [COMPLETIONS] * 6
    lab.set(load={"max_tokens": 1020})
    assert lab.sweep(fresh=True) == 3
    assert "prompts do not fit" in lab.row()["detail"]


def test_a_model_without_a_chat_template_is_refused_by_default(lab: Lab) -> None:
    """The row has the server's text and the way out."""
    lab.tell(no_chat_template=True)
    assert lab.sweep() == 3
    row = lab.row()
    assert (row["status"], row["reason"], row["endpoint"]) == ("failed", "all_requests_refused", CHAT)
    assert "must provide a chat template" in row["detail"]
    assert "load.endpoint: completions, or auto" in row["detail"]


def test_auto_stays_with_chat_where_there_is_a_template(lab: Lab) -> None:
    """One token is asked for before the caches are emptied; the rest is as ever."""
    lab.set(load={"endpoint": "auto"})
    assert lab.sweep() == 0
    assert lab.row()["endpoint"] == CHAT
    assert sent(lab)[0] == "Hi"
    assert {call["path"] for call in lab.calls() if call["prompt"]} == {CHAT}
