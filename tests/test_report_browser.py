"""The report in a real browser: its figures, its tables, its colours, and nothing that it must not do."""

from __future__ import annotations

import csv
import os
import re
from itertools import pairwise
from pathlib import Path

import pandas as pd
import pytest
from browser import NARROW, Browser
from selenium.webdriver import ActionChains, Keys
from test_published import GOLDEN, MODELS
from trial_rows import ok, write_run

from kpad_bench.report import write_report
from kpad_bench.report_figure import contrast

ROOT = Path(__file__).resolve().parent.parent
H200 = ROOT / "results" / "reference" / "h200-2026-12-01"
#: Names that would be markup, script or a broken attribute if they were not escaped.
HOSTILE = (
    "<img src=x onerror=document.title='owned'>",
    "\"><script>document.title='owned'</script>",
    "</title></style></script><script>document.title='owned'</script>",
    "' onmouseover='document.title=1' x='&lt;b&gt;",
    "org/a-name-of-sixty-characters-that-goes-on-and-on-0123456789",
)


def published(name):
    """A published file: the original where it is at hand, else the copy, which is the same byte for byte."""
    folder = Path(os.environ.get("KPAD_SHARED") or ROOT.parent / "shared") / "reference"
    original = folder / f"seed_{name}.csv"
    return original if original.exists() else GOLDEN / f"published_{name}.csv"


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    """One Chromium for all tests of this file."""
    found = Browser(tmp_path_factory.mktemp("profile"))
    yield found
    found.quit()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Where the pages are."""
    return tmp_path_factory.mktemp("pages")


@pytest.fixture(scope="module")
def headline():
    """The published mix table, by the K sweep's names."""
    table = pd.read_csv(published("mix_headline"))
    return table.assign(model=table["model"].map(MODELS)).set_index("model")


@pytest.fixture(scope="module")
def seeds(folder):
    """The page of the published K sweep."""
    write_report([published("ksweep")], folder / "seeds.html")
    return folder / "seeds.html"


@pytest.fixture(scope="module")
def mix(folder, headline):
    """The page of the published mix table: its three throughputs as arms."""
    lines = [["model", "corpus", "arm", "k", "output_tok_per_s"]]
    for model, row in headline.iterrows():
        lines += [
            [model, "mix", "van", "", row["van_off_tok_per_s"]],
            [model, "mix", "suf", 32, row["suf_off_tok_per_s"]],
            [model, "mix", "kpad", int(row["best_k"]), row["best_kpad_tok_per_s"]],
        ]
    return from_rows(folder, "mix", lines)


@pytest.fixture(scope="module")
def h200(folder):
    """The page of the rows measured on one H200."""
    write_report([H200], folder / "h200.html")
    return folder / "h200.html"


def from_rows(folder, name, lines):
    """The page of a long CSV with these lines."""
    with (folder / f"{name}.csv").open("w", newline="") as file:
        csv.writer(file).writerows(lines)
    write_report([folder / f"{name}.csv"], folder / f"{name}.html")
    return folder / f"{name}.html"


def facts(browser, selector):
    """The data attributes and the shown text of every mark of a selector, and its words."""
    return browser.js(
        """return [...document.querySelectorAll(arguments[0])].map((mark) => ({
          ...mark.dataset,
          words: mark.querySelector('title').textContent,
          shown: [...mark.querySelectorAll('text')].map((text) => text.textContent),
        }))""",
        selector,
    )


def column(browser, table, title):
    """The shown cells of a column, in order."""
    return browser.js(
        """const table = document.getElementById(arguments[0]);
        const i = [...table.tHead.rows[0].cells].findIndex((c) => c.textContent === arguments[1]);
        return [...table.tBodies[0].rows].filter((r) => !r.hidden).map((r) => r.cells[i].textContent)""",
        f"table-{table}",
        title,
    )


def test_the_heatmap_shows_the_published_best_ks(browser, seeds):
    """All 77 cells: the published K, its throughput, and that it is one trial."""
    browser.open(seeds)
    expected = pd.read_csv(published("best_k")).set_index(["model", "corpus"])
    cells = facts(browser, "#figure-heatmap .mark[data-k]")
    assert {(cell["model"], cell["corpus"]) for cell in cells} == set(expected.index)
    for cell in cells:
        row = expected.loc[(cell["model"], cell["corpus"])]
        assert cell["k"] == cell["shown"][0] == str(row["best_k"])
        assert f"{row['output_tok_per_s']} tok/s" in cell["words"]
        assert cell["state"] == "one trial"
        assert "1 trial" in cell["shown"]
        assert "not established" in cell["words"]
    assert browser.one("[data-card=established] dd").text == "0 of 77"
    assert "One trial per cell and K: nothing is established" in browser.one(".limits").text
    assert column(browser, "best", "state") == ["one trial"] * 77
    browser.picture("published")


def test_the_bars_of_mix_show_the_published_gains(browser, mix, headline):
    """All eleven, to the published digit; kpad beats the better baseline in ten; each bar says one trial."""
    browser.open(mix)
    bars = facts(browser, "#figure-gains .mark[data-base]")
    over_suf = {bar["model"]: float(bar["gain"]) for bar in bars if bar["base"] == "suf"}
    over_van = {bar["model"]: float(bar["gain"]) for bar in bars if bar["base"] == "van"}
    assert over_suf == pytest.approx(headline["delta_vs_suf_off_pct"].to_dict(), abs=0.0501)
    expected = 100 * (headline["best_kpad_tok_per_s"] / headline["van_off_tok_per_s"] - 1)
    assert over_van == pytest.approx(expected.to_dict(), abs=0.01)
    assert len(bars) == 33
    assert browser.one("[data-card=wins] dd").text == "10 of 11"
    assert len(browser.all("#figure-gains .mark[data-base=better]")) == 11


def test_bars_of_one_trial_say_so(browser, folder):
    """Two Ks, one trial each: a hollow bar, marked."""
    lines = [["model", "corpus", "arm", "k", "output_tok_per_s"]]
    lines += [["m", "c", "suf", 32, 100], ["m", "c", "kpad", 4, 110], ["m", "c", "kpad", 8, 150]]
    browser.open(from_rows(folder, "single", lines))
    (bar,) = facts(browser, "#figure-gains .mark[data-base=suf]")
    assert bar["shown"] == ["+50.0% 1 trial"]
    assert browser.all("#figure-gains .mark[data-base=suf] rect.f-pale")


def test_every_figure_is_there(browser, h200):
    """Drawn with a size, named, explained, and with the same values as a table."""
    browser.open(h200)
    names = [
        *("heatmap", "heatmap-kfill", "gains", "gains-kfill", "reversal", "curves-1", "price"),
        *("shares", "acceptance", "steady"),
    ]
    assert [e.get_attribute("data-figure") for e in browser.all("svg.figure")] == names
    for figure in browser.all("figure"):
        drawing = figure.find_element("css selector", "svg")
        assert drawing.size["width"] > 200
        assert drawing.size["height"] > 60
        assert drawing.get_attribute("role") == "img"
        assert drawing.get_attribute("aria-label")
        assert len(figure.find_element("css selector", ".caption").text) > 40
        assert figure.find_elements("css selector", "details table")
    assert browser.one("#drift .absent").text.startswith("No cell was repeated")
    assert browser.one("#failures p").text == "None."
    shown = browser.one("#provenance").text
    for text in ("NVIDIA H200", "0.25.1", "kpad-bench sweep --config h200-evidence --fresh"):
        assert text in shown


def test_nothing_is_said_to_the_console_or_asked_of_a_network(browser, h200):
    """From a file URL the page asks for itself alone, and its policy would allow nothing else."""
    browser.open(h200)
    for name in ("best", "runs"):
        browser.one(f"#table-{name} th button").click()
    assert browser.complaints() == []
    assert browser.requests() == [h200.as_uri()]
    policy = browser.one("meta[http-equiv]").get_attribute("content")
    assert policy.startswith("default-src 'none'; style-src 'sha256-")
    assert "unsafe" not in policy
    assert not re.search(r"https?://(?!www\.w3\.org)", h200.read_text())


def test_a_page_cannot_run_what_is_put_into_it(browser, h200, folder):
    """Were a name not escaped: the policy stops scripts, handlers and images."""
    attack = "<img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script>"
    (folder / "attacked.html").write_text(h200.read_text().replace("<h1>", f"<h1>{attack}"))
    browser.open(folder / "attacked.html")
    assert browser.driver.title != "owned"
    assert any("Content Security Policy" in text for text in browser.complaints())


def test_tables_sort_by_click_and_by_keyboard(browser, h200):
    """Up, down, by another column; the header says which; figures sort as figures."""
    browser.open(h200)
    speeds = [float(text) for text in column(browser, "best", "tok/s")]
    head = browser.all("#table-best th[scope=col]")
    at = [cell.text for cell in head].index("tok/s")
    head[at].find_element("css selector", "button").click()
    assert [float(text) for text in column(browser, "best", "tok/s")] == sorted(speeds)
    assert head[at].get_attribute("aria-sort") == "ascending"
    button = head[at].find_element("css selector", "button")
    button.send_keys(Keys.ENTER)
    assert [float(text) for text in column(browser, "best", "tok/s")] == sorted(speeds, reverse=True)
    assert head[at].get_attribute("aria-sort") == "descending"
    head[1].find_element("css selector", "button").send_keys(Keys.SPACE)
    corpora = column(browser, "best", "corpus")
    assert corpora == sorted(corpora)
    assert [cell.get_attribute("aria-sort") for cell in head].count("ascending") == 1
    assert head[at].get_attribute("aria-sort") is None


def test_nothing_measured_sorts_last_both_ways(browser, seeds, folder, headline):
    """A dash is no small figure."""
    arms = [["model", "corpus", "arm", "k", "output_tok_per_s"]]
    arms += [[m, "mix", "van", "", v] for m, v in headline["van_off_tok_per_s"].items()]
    with (folder / "van.csv").open("w", newline="") as file:
        csv.writer(file).writerows(arms)
    write_report([published("ksweep"), folder / "van.csv"], folder / "partly.html")
    browser.open(folder / "partly.html")
    titles = [cell.text for cell in browser.all("#table-best th[scope=col]")]
    button = browser.all("#table-best th[scope=col] button")[titles.index("vs van")]
    for _ in range(2):
        button.click()
        shown = column(browser, "best", "vs van")
        assert "-" not in shown[:11]
        assert set(shown[11:]) == {"-"}


def test_tables_filter_by_typing(browser, seeds):
    """Words in any order; the count is told; an emptied filter shows everything again."""
    browser.open(seeds)
    box = browser.one("#filter-table-best")
    assert browser.one(f"label[for={box.get_attribute('id')}]").text == "Filter"
    box.send_keys("mbpp LLAMA")
    assert set(column(browser, "best", "corpus")) == {"mbpp"}
    assert all("Llama" in name for name in column(browser, "best", "model"))
    status = browser.one(".filter:has(#filter-table-best) [role=status]")
    assert status.text == "4 of 77 rows"
    box.send_keys(Keys.CONTROL, "a")
    box.send_keys(Keys.DELETE)
    assert status.text == "77 of 77 rows"
    assert len(column(browser, "best", "corpus")) == 77


def test_values_show_when_pointed_at(browser, seeds):
    """The words of a mark beside it, gone when the pointer leaves."""
    browser.open(seeds)
    mark = browser.one("#figure-heatmap .mark[data-model=DeepSeek-R1][data-corpus=mbpp]")
    ActionChains(browser.driver).move_to_element(mark).perform()
    assert browser.one("#tip").text == "DeepSeek-R1, mbpp: K=4, 1852 tok/s (one trial, not established)"
    ActionChains(browser.driver).move_to_element(browser.one("h1")).perform()
    assert browser.one("#tip").text == ""


def test_values_show_by_keyboard(browser, seeds):
    """Arrow keys step through a focused drawing, Home and End jump, Escape hides; the tip is live."""
    browser.open(seeds)
    words = browser.texts("#figure-price .mark > title")
    browser.js("document.querySelector('#figure-price svg').focus()")
    keys = browser.driver.switch_to.active_element
    shown = []
    for key in (Keys.ARROW_RIGHT, Keys.ARROW_RIGHT, Keys.ARROW_LEFT, Keys.END, Keys.HOME):
        keys.send_keys(key)
        shown.append(browser.one("#tip").text)
    assert shown == [words[0], words[1], words[0], words[-1], words[0]]
    assert browser.one("#tip").get_attribute("role") == "status"
    keys.send_keys(Keys.ESCAPE)
    assert browser.one("#tip").text == ""
    assert not browser.all(".mark.at")


def test_everything_is_reached_by_keyboard_and_named_for_readers(browser, h200):
    """A skip link first, headings in order, scopes and captions of tables, labels, no id twice."""
    browser.open(h200)
    browser.one("body").send_keys(Keys.TAB)
    assert browser.driver.switch_to.active_element.get_attribute("href").endswith("#main")
    levels = [int(e.tag_name[1]) for e in browser.all("h1, h2, h3")]
    assert levels[0] == 1
    assert all(later - level <= 1 for level, later in pairwise(levels))
    assert not browser.all("th:not([scope])")
    assert len(browser.all("table > caption")) == len(browser.all("table"))
    ids = [e.get_attribute("id") for e in browser.all("[id]")]
    assert len(ids) == len(set(ids))
    for link in browser.all("nav a"):
        assert browser.all(link.get_dom_attribute("href"))
    unnamed = "return [...document.querySelectorAll('input,button,svg,section')].filter((e) => "
    unnamed += "!e.textContent && !e.labels?.length && !e.ariaLabel).length"
    assert browser.js(unnamed) == 0
    assert browser.js("return document.documentElement.lang") == "en"


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_both_colour_schemes_can_be_read(browser, h200, scheme):
    """The scheme of the reader; text, links and drawings stand out as WCAG 2 asks for (4.5 to 1)."""
    browser.open(h200, scheme)
    paper = colour(browser, "body", "backgroundColor")
    is_dark = contrast(paper, "#000000") < contrast(paper, "#ffffff")
    assert is_dark == (scheme == "dark")
    for selector, name in (("h1", "color"), (".caption", "color"), ("nav a", "color"), ("td", "color")):
        assert contrast(colour(browser, selector, name), paper) >= 4.5, selector
    for selector in ("text.f-ink", "text.f-muted"):
        assert contrast(colour(browser, selector, "fill"), paper) >= 4.5, selector
    for k in range(8):
        if browser.all(f"text.f-on-k{k}"):
            pair = [colour(browser, f".f-{role}{k}", "fill") for role in ("k", "on-k")]
            assert contrast(*pair) >= 4.5, k
    browser.picture(f"h200-{scheme}")


def colour(browser, selector, name):
    """A computed colour as #rrggbb."""
    script = "return getComputedStyle(document.querySelector(arguments[0]))[arguments[1]]"
    parts = re.findall(r"\d+", browser.js(script, selector, name))
    return "#" + "".join(f"{int(part):02x}" for part in parts[:3])


def test_a_narrow_window_scrolls_figures_and_not_the_page(browser, h200):
    """On a telephone no line of text leaves the screen; wide drawings scroll inside their own box."""
    browser.open(h200, size=NARROW)
    assert browser.js("return document.documentElement.scrollWidth") <= NARROW[0]
    assert browser.js("return document.querySelector('#figure-curves-1 .scroll').scrollWidth") > NARROW[0]
    browser.picture("h200-narrow")


def test_paper_is_light_and_has_no_controls(browser, h200):
    """Printed from a dark screen: dark on light, drawings inside the page, nothing to click."""
    browser.open(h200, "dark")
    browser.media("dark", "print")
    assert contrast(colour(browser, "h1", "color"), "#ffffff") >= 4.5
    assert contrast(colour(browser, "text.f-ink", "fill"), "#ffffff") >= 4.5
    hidden = (
        "return ['nav', '.filter', '#tip'].map((s) => getComputedStyle(document.querySelector(s)).display)"
    )
    assert browser.js(hidden) == ["none"] * 3
    assert browser.paper("h200-print").stat().st_size > 20_000


def test_names_with_markup_are_text(browser, folder):
    """As model, corpus, arm, host and reason: shown as they are, run nowhere, one script on the page."""
    run = folder / "hostile"
    rows = []
    for i, name in enumerate(HOSTILE):
        shared = {"model": name, "corpus": HOSTILE[-1 - i], "host": name, "reason": None, "gpu_name": "g"}
        rows += [(f"{i}.{k}", {**ok(k, 100.0 + i + k), **shared}) for k in (4, 8)]
        bad = {"status": "failed", "reason": name, "detail": name, "output_tok_per_s": None}
        rows.append((f"{i}.bad", {**ok(12, None), **shared, **bad}))
        rows.append((f"{i}.sentinel", {**ok(4, 90.0), **shared, "arm": name, "is_sentinel": True}))
        rows.append(
            (f"{i}.sentinel2", {**ok(4, 95.0), **shared, "arm": name, "is_sentinel": True, "round": 2})
        )
    write_run(run, *rows, sweep=HOSTILE[0])
    write_report([run], folder / "hostile.html")
    browser.open(folder / "hostile.html")
    assert browser.complaints() == []
    assert browser.requests() == [(folder / "hostile.html").as_uri()]
    assert browser.driver.title == "kpad-bench: best K of 5 models on 5 corpora"
    assert len(browser.all("script")) == 1
    assert not browser.all("img, iframe, object, b, [onerror], [onmouseover]")
    assert set(column(browser, "best", "model")) == set(HOSTILE)
    assert set(HOSTILE) <= set(column(browser, "failures", "reason"))
    assert {cell["model"] for cell in facts(browser, "#figure-heatmap .mark[data-k]")} == set(HOSTILE)
    assert cut_texts(browser) == []
    browser.picture("hostile")


def test_names_of_others_fit_their_drawings(browser, h200, seeds):
    """No text leaves its drawing on either side."""
    for page in (h200, seeds):
        browser.open(page)
        assert cut_texts(browser) == []


def cut_texts(browser):
    """Texts of drawings that leave their drawing on a side."""
    return browser.js(
        """return [...document.querySelectorAll('svg.figure text')].filter((text) => {
          const own = text.getBoundingClientRect(), all = text.ownerSVGElement.getBoundingClientRect();
          return own.width && (own.left < all.left - 1 || own.right > all.right + 1);
        }).map((text) => text.textContent)"""
    )


BAD = {
    "no ok trial": (
        [("a", {**ok(4, None), "status": "failed", "reason": "kv_oom"})],
        "No trial went well",
    ),
    "one K": ([("a", ok(4, 100.0)), ("b", ok(4, 101.0, round=2))], "One K per cell was measured"),
    "no arm with a K": ([("a", ok(None, 100.0, arm="van"))], "No arm with a K was measured"),
    "no baseline": ([("a", ok(4, 100.0)), ("b", ok(8, 90.0))], "van and suf not measured beside kpad"),
    "one baseline": (
        [("a", ok(4, 100.0)), ("b", ok(8, 90.0)), ("c", ok(None, 50.0, arm="van"))],
        "suf not measured beside kpad",
    ),
    "trials that are not alike": (
        [("a", {**ok(4, 100.0), "driver": "1"}), ("b", {**ok(8, 90.0), "driver": "2"})],
        "its trials are not alike",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_a_page_says_what_it_lacks(browser, folder, name):
    """Whatever is missing: a whole page that says so, with no complaint."""
    rows, text = BAD[name]
    run = folder / name.replace(" ", "-")
    write_run(run, *rows)
    write_report([run], run.with_suffix(".html"))
    browser.open(run.with_suffix(".html"))
    assert browser.complaints() == []
    assert text in browser.one(".limits").text
    assert len(browser.all("section")) == 12
    for part in browser.all("section"):
        assert part.find_elements("css selector", "figure, table, p")
