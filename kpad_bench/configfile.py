"""Sweep configurations from YAML, with every name in them looked up.

An error names the file, the key, the value and what is allowed. Nothing is looked up in a hub, a
GPU or vLLM.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

import yaml
from pydantic import ValidationError

from kpad_bench import model_lock
from kpad_bench.config import MOST_K, Arm, Frozen, ModelEntry, Resolved, Slot, SweepConfig
from kpad_bench.errors import HostError, UsageError

#: One entry of the lists that must not be empty.
NOUNS = {"models": "model", "corpora": "corpus", "arms": "arm", "k": "K"}
HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+", re.ASCII)
ARM_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


class _UniqueKeys(yaml.SafeLoader):
    """YAML that refuses a key given twice: the second would silently win."""


def _unique_mapping(loader: _UniqueKeys, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
    keys = [loader.construct_object(key, deep=deep) for key, _ in node.value]
    twice = sorted({str(key) for key in keys if keys.count(key) > 1})
    if twice:
        raise yaml.constructor.ConstructorError(
            None, None, f"key given twice: {', '.join(twice)}", node.start_mark
        )
    return yaml.SafeLoader.construct_mapping(loader, node, deep)


_UniqueKeys.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _unique_mapping)


def read_yaml(path: Path) -> dict[str, Any]:
    """A YAML mapping. Raises UsageError with file and line when it is not one."""
    try:
        data = yaml.load(path.read_text(encoding="utf-8"), Loader=_UniqueKeys)  # noqa: S506 a SafeLoader
    except OSError as error:
        raise UsageError(
            f"{path}: cannot be read ({error.strerror}); give an existing YAML file, "
            f"or the name of a shipped sweep: {', '.join(shipped_sweeps())}"
        ) from None
    except RecursionError:
        raise UsageError(f"{path}: not valid YAML: nested too deeply") from None
    except (yaml.YAMLError, ValueError) as error:  # ValueError: not UTF-8, or a date that cannot be
        raise UsageError(f"{path}: not valid YAML: {' '.join(str(error).split())}") from None
    if not isinstance(data, dict):
        raise UsageError(f"{path}: expected a mapping of keys, found {type(data).__name__}")
    return data


def validate(model: type[Frozen], data: Any, where: str) -> Any:
    """Build a configuration object; every fault is told as file: key: value: what is allowed."""
    if not isinstance(data, Mapping):
        raise UsageError(f"{where}: {data!r}: expected a mapping of keys")
    try:
        return model.model_validate(dict(data))
    except ValidationError as error:
        raise UsageError("\n".join(_faults(where, model, error.errors()))) from None


def _faults(where: str, model: type[Frozen], items: Sequence[Any]) -> Iterator[str]:
    for item in items:
        # A list whose only entry is bad is then also too short: one message is enough.
        is_echo = item["type"] == "too_short" and any(
            other is not item and other["loc"][: len(item["loc"])] == item["loc"] for other in items
        )
        if not is_echo:
            yield _fault(where, model, item)


def _fault(where: str, model: type[Frozen], item: Any) -> str:
    loc = item["loc"]
    key = ".".join(str(part) for part in loc if part != "[key]") or "(top)"
    if item["type"] == "extra_forbidden":
        fields = _fields_at(model, loc[:-1])
        return f"{where}: {key}: unknown key; allowed here: {', '.join(sorted(fields))}"
    if item["type"] == "missing":
        return f"{where}: {key}: missing; it has no default"
    if item["type"] == "value_error" and not loc:  # the whole file is no value to show
        return f"{where}: {item['ctx']['error']}"
    return f"{where}: {key}: {item['input']!r}: {_allowed(item)}"


def _allowed(item: Any) -> str:
    """What a value must be, in words; pydantic's own where they are good enough."""
    kind, context, loc = item["type"], item.get("ctx", {}), item["loc"] or ("",)
    words: dict[str, str] = {
        "value_error": str(context.get("error")),
        "too_short": f"must have at least one {NOUNS.get(str(loc[-1]), 'entry')}",
        "tuple_type": "must be a list, like [a, b]",
        "dict_type": "must be a mapping of keys",
        "model_type": "must be a mapping of keys",
        "string_type": "must be text; put it in quotes",
        "string_pattern_mismatch": "allowed: letters, digits, dot, dash and underscore, no dash or dot first",
        "int_type": "must be an integer",
        "float_parsing": "must be a number",
        "float_type": "must be a number",
        "finite_number": "must be a finite number",
        "invalid_key": "keys must be text; put it in quotes",
        "greater_than": f"must be above {context.get('gt')}",
        "greater_than_equal": f"must be at least {context.get('ge')}",
        "less_than_equal": f"must be at most {context.get('le')}",
        "literal_error": f"allowed: {context.get('expected')}",
    }
    return words.get(kind, str(item["msg"]))


def _fields_at(model: type[Frozen], loc: tuple[int | str, ...]) -> list[str]:
    """Keys that are allowed at a place; below a free-form mapping (``by_class``) those of its values."""
    for part in loc:
        field = model.model_fields.get(str(part))
        inner = () if field is None else (field.annotation, *get_args(field.annotation))
        model = next((t for t in inner if isinstance(t, type) and issubclass(t, Frozen)), model)
    return list(model.model_fields)


def shipped_sweeps() -> list[str]:
    """Names that ``--config`` takes beside a path."""
    names = {path.stem for path in data_dir("configs").glob("*.yaml")}
    return sorted(names - {"arms", "models"})


def data_dir(name: str) -> Path:
    """``configs`` or ``corpora``: beside the package in a checkout, inside it in a wheel."""
    inside = Path(__file__).parent / "_data" / name
    return inside if inside.is_dir() else Path(__file__).parent.parent / name


def cache_dir() -> Path:
    """Where fetched models live: $KPAD_BENCH_CACHE, else the user's cache folder."""
    explicit = os.environ.get("KPAD_BENCH_CACHE")
    if explicit:
        return Path(explicit)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "kpad-bench"


def load_models(path: Path | None = None) -> dict[str, ModelEntry]:
    """The model entries of a ``models.yaml``, by tag."""
    return _entries(path or data_dir("configs") / "models.yaml", "models", ModelEntry)


def read_slots(path: Path) -> tuple[Slot, ...]:
    """The slots of a host from a YAML file of its own, with the one key ``slots``."""
    data = read_yaml(path)
    if not isinstance(data.get("slots"), list) or set(data) != {"slots"}:
        raise UsageError(f"{path}: a file of slots has one key, slots, with a list of them")
    return tuple(validate(Slot, entry, f"{path}: slots") for entry in data["slots"])


def load_arms(path: Path | None = None) -> dict[str, Arm]:
    """The arms of an ``arms.yaml``, by name."""
    return _entries(path or data_dir("configs") / "arms.yaml", "arms", Arm)


def _entries(path: Path, key: str, model: type[Frozen]) -> dict[str, Any]:
    data = read_yaml(path)
    if set(data) != {key}:
        found = ", ".join(str(name) for name in data) or "nothing"
        raise UsageError(f"{path}: expected the one key '{key}', found {found}")
    return _named(data[key], model, f"{path}: {key}")


def _named(entries: Any, model: type[Frozen], where: str) -> dict[str, Any]:
    """A mapping of names to objects; an entry may be empty when every key has a default."""
    if not isinstance(entries, dict):
        raise UsageError(f"{where}: {entries!r}: expected a mapping of names")
    for name in entries if model is Arm else ():
        if not ARM_NAME.fullmatch(str(name)):
            raise UsageError(f"{where}: {name!r}: an arm's name has letters, digits, dot, dash, underscore")
    return {
        str(name): validate(model, {} if value is None else value, f"{where}.{name}")
        for name, value in entries.items()
    }


def find_config(name: str | Path) -> Path:
    """A config by path, or by name among those shipped (``quickstart``, ``nightly-dgx-b200``)."""
    path = Path(name)
    is_bare = len(path.parts) == 1 and not path.is_file()
    shipped = path.name.removesuffix(".yaml")
    return data_dir("configs") / f"{shipped}.yaml" if is_bare and shipped in shipped_sweeps() else path


def load_sweep(path: Path, overrides: Mapping[str, Any] | None = None, locked: bool = True) -> Resolved:
    """Read a sweep, apply overrides (dotted keys, as the CLI's options give them), look names up.

    ``locked``: models get the commits of the lock.
    """
    data = read_yaml(path)
    arms = _named(data.pop("define_arms", None) or {}, Arm, f"{path}: define_arms")
    models = _named(data.pop("define_models", None) or {}, ModelEntry, f"{path}: define_models")
    corpora = _listed(data.get("corpora"))
    for dotted, value in (overrides or {}).items():
        _set(data, dotted, value)
    where = f"{path} with options" if overrides else str(path)
    config: SweepConfig = validate(SweepConfig, data, where)
    _check_by_corpus(config, corpora, where)
    resolved = resolve(config, {**load_models(), **models}, {**load_arms(), **arms}, where)
    return resolved.model_copy(update={"models": pinned_models(resolved.models)}) if locked else resolved


def model_lock_path() -> Path:
    """Where ``models prefetch`` keeps the commits it has found."""
    return cache_dir() / model_lock.FILE


def pinned_models(models: Mapping[str, ModelEntry]) -> dict[str, ModelEntry]:
    """The entries with the commits of the lock in place of names that may come to mean another one."""
    commits = model_lock.read(model_lock_path())
    found = {tag: commits.get(model_lock.key(one.hf_id or "", one.revision)) for tag, one in models.items()}
    return {
        tag: one.model_copy(update={"revision": found[tag] or one.revision}) for tag, one in models.items()
    }


def _listed(value: Any) -> list[str]:
    return [str(entry) for entry in value] if isinstance(value, list) else []


def _check_by_corpus(config: SweepConfig, corpora: Sequence[str], where: str) -> None:
    """``load.by_corpus`` speaks of corpora of the sweep, as written or as asked for, or of shipped ones."""
    shipped = {path.stem for path in data_dir("corpora").glob("*.yaml")}
    known = shipped | set(corpora) | set(config.corpora)
    unknown = sorted(set(config.load.by_corpus) - known)
    if unknown:
        allowed = ", ".join(sorted(known))
        raise UsageError(f"{where}: load.by_corpus: {', '.join(unknown)}: no such corpus; allowed: {allowed}")


def _set(data: dict[str, Any], dotted: str, value: Any) -> None:
    """Set a key; a parent that is no mapping stays, for ``validate`` to tell of."""
    *parents, last = dotted.split(".")
    for parent in parents:
        inner = data.setdefault(parent, {})
        if not isinstance(inner, dict):
            return
        data = inner
    data[last] = value


def resolve(
    config: SweepConfig, models: Mapping[str, ModelEntry], arms: Mapping[str, Arm], where: str
) -> Resolved:
    """Look up every model and arm. Raises UsageError with the allowed names."""
    found: dict[str, Arm] = {}
    for spec in config.arms:
        name, arm = _find_arm(spec, arms, f"{where}: arms")
        if name in found:
            raise UsageError(f"{where}: arms: {spec!r}: {name} is there already; name each arm and K once")
        found[name] = arm
    entries = {tag: _find_model(tag, models, f"{where}: models") for tag in config.models}
    as_found: dict[str, Any] = {"arms": tuple(found)}  # kpad@08 is kpad@8
    if config.sentinel is not None:
        tag, spec = config.sentinel.model, config.sentinel.arm
        name, arm = _find_arm(spec, arms, f"{where}: sentinel.arm")
        if arm.k == "sweep":
            raise UsageError(f"{where}: sentinel.arm: {spec!r}: name its K, like {name}@8")
        entries |= {tag: _find_model(tag, models, f"{where}: sentinel.model")}
        found |= {name: arm}
        as_found["sentinel"] = config.sentinel.model_copy(update={"arm": name})
    return Resolved(config=config.model_copy(update=as_found), models=entries, arms=found)


def _find_model(tag: str, models: Mapping[str, ModelEntry], where: str) -> ModelEntry:
    if tag in models:
        return models[tag]
    if tag.startswith(("/", "./", "../", "~")):
        folder = Path(os.path.expanduser(tag))  # Path.expanduser raises for an unknown user
        if not (folder / "config.json").is_file():
            raise HostError(
                f"model folder {tag}: no config.json there; give a folder with a Hugging Face model"
            )
        return ModelEntry(local=str(folder.resolve()), family="local")
    if HUB_ID.fullmatch(tag):
        return ModelEntry(hf_id=tag, family=tag.split("/", maxsplit=1)[0])
    raise UsageError(
        f"{where}: {tag!r}: no such model; allowed: {', '.join(sorted(models))}, "
        "a hub id (org/name) or a local path (./folder)"
    )


def _find_arm(spec: str, arms: Mapping[str, Arm], where: str) -> tuple[str, Arm]:
    """The arm as ``name`` or ``name@K``, K written as an integer is, and what it is."""
    name, at, k_text = spec.partition("@")
    if name not in arms:
        raise UsageError(f"{where}: {spec!r}: no such arm; allowed: {', '.join(sorted(arms))}, or name@K")
    arm = arms[name]
    if not at:
        return name, arm
    if arm.speculation == "none":
        raise UsageError(f"{where}: {spec!r}: {name} does not speculate, so it takes no K")
    k = positive_k(k_text, f"{where}: {spec!r}")
    return f"{name}@{k}", arm.model_copy(update={"k": k})


def positive_k(text: str, where: str) -> int:
    """A K given as text. Raises UsageError when it is not a positive integer."""
    digits = text.strip()
    if not re.fullmatch(r"0*[1-9][0-9]{0,8}", digits) or int(digits) > MOST_K:
        raise UsageError(f"{where}: {text!r}: K must be a positive integer such as 8, at most {MOST_K}")
    return int(digits)
