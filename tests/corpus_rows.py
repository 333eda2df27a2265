"""Invented rows for the tests of prompt sets."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

import pytest

ROWS = [{"task_id": f"HumanEval/{n}", "prompt": f"def f{n}(x):\n    '''Add {n}.'''\n"} for n in range(60)]
MBPP = [{"task_id": n, "text": f"Add {n}.", "test_list": [f"assert f({n})"] * 3} for n in range(90)]


def lines(path: Path, rows: Iterable[dict]) -> Path:
    """A file of JSON lines."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def chats(texts: Iterable[str], name: str = "c") -> list[dict]:
    """One conversation for each text."""
    return [
        {
            "id": f"{name}{n}",
            "conversations": [{"from": "human", "value": text}, {"from": "gpt", "value": "yes"}],
        }
        for n, text in enumerate(texts)
    ]


TEMPLATE = (
    "{% for message in messages %}<|{{ message['role'] }}|>{{ message['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def tokenizer_folder(folder: Path, template: str = TEMPLATE) -> Path:
    """A model folder with a byte-level tokenizer that knows single bytes alone: a byte is a token."""
    tokenizers = pytest.importorskip("tokenizers")
    pytest.importorskip("jinja2")
    alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    made = tokenizers.Tokenizer(
        tokenizers.models.BPE(vocab={char: n for n, char in enumerate(alphabet)}, merges=[])
    )
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    folder.mkdir(parents=True, exist_ok=True)
    made.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": {"content": "</s>"}}))
    (folder / "chat_template.jinja").write_text(template)
    (folder / "config.json").write_text("{}")
    return folder
