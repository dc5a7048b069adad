"""Reads the broker's config files as fastjson writes them, and merges topics into `topics.json`.

Where the files are is up to the engine. Source of the rules: rocketmq.md 1.5, 12.2.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from storage_core.errors import FormatError
from storage_core.formats.java_numbers import natural_of

_STRING_OR_KEY = re.compile(r'"(?:[^"\\]|\\.)*"|(?<=[{,])(\s*)(-?\d+)(\s*):')


def decode_config(data: bytes) -> dict[str, Any]:
    """The content of a config file; integer keys may be unquoted, and become text.

    Raises FormatError if it is not a JSON object.
    """
    text = data.decode("utf-8", "replace")
    try:
        found = json.loads(_STRING_OR_KEY.sub(_quoted, text))
    except json.JSONDecodeError as error:
        raise FormatError(error.pos, f"not JSON: {error.msg}") from None
    except RecursionError:
        raise FormatError(0, "not JSON: nested too deep") from None
    except ValueError:
        raise FormatError(0, "not JSON: a number of thousands of digits") from None
    if not isinstance(found, dict):
        raise FormatError(0, "not a JSON object")
    return found


def _quoted(match: re.Match[str]) -> str:
    return match.group(0) if match.group(2) is None else f'{match.group(1)}"{match.group(2)}"{match.group(3)}:'


def encode_config(content: Mapping[str, Any]) -> bytes:
    """Valid JSON in the broker's own layout; non-ASCII characters are escaped, whatever charset a broker uses."""
    return json.dumps(content, indent="\t", separators=(",", ":")).encode("ascii")


def encode_offsets(content: Mapping[str, Any]) -> bytes:
    """`consumerOffset.json` byte for byte as a broker writes it: no quotes around queue ids (rocketmq.md 1.5)."""
    return _fastjson(content, 0).encode("utf-8")


def _fastjson(value: Any, depth: int) -> str:
    if isinstance(value, dict):
        end = "\n" + "\t" * depth
        if value and all(natural_of(str(name), 32) is not None for name in value):
            pairs = sorted((int(name), each) for name, each in value.items())
            return "{" + ",".join(f"{name}:{_fastjson(each, depth + 1)}" for name, each in pairs) + f"{end}}}"
        if not value:
            return "{}"
        pairs_text = f",{end}\t".join(
            f"{json.dumps(str(name), ensure_ascii=False)}:{_fastjson(each, depth + 1)}" for name, each in value.items()
        )
        return f"{{{end}\t{pairs_text}{end}}}"
    if isinstance(value, list):
        return f"[{','.join(_fastjson(each, depth + 1) for each in value)}]"
    return json.dumps(value, ensure_ascii=False)


def queue_counts(topics: Mapping[str, Any]) -> dict[str, int]:
    """The number of queues that a producer may write to, by topic, from the content of `topics.json`."""
    table = topics.get("topicConfigTable")
    return {
        name: _whole(entry.get("writeQueueNums"), 16)
        for name, entry in (table if isinstance(table, dict) else {}).items()
        if isinstance(entry, dict)
    }


def merged_topics(topics: Mapping[str, Any], wanted: Mapping[str, int], now_ms: int) -> dict[str, Any] | None:
    """`topics` with at least `wanted` read and write queues for each topic; None if nothing changes.

    Everything else is kept. An entry without counts has the broker's default of 16.
    """
    table = topics.get("topicConfigTable")
    table = dict(table) if isinstance(table, dict) else {}
    changed = False
    for name, count in wanted.items():
        entry = table.get(name)
        if not isinstance(entry, dict):
            table[name] = _new_topic(name, count)
            changed = True
            continue
        raised = {key: count for key in ("readQueueNums", "writeQueueNums") if _whole(entry.get(key), 16) < count}
        if raised:
            table[name] = {**entry, **raised}
            changed = True
    if not changed:
        return None
    version = topics.get("dataVersion")
    version = dict(version) if isinstance(version, dict) else {}
    version["counter"], version["timestamp"] = _whole(version.get("counter"), 0) + 1, now_ms
    return {**topics, "dataVersion": version, "topicConfigTable": table}


def _new_topic(name: str, count: int) -> dict[str, Any]:
    return {
        "order": False,
        "perm": 6,
        "readQueueNums": count,
        "topicFilterType": "SINGLE_TAG",
        "topicName": name,
        "topicSysFlag": 0,
        "writeQueueNums": count,
    }


def _whole(value: Any, default: int) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) else default
