"""What --help teaches: an example and the next step of every command, and the order in which one needs them.

Text alone; knows of no command what it does.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from typer.core import TyperGroup


class Step(NamedTuple):
    """A line to copy, and what one does after it."""

    example: str
    then: str


#: By command, in the order of a first measurement.
STEPS = {
    "models fetch": Step(
        "kpad-bench models fetch smollm2-135m",
        "kpad-bench corpora freeze humaneval-a, the same for humaneval-b, and kpad-bench sweep --config "
        "quickstart.",
    ),
    "models prefetch": Step(
        "kpad-bench models prefetch --config nightly-dgx-b200 --dry-run",
        "kpad-bench sweep with the same --config: its servers boot without the network.",
    ),
    "corpora list": Step(
        "kpad-bench corpora list --format json",
        "kpad-bench corpora freeze NAME for a set that is not frozen.",
    ),
    "corpora freeze": Step(
        "kpad-bench corpora freeze mbpp --source mbpp.jsonl",
        "kpad-bench corpora show NAME to look at the prompts, kpad-bench sweep --corpus NAME to measure with "
        "them.",
    ),
    "corpora verify": Step(
        "kpad-bench corpora verify humaneval",
        "kpad-bench corpora freeze NAME for a set that does not match; rows of other prompts do not compare.",
    ),
    "corpora show": Step(
        "kpad-bench corpora show humaneval --prompts 2",
        "kpad-bench sweep --corpus NAME to measure with them.",
    ),
    "sweep": Step(
        "kpad-bench sweep --config quickstart --arm van --arm kpad --k 4,8",
        "kpad-bench reduce on its folder in results/. The same command again resumes; --dry-run shows the "
        "plan.",
    ),
    "nightly": Step(
        "kpad-bench nightly --config nightly-dgx-b200 --budget 10h",
        "the command that its page ends with; docs/nightly.md has the timer.",
    ),
    "reduce": Step(
        "kpad-bench reduce results/quickstart --format md",
        "kpad-bench report for the figures, kpad-bench recommend for the launch line; where nothing is "
        "established, kpad-bench sweep with more --rounds.",
    ),
    "report": Step(
        "kpad-bench report results/default --out report.html",
        "kpad-bench recommend for the launch line, kpad-bench compare for what changed since another night.",
    ),
    "recommend": Step(
        "kpad-bench recommend results/default --model Llama-3.1-8B-Instruct --corpus mbpp",
        "start the server with that line; kpad-bench verify shows whether its output stays the same.",
    ),
    "compare": Step(
        "kpad-bench compare results/default/OLD results/default/NEW --fail-on regression:3%",
        "the causes it names; kpad-bench report of the newer night for its figures.",
    ),
    "verify": Step(
        "kpad-bench verify --config quickstart --k 4,8", "kpad-bench sweep, to measure what padding gains."
    ),
    "doctor": Step(
        "kpad-bench doctor --config nightly-dgx-b200 --out /data/results",
        "mend the failures, each by its ->; then kpad-bench sweep with the same --config and --out.",
    ),
    "export": Step(
        "kpad-bench export results/default --format prometheus --out /var/lib/node_exporter/kpad_bench.prom",
        "the other tool reads what was written; docs/export.md says what each key and metric means.",
    ),
}
#: Commands and groups as --help lists them; others follow.
ORDER = (
    "doctor", "models", "corpora", "sweep", "nightly", "reduce", "report", "recommend", "compare", "history",
    "verify", "export",
)  # fmt: skip
#: A paragraph after \b keeps its line breaks.
FIRST_STEPS = """\b
A first measurement:
  kpad-bench corpora freeze humaneval      prompts, frozen once
  kpad-bench sweep --model MODEL --corpus humaneval --arm van --arm kpad
  kpad-bench reduce results/default        the best-K table
  kpad-bench recommend results/default --model MODEL

Without a GPU, in a checkout: make quickstart. An example of each command: kpad-bench COMMAND --help."""


def guide(command: str) -> str:
    """The end of a command's --help."""
    example, then = STEPS[command]
    return f"\b\nExample: {example}\n\nNext: {then}"


class InOrder(TyperGroup):
    """Lists commands in ``ORDER``."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Names of the commands."""
        names = super().list_commands(ctx)
        return sorted(names, key=lambda name: ORDER.index(name) if name in ORDER else len(ORDER))
