"""How many tokens a prompt is, by the tokenizer and the chat template of a model folder.

``tokenizers`` and ``jinja2`` come with vLLM and are imported when a prompt is counted, not before:
opening a frozen set and checking a tokenizer's hash need neither.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import json
import unicodedata
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from kpad_bench.corpus_manifest import Budget
from kpad_bench.errors import DataError, HostError, UsageError
from kpad_bench.prompt import Prompt

#: The files that decide how many tokens a prompt is.
TOKENIZER_FILE, CONFIG_FILE, TEMPLATE_FILE = "tokenizer.json", "tokenizer_config.json", "chat_template.jinja"
#: What templates that ask for today get, so that a lock is the same tomorrow.
TEMPLATE_DATE = dt.datetime(2024, 7, 26, tzinfo=dt.UTC)


class TokenizerFiles(NamedTuple):
    """The tokenizer of a model folder, read and hashed, not loaded."""

    name: str
    path: Path
    template: str
    special: dict[str, str]
    sha256: str


def read_tokenizer(name: str, folder: Path) -> TokenizerFiles:
    """What is in a model folder. Raises UsageError naming the file that is missing or not readable."""
    path = folder / TOKENIZER_FILE
    try:
        content_hash = hashlib.sha256(path.read_bytes()).hexdigest()
        config = dict(json.loads((folder / CONFIG_FILE).read_text(encoding="utf-8")))
        template_path = folder / TEMPLATE_FILE
        template = (
            template_path.read_text(encoding="utf-8")
            if template_path.is_file()
            else _template_in(config.get("chat_template"))
        )
    except (OSError, ValueError, TypeError) as error:
        raise UsageError(
            f"tokenizer {name}: {folder}: needs {TOKENIZER_FILE} and {CONFIG_FILE} "
            f"({' '.join(str(error).split())[:200]}); give the folder of a model with both"
        ) from None
    if not template:
        raise UsageError(
            f"tokenizer {name}: {folder}: no chat template, neither {TEMPLATE_FILE} nor in {CONFIG_FILE}: "
            "chat prompts cannot be counted; give an instruction-tuned model"
        )
    special = {
        key: value["content"] if isinstance(value, Mapping) else str(value)
        for key in ("bos_token", "eos_token", "pad_token", "unk_token")
        if (value := config.get(key)) is not None
    }
    identity = json.dumps([content_hash, template, special], sort_keys=True)
    return TokenizerFiles(name, path, template, special, hashlib.sha256(identity.encode()).hexdigest())


def _template_in(value: Any) -> str:
    """A template, or the one called default of several."""
    if isinstance(value, list):
        return str(next((one["template"] for one in value if one.get("name") == "default"), ""))
    return value or ""


class _Refused(Exception):
    """A template said that it does not take these messages."""


class Counter:
    """Counts the tokens of a prompt as the server sees it: template, then tokenizer."""

    def __init__(self, files: TokenizerFiles) -> None:
        self.name, self.sha256 = files.name, files.sha256
        try:
            import tokenizers  # noqa: PLC0415 needed for freezing with a token budget alone

            self._render = _renderer(files)
            self._tokenizer = tokenizers.Tokenizer.from_file(str(files.path))
        except ImportError as error:
            raise HostError(
                f"tokenizer {files.name}: the Python package {error.name} is not installed (it comes with "
                "vLLM): pip install tokenizers jinja2"
            ) from None
        except Exception as error:  # tokenizers and jinja2 each raise their own
            raise UsageError(f"tokenizer {files.name}: {files.path}: cannot be loaded ({error})") from error
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()

    def count(self, messages: list[dict[str, str]]) -> int | None:
        """Tokens of these messages; None when the template refuses them."""
        try:
            text = self._render(messages)
        except _Refused:
            return None
        return len(self._tokenizer.encode(text, add_special_tokens=False).ids)


def _renderer(files: TokenizerFiles) -> Callable[[list[dict[str, str]]], str]:
    """The template as transformers renders it (utils/chat_template_utils.py), on a fixed day."""
    from jinja2.sandbox import ImmutableSandboxedEnvironment  # noqa: PLC0415 see above

    def refuse(message: str) -> NoReturn:
        raise _Refused(message)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = lambda value, **options: json.dumps(value, ensure_ascii=False, **options)
    environment.globals |= {"raise_exception": refuse, "strftime_now": TEMPLATE_DATE.strftime}
    template = environment.from_string(files.template)

    def render(messages: list[dict[str, str]]) -> str:
        return template.render(messages=messages, add_generation_prompt=True, **files.special)

    return render


class Limits:
    """Whether prompts keep to a budget, by every tokenizer named; by bytes when none is named."""

    def __init__(self, budget: Budget, counters: list[Counter]) -> None:
        self._budget, self._counters = budget, counters

    def fits(self, text: str, system: str | None) -> str | None:
        """Why a prompt is dropped; None when it fits. A short one fits every tokenizer and is not counted."""
        if prompt_bytes(text, system) <= self._budget.limit_bytes and not (system and self._counters):
            return None
        if not self._counters:
            return "over_bytes"
        messages = Prompt("", text, system, "").messages()
        lengths = [counter.count(messages) for counter in self._counters]
        if None in lengths:
            return "refused_by_template"
        longest = max(length for length in lengths if length is not None)
        return "over_tokens" if longest > self._budget.limit_tokens else None

    def longest(self, prompts: list[Prompt]) -> dict[str, int]:
        """Tokenizer -> tokens of its longest prompt. Raises DataError when that is over the limit."""
        found: dict[str, int] = {}
        for counter in self._counters:
            longest = max((counter.count(prompt.messages()) or 0 for prompt in prompts), default=0)
            if longest > self._budget.limit_tokens:
                raise DataError(
                    f"tokenizer {counter.name}: its template makes a prompt of {longest} tokens from at most "
                    f"{self._budget.limit_bytes} bytes, the limit is {self._budget.limit_tokens}: this "
                    "tokenizer is not byte-level, or its template is very long"
                )
            found[counter.name] = longest
        return found


def prompt_bytes(text: str, system: str | None) -> int:
    """Bytes that a byte-level tokenizer sees; some first compose characters (NFC), which can lengthen."""
    whole = text if system is None else system + text
    if whole.isascii():
        return len(whole)
    return max(len(whole.encode()), len(unicodedata.normalize("NFC", whole).encode()))
