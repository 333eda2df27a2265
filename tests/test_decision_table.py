"""The decision table: family and kind of model to lever, from the rows alone."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pandas as pd
import pytest
import yaml
from test_published import GOLDEN, MODELS
from trial_rows import csv_file, ok, write_run

from kpad_bench.cli import main
from kpad_bench.decision_table import COLUMNS, decision_table, render
from kpad_bench.errors import UsageError
from kpad_bench.recommend_text import WIDTH
from kpad_bench.reduce import load_rows
from kpad_bench.traffic import Asked

HEADER = "model,corpus,arm,k,output_tok_per_s\n"


def table_of(paths, *corpora, **more):
    """The decision table of these files, by model."""
    levers = decision_table(load_rows(paths, COLUMNS), Asked("", corpora, **more))
    return {lever.model: lever for lever in levers}


@pytest.fixture(scope="module")
def published(tmp_path_factory) -> list[Path]:
    """The published K sweep, and its baselines as a second CSV."""
    headline = pd.read_csv(GOLDEN / "published_mix_headline.csv")
    models = headline["model"].map(MODELS)
    arms = [
        pd.DataFrame({"model": models, "arm": arm, "k": k, "output_tok_per_s": headline[column]})
        for arm, k, column in (("van", None, "van_off_tok_per_s"), ("suf", 32, "suf_off_tok_per_s"))
    ]
    path = tmp_path_factory.mktemp("published") / "baselines.csv"
    pd.concat(arms).assign(corpus="mix").to_csv(path, index=False)
    return [GOLDEN / "published_ksweep.csv", path]


def test_the_published_rows_give_the_published_reading(published):
    """On mix K-pad pays for ten of eleven models, with their published Ks; Qwen2.5-7B stays unpadded."""
    levers = table_of(published, "mix")
    headline = pd.read_csv(GOLDEN / "published_mix_headline.csv")
    want = {MODELS[row["model"]]: ("K-pad", row["best_k"]) for _, row in headline.iterrows()}
    want["Qwen2.5-7B-Instruct"] = ("unpadded suffix", 32)
    assert {model: (x.lever, x.found.k) for model, x in levers.items()} == want
    assert not any(x.found.is_established for x in levers.values())
    text = render(list(levers.values()), "text")
    assert "Qwen2.5 (dense): K-pad for 2 of 3, unpadded suffix for 1 of 3" in text
    assert "DeepSeek-R1 (reasoning): K-pad\n" in text
    assert "one trial for each K, so nothing is established: every model" in text
    assert "slower than no speculation: DeepSeek-R1 (-49 %)" in text
    assert "Llama-3.1-405B-Instruct-FP8: sensitive to K and memory" in text


def test_corpora_without_a_baseline_do_not_say_that_padding_pays(published):
    """Baselines are published for mix alone: over all corpora the K is named and the gain is not."""
    levers = table_of(published)
    text = render(list(levers.values()), "text")
    assert "whether speculation or padding pays is not" in text
    assert {(x.lever, x.found.beaten_by) for x in levers.values()} == {("K-pad", None)}
    assert max(map(len, text.splitlines())) <= WIDTH


def test_no_speculation_can_be_the_lever(tmp_path):
    """Where van is ahead of every padded K and of suf, that is what the table says, without a K."""
    path = csv_file(tmp_path, HEADER + "m,c,kpad,4,80\nm,c,kpad,8,90\nm,c,van,,100\nm,c,suf,32,70\n")
    lever = table_of(path)["m"]
    assert (lever.lever, lever.found.k, lever.family, lever.kind) == (
        "no speculation",
        0,
        "unknown",
        "unknown",
    )
    (on,) = lever.on_corpora
    assert (on.corpus, on.best_k, on.gain_pct) == ("c", 8, pytest.approx(-10.0))
    assert "0 of 1  8: all" in render([lever], "text")


def test_a_model_of_one_s_own_has_the_family_that_its_rows_name(tmp_path):
    """models.yaml knows the shipped tags; other rows say it themselves."""
    write_run(tmp_path / "r", ("a", ok(4, 10.0, family="Mine")), ("b", ok(8, 11.0, family="Mine")))
    assert table_of(tmp_path / "r")["m"].family == "Mine"


def test_a_model_without_a_usable_k_is_told_and_the_others_stay(tmp_path):
    """A reason, no lever; but a table in which nobody has one is an error."""
    rows = "a,c,kpad,4,100,ok\na,c,kpad,8,90,ok\nb,c,kpad,4,,failed\n"
    path = csv_file(tmp_path, "model,corpus,arm,k,output_tok_per_s,status\n" + rows)
    levers = table_of(path)
    assert levers["b"].lever is None
    text = render(list(levers.values()), "text")
    assert "b: no K of kpad may be recommended on c: K=4: failed" in text
    rows = "b,c,kpad,4,,failed\n"
    alone = csv_file(tmp_path, "model,corpus,arm,k,output_tok_per_s,status\n" + rows, "alone.csv")
    with pytest.raises(UsageError, match="nothing may be recommended: b: "):
        table_of(alone)


def test_names_do_not_steer_a_terminal(tmp_path):
    """Escape sequences of a model's or corpus's name are blanks."""
    path = csv_file(tmp_path, HEADER + "m\x1b[2J,c\x1b[2J,kpad,4,80\n")
    assert "\x1b" not in render(list(table_of(path).values()), "text")


def test_the_command_writes_text_json_and_yaml_alike(monkeypatch, capsys, tmp_path):
    """``recommend`` without --model is the decision table; data formats hold the same."""
    path = csv_file(tmp_path, HEADER + "m,c,kpad,4,80\nm,c,kpad,8,90\nm,c,van,,70\n")

    def run(*more):
        monkeypatch.setattr(sys, "argv", ["kpad-bench", "recommend", str(path), *more])
        with pytest.raises(SystemExit) as caught:
            main()
        assert caught.value.code == 0
        return capsys.readouterr().out

    found = json.loads(run("--format", "json"))
    assert yaml.safe_load(run("--format", "yaml")) == found
    (model,) = found["models"]
    assert (model["lever"], model["arm"], model["k"], model["established"]) == ("K-pad", "kpad", 8, False)
    assert model["padded"]["gains"][0]["over"] == "van"
    assert model["padded"]["gains"][0]["pct"] == pytest.approx(100 * (90 / 70 - 1))
    assert run().splitlines()[0].startswith("family (kind) / model")
