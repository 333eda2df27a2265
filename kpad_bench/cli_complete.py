"""What a shell may complete: names from the configuration files.

Called by Typer while somebody types: a file that cannot be read completes to nothing. Decides nothing.
"""

from __future__ import annotations

from collections.abc import Iterator

from kpad_bench.errors import KpadError


def models(incomplete: str) -> list[str]:
    """Tags of models.yaml."""
    return _starting(incomplete, "models")


def arms(incomplete: str) -> list[str]:
    """Arms of arms.yaml."""
    return _starting(incomplete, "arms")


def configs(incomplete: str) -> list[str]:
    """Shipped sweeps."""
    return _starting(incomplete, "sweeps")


def corpora(incomplete: str) -> list[str]:
    """Prompt sets that have a manifest."""
    return _starting(incomplete, "corpora")


def _starting(incomplete: str, what: str) -> list[str]:
    try:
        return sorted(name for name in _names(what) if name.startswith(incomplete))
    except KpadError:
        return []


def _names(what: str) -> Iterator[str]:
    from kpad_bench import configfile  # noqa: PLC0415 pydantic is slow to load

    if what == "sweeps":
        yield from configfile.shipped_sweeps()
    elif what == "corpora":
        yield from (path.stem for path in configfile.data_dir("corpora").glob("*.yaml"))
    else:
        found = configfile.read_yaml(configfile.data_dir("configs") / f"{what}.yaml").get(what)
        yield from map(str, found if isinstance(found, dict) else ())
