"""One user message from one row, by the schema of each data set. Pure; no ranking, no files.

A rule returns an ``Item``, or a ``Dropped`` with the reason that is counted. A row whose keys are not
those of the data set is no row to drop but another file: DataError with the keys that were found.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from kpad_bench.errors import DataError

Row = Mapping[str, Any]
N_ASSERTS = 3  # as the MBPP paper shows tasks; the sanitized file holds up to seven
_PLACEHOLDER = re.compile(r"\{(text|tests)\}")


class Item(NamedTuple):
    """What a rule takes from a row: a key that is stable across files, and the fields of a template."""

    key: str
    fields: dict[str, str]
    system: str | None = None


class Dropped(NamedTuple):
    """A row that gives no prompt, and why."""

    reason: str


def render(template: str, fields: Mapping[str, str]) -> str:
    """Put the fields into a template, in one pass: a brace inside a field stays as it is."""
    return _PLACEHOLDER.sub(lambda match: fields[match[1]], template)


def extract(rule: str, row: Row, filters: Sequence[str], where: str) -> Item | Dropped:
    """Apply a rule. ``where`` names file and row in errors.

    Raises DataError when the row has another schema.
    """
    if not isinstance(row, Mapping):
        raise DataError(f"{where}: expected an object, found {repr(row)[:80]}")
    item = RULES[rule](row, where)
    mark = next((name for name in filters if _is_marked(row, name)), None)
    if isinstance(item, Dropped) or mark is None:
        return item if isinstance(item, Dropped) or item.fields["text"].strip() else Dropped("empty")
    return Dropped(mark)


def _humaneval(row: Row, where: str) -> Item:
    _need(row, ("task_id", "prompt"), where)
    return Item(_text(row, "task_id", where), {"text": _text(row, "prompt", where)})


def _mbpp(row: Row, where: str) -> Item | Dropped:
    """Full rows hold ``text``, sanitized ones ``prompt``; some variants name the asserts ``test``."""
    text_key = "text" if "text" in row else "prompt"
    tests_key = "test" if "test_list" not in row and isinstance(row.get("test"), list) else "test_list"
    _need(row, ("task_id", text_key, tests_key), where)
    tests = row[tests_key]
    if not isinstance(tests, list) or not all(isinstance(test, str) for test in tests):
        raise DataError(f"{where}: {tests_key}: expected a list of texts, found {repr(tests)[:80]}")
    if not tests:
        return Dropped("no_tests")
    fields = {"text": _text(row, text_key, where), "tests": "\n".join(tests[:N_ASSERTS])}
    return Item(str(row["task_id"]), fields)


def _swebench(row: Row, where: str) -> Item:
    _need(row, ("instance_id", "problem_statement"), where)
    return Item(_text(row, "instance_id", where), {"text": _text(row, "problem_statement", where)})


_USER, _ASSISTANT, _SYSTEM, _TOOL = "user", "assistant", "system", "tool"
#: Spellings seen in ShareGPT-like files, case-folded.
_CHAT_ROLES = {
    **dict.fromkeys(("user", "human"), _USER),
    **dict.fromkeys(("assistant", "gpt", "chatgpt", "bing", "bard", "bot"), _ASSISTANT),
    "system": _SYSTEM,
    **dict.fromkeys(("tool", "function", "function_call", "function_response", "observation"), _TOOL),
}


def _chat(row: Row, where: str) -> Item | Dropped:
    """The first user turn of the first part of a conversation, with its system message."""
    turns_key = "conversations" if "conversations" in row else "conversation"
    id_key = next((key for key in ("conversation_hash", "conversation_id") if key in row), "id")
    _need(row, (id_key, turns_key), where)
    if not isinstance(row[turns_key], list):
        raise DataError(f"{where}: {turns_key}: expected a list, found {repr(row[turns_key])[:80]}")
    key = str(row[id_key])
    turns = [_turn(turn) for turn in row[turns_key]]
    reason = _unfit(key, [role for role, _ in turns])
    if reason:
        return Dropped(reason)
    first_role, first_text = turns[0]
    system = first_text if first_role == _SYSTEM and first_text.strip() else None
    return Item(key, {"text": next(text for role, text in turns if role == _USER)}, system)


def _turn(turn: Any) -> tuple[str | None, str]:
    """Role (None when it is no known one) and text of a turn; some files hold turns as JSON texts."""
    if isinstance(turn, str):
        try:
            turn = json.loads(turn)
        except ValueError:
            return None, ""
    if not isinstance(turn, dict):
        return None, ""
    role = turn["from"] if "from" in turn else turn.get("role")
    text = turn["value"] if "value" in turn else turn.get("content")
    return _CHAT_ROLES.get(str(role).strip().casefold()), text if isinstance(text, str) else ""


def _unfit(key: str, roles: list[str | None]) -> str | None:
    part = re.search(r"_(\d+)$", key)
    if part and int(part[1]) > 0:
        return "later_part"
    if not roles:
        return "empty"
    if _TOOL in roles:
        return "tool_turns"
    if None in roles:
        return "unknown_role"
    return None if _USER in roles else "no_user_turn"


def _is_marked(row: Row, name: str) -> bool:
    """Whether the row, a turn or a moderation record of it carries the flag ``name``."""
    marks = [row, *(row.get("conversation") or ()), *(row.get("openai_moderation") or ())]
    return any(isinstance(mark, dict) and mark.get(name) is True for mark in marks)


def _need(row: Row, keys: tuple[str, ...], where: str) -> None:
    if not all(key in row for key in keys):
        found = ", ".join(sorted(map(str, row))) or "none"
        raise DataError(f"{where}: unknown schema: needs the keys {', '.join(keys)}; found {found}")


def _text(row: Row, key: str, where: str) -> str:
    value = row[key]
    if not isinstance(value, str):
        raise DataError(f"{where}: {key}: expected a text, found {repr(value)[:80]}")
    return value


RULES: dict[str, Callable[[Row, str], Item | Dropped]] = {
    "humaneval": _humaneval,
    "mbpp": _mbpp,
    "swebench": _swebench,
    "chat": _chat,
}
