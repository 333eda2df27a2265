"""Export for node_exporter's textfile collector, read by Prometheus' own parser."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families
from trial_rows import csv_file, ok, write_run

from kpad_bench import export_prometheus
from kpad_bench.cli import app
from kpad_bench.errors import HostError, UsageError

REFERENCE = Path(__file__).parent.parent / "results" / "reference" / "h200-2026-12-01"


def families(text):
    """Metrics by name, as Prometheus reads them."""
    return {family.name: family for family in text_string_to_metric_families(text)}


def samples(text):
    """Every sample: (name, labels) -> value."""
    return {
        (one.name, *sorted(one.labels.items())): one.value
        for family in families(text).values()
        for one in family.samples
    }


def export(*paths, candidates=("kpad",)):
    return export_prometheus.export(paths, candidates, (), lambda _: None)


def of(text, name, **labels):
    return samples(text).get((f"kpad_bench_{name}", *sorted(labels.items())))


@pytest.fixture
def run(tmp_path):
    """Two Ks and their baselines in two rounds, and a trial that failed."""
    rows = [
        (f"{arm}{k}{n}", ok(k, speed + n, arm, round=n, acceptance_length=3.0, started_at=started(n)))
        for n in (1, 2)
        for arm, k, speed in (
            ("kpad", 4, 1500.0),
            ("kpad", 8, 2000.0),
            ("van", None, 1000.0),
            ("suf", 32, 1250.0),
        )
    ]
    return write_run(tmp_path / "night", *rows, ("broken", {"status": "failed", "arm": "kpad", "k": 12})).path


def started(hour):
    return datetime(2026, 12, 1, hour, tzinfo=UTC)


def test_every_metric_has_its_help_and_type(run):
    """HELP and TYPE before the samples, one of each, all gauges, names that Prometheus takes."""
    text = export(run)
    found = families(text)
    assert len(found) == 13
    assert {family.type for family in found.values()} == {"gauge"}
    assert all(family.documentation and name.startswith("kpad_bench_") for name, family in found.items())
    assert text.count("# HELP") == text.count("# TYPE") == len(found)
    assert text.endswith("\n")


def test_the_figures_of_a_cell(run):
    """Best K, throughput, gains as ratios, trials by status, and the age of the newest."""
    text, cell = export(run), {"model": "m", "corpus": "c"}
    assert of(text, "best_k", **cell, arm="kpad") == 8
    assert of(text, "established", **cell, arm="kpad") == 1
    assert of(text, "output_tokens_per_second", **cell, arm="kpad") == 2001.5
    assert of(text, "gain_ratio", **cell, arm="kpad", baseline="van") == pytest.approx(1.0, rel=0.01)
    assert of(text, "gain_ratio", **cell, arm="kpad", baseline="suf") == pytest.approx(0.6, rel=0.01)
    assert [of(text, "trials", **cell, status=status) for status in ("ok", "failed", "invalid")] == [8, 1, 0]
    assert of(text, "newest_trial_timestamp_seconds", **cell) == started(2).timestamp()


def test_what_is_not_known_has_no_sample(tmp_path):
    """One trial per K and no baselines: no interval, no gain, no time; never a zero."""
    path = csv_file(tmp_path, "model,corpus,k,output_tok_per_s\nm,c,4,100\nm,c,8,110\n")
    found = families(export(path))
    absent = {"kpad_bench_gain_ratio", "kpad_bench_output_tokens_per_second_low"}
    absent |= {"kpad_bench_newest_trial_timestamp_seconds", "kpad_bench_acceptance_length"}
    assert absent.isdisjoint(found)
    assert of(export(path), "established", model="m", corpus="c", arm="kpad") == 0


def test_labels_are_escaped(tmp_path):
    """Quotes, backslashes and line breaks in a name come back as they were."""
    name = 'a "quoted"\\back\nslash, {braces}'
    run = write_run(tmp_path / "run", ("t", ok(8, 100.0, model=name, corpus="ü")))
    assert of(export(run.path), "best_k", model=name, corpus="ü", arm="kpad") == 8


def test_real_rows_of_a_gpu():
    """The reference rows: both families of arms, four corpora each."""
    text = export(REFERENCE, candidates=("kpad", "kfill"))
    best = [name for name in samples(text) if name[0] == "kpad_bench_best_k"]
    assert len(best) == 8


def test_the_file_is_put_in_place_in_one_step(run, tmp_path, monkeypatch):
    """What the collector may see is the old file or the new one, and no other .prom file beside it."""
    out = tmp_path / "collector" / "kpad_bench.prom"
    out.parent.mkdir()
    out.write_text("old 1\n")
    seen = []

    def replace(source, target):
        seen.append((sorted(path.name for path in out.parent.glob("*.prom")), out.read_text()))
        Path(source).rename(target)

    monkeypatch.setattr("kpad_bench.disk.os.replace", replace)
    app(["export", str(run), "--format", "prometheus", "--out", str(out)], standalone_mode=False)
    assert seen == [(["kpad_bench.prom"], "old 1\n")]
    assert out.read_text() == export(run)
    assert [path.name for path in out.parent.iterdir()] == ["kpad_bench.prom"]


def test_a_file_that_nobody_reads_is_refused(run, tmp_path):
    """node_exporter passes over other names; a folder that is not there is said."""
    words = ["export", str(run), "--format", "prometheus", "--out"]
    with pytest.raises(UsageError, match=r"reads \.prom files alone"):
        app([*words, str(tmp_path / "metrics.txt")], standalone_mode=False)
    with pytest.raises(HostError, match="cannot be written"):
        app([*words, str(tmp_path / "nowhere" / "a.prom")], standalone_mode=False)


def test_without_a_file_the_text_goes_to_stdout(run, capsys):
    """stdout has exactly the data."""
    app(["export", str(run), "--format", "prometheus"], standalone_mode=False)
    assert capsys.readouterr().out == export(run)


def test_the_page_names_every_metric(run):
    """docs/export.md has each metric, by its name or as the end of one."""
    page = (Path(__file__).parent.parent / "docs" / "export.md").read_text(encoding="utf-8")
    bare = [name.removeprefix("kpad_bench_") for name in families(export(run))]
    ends = {"output_tokens_per_second_low": "..._low", "output_tokens_per_second_high": "..._high"}
    assert [name for name in bare if f"`{ends.get(name, name)}`" not in page] == []
