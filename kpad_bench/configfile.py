"""Sweep configurations from YAML, with every name in them looked up.

An error names the file, the key, the value and what is allowed. Nothing is looked up in a hub, a
GPU or vLLM.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from kpad_bench.config import Arm, Frozen, ModelEntry, Resolved, SweepConfig
from kpad_bench.errors import HostError, UsageError


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
            f"{path}: cannot be read ({error.strerror}); give --config an existing YAML file"
        ) from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: not valid YAML: {' '.join(str(error).split())}") from None
    if not isinstance(data, dict):
        raise UsageError(f"{path}: expected a mapping of keys, found {type(data).__name__}")
    return data


def validate(model: type[Frozen], data: Mapping[str, Any], where: str) -> Any:
    """Build a configuration object; every fault is told as file: key: value: what is allowed."""
    try:
        return model.model_validate(dict(data))
    except ValidationError as error:
        raise UsageError("\n".join(_fault(where, model, item) for item in error.errors())) from None


def _fault(where: str, model: type[Frozen], item: Any) -> str:
    key = ".".join(str(part) for part in item["loc"] if not str(part).startswith("function-")) or "(top)"
    if item["type"] == "extra_forbidden":
        fields = _fields_at(model, item["loc"][:-1])
        return f"{where}: {key}: unknown key; allowed here: {', '.join(sorted(fields))}"
    if item["type"] == "missing":
        return f"{where}: {key}: missing; it has no default"
    return f"{where}: {key}: {item['input']!r}: {item['msg']}"


def _fields_at(model: type[Frozen], loc: tuple[int | str, ...]) -> list[str]:
    for part in loc:
        field = model.model_fields.get(str(part))
        if field is None or not (isinstance(field.annotation, type) and issubclass(field.annotation, Frozen)):
            return ["see the documentation of this key"] if field is None else list(model.model_fields)
        model = field.annotation
    return list(model.model_fields)


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


def load_arms(path: Path | None = None) -> dict[str, Arm]:
    """The arms of an ``arms.yaml``, by name."""
    return _entries(path or data_dir("configs") / "arms.yaml", "arms", Arm)


def _entries(path: Path, key: str, model: type[Frozen]) -> dict[str, Any]:
    data = read_yaml(path)
    if set(data) != {key} or not isinstance(data[key], dict):
        raise UsageError(f"{path}: expected one key '{key}' with a mapping of names, found {sorted(data)}")
    return {
        str(name): validate(model, value or {}, f"{path}: {key}.{name}") for name, value in data[key].items()
    }


def find_config(name: str | Path) -> Path:
    """A config by path, or by name among those shipped (``quickstart``, ``nightly-dgx-b200``)."""
    path = Path(name)
    shipped = data_dir("configs") / f"{path.name.removesuffix('.yaml')}.yaml"
    return path if path.exists() or not shipped.exists() else shipped


def load_sweep(path: Path, overrides: Mapping[str, Any] | None = None) -> Resolved:
    """Read a sweep, apply overrides (dotted keys, as the CLI's options give them), look names up."""
    data = read_yaml(path)
    arms = {
        name: validate(Arm, arm or {}, f"{path}: define_arms.{name}")
        for name, arm in _pop(data, "define_arms")
    }
    models = {
        tag: validate(ModelEntry, entry or {}, f"{path}: define_models.{tag}")
        for tag, entry in _pop(data, "define_models")
    }
    for dotted, value in (overrides or {}).items():
        _set(data, dotted, value)
    where = f"{path} with options" if overrides else str(path)
    config: SweepConfig = validate(SweepConfig, data, where)
    return resolve(config, {**load_models(), **models}, {**load_arms(), **arms}, where)


def _pop(data: dict[str, Any], key: str) -> list[tuple[str, Any]]:
    value = data.pop(key, None) or {}
    return [(str(name), entry) for name, entry in value.items()]


def _set(data: dict[str, Any], dotted: str, value: Any) -> None:
    *parents, last = dotted.split(".")
    for parent in parents:
        data = data.setdefault(parent, {})
    data[last] = value


def resolve(
    config: SweepConfig, models: Mapping[str, ModelEntry], arms: Mapping[str, Arm], where: str
) -> Resolved:
    """Look up every model and arm. Raises UsageError with the allowed names."""
    return Resolved(
        config=config,
        models={tag: _find_model(tag, models, where) for tag in config.models},
        arms={spec: _find_arm(spec, arms, where) for spec in config.arms},
    )


def _find_model(tag: str, models: Mapping[str, ModelEntry], where: str) -> ModelEntry:
    if tag in models:
        return models[tag]
    if tag.startswith(("/", "./", "../", "~")):
        folder = Path(tag).expanduser()
        if not (folder / "config.json").is_file():
            raise HostError(
                f"model folder {tag}: no config.json there; give a folder with a Hugging Face model"
            )
        return ModelEntry(local=str(folder.resolve()), family="local")
    if tag.count("/") == 1 and all(tag.split("/")):
        return ModelEntry(hf_id=tag, family=tag.split("/", maxsplit=1)[0])
    raise UsageError(
        f"{where}: models: {tag!r}: no such model; allowed: {', '.join(sorted(models))}, "
        "a hub id (org/name) or a local path (./folder)"
    )


def _find_arm(spec: str, arms: Mapping[str, Arm], where: str) -> Arm:
    name, at, k_text = spec.partition("@")
    if name not in arms:
        raise UsageError(
            f"{where}: arms: {spec!r}: no such arm; allowed: {', '.join(sorted(arms))}, or name@K"
        )
    arm = arms[name]
    if not at:
        return arm
    if arm.speculation == "none":
        raise UsageError(f"{where}: arms: {spec!r}: {name} does not speculate, so it takes no K")
    return arm.model_copy(update={"k": positive_k(k_text, f"{where}: arms: {spec!r}")})


def positive_k(text: str, where: str) -> int:
    """A K given as text. Raises UsageError when it is not a positive integer."""
    if not text.strip().isdecimal() or int(text) == 0:
        raise UsageError(f"{where}: {text!r}: K must be a positive integer such as 8")
    return int(text)
