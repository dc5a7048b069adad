"""The report as HTML: one page that needs no network, light or dark like the reader's system.

Its content is in `facts`, its charts are drawn in `charts`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from command_line.output.units import count_text, counted, moment_text, size_text
from command_line.report import charts
from command_line.report.facts import StoreFacts
from command_line.report.style import SCRIPT, STYLE
from command_line.views import Row
from storage_core.options.option import RABBITMQ

MOST_ROWS = 2000
MOST_BARS = 15
TEXT, COUNT, BYTES, TIME = "text", "count", "bytes", "time"
SHOWN: dict[str, Callable[[Any], str]] = {TEXT: str, COUNT: count_text, BYTES: size_text, TIME: moment_text}
"""How values of each kind are formatted. The kinds are also classes of the style sheet."""


@dataclass(frozen=True)
class Field:
    """A column of a table: its title, the name of the row's value, and the kind of that value."""

    title: str
    name: str
    kind: str = TEXT


TIMES = (Field("first", "firstStoreTimestamp", TIME), Field("last", "lastStoreTimestamp", TIME))
SIZES = (Field("messages", "messages", COUNT), Field("size", "bytes", BYTES))
OFFSETS = (Field("first offset", "minOffset", COUNT), Field("end", "maxOffset", COUNT))


def page(stores: Sequence[StoreFacts], written: str, version: str) -> str:
    """The whole page. `written` is the time of writing, in UTC."""
    title = "mqstore report: " + ", ".join(facts.info["path"] for facts in stores)
    sections = "".join(_store(facts) for facts in stores)
    links = "".join(f'<a href="#{_anchor(facts)}">{escape(_called(facts))}</a>' for facts in stores)
    nav = f"<nav>{links}</nav>" if len(stores) > 1 else ""
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1"><meta name="color-scheme" '
        f'content="light dark"><title>{escape(title)}</title><style>{STYLE}</style></head><body>{nav}{sections}'
        f"<footer>Written {escape(written)} UTC by mqstore {escape(version)}. Bodies of messages are not in this page."
        f"</footer><script>{SCRIPT}</script></body></html>\n"
    )


def _called(facts: StoreFacts) -> str:
    vhost = facts.info["vhost"]
    return facts.name if vhost is None else f"{facts.name} ({vhost})"


def _anchor(facts: StoreFacts) -> str:
    return escape("store-" + "".join(c if c.isalnum() else "-" for c in facts.name))


def _store(facts: StoreFacts) -> str:
    parts = [_head(facts), _tiles(facts), *_charts(facts), *_tables(facts)]
    return f'<main id="{_anchor(facts)}">{"".join(parts)}</main>'


def _head(facts: StoreFacts) -> str:
    info = facts.info
    engine = "RabbitMQ" if info["engine"] == RABBITMQ else "RocketMQ"
    vhost = "" if info["vhost"] is None else f" · virtual host {escape(info['vhost'])}"
    state = "running" if info["running"] else "stopped cleanly" if info["clean"] else "not stopped cleanly"
    mood = "good" if info["running"] or info["clean"] else "bad"
    notes = "".join(f"<p class=note>{escape(text)}</p>" for text in info["notes"])
    return (
        f"<header><h1>{escape(info['path'])}</h1><p>{engine} · {escape(_rules(info))}{vhost} · "
        f"<b class={mood}>{state}</b></p>{notes}</header>"
    )


def _rules(info: Row) -> str:
    version = str(info["version"])
    return version if info["engine"] == RABBITMQ else f"read by the rules of {version}"


def _tiles(facts: StoreFacts) -> str:
    info = facts.info
    tiles = [
        ("messages", count_text(info.get("messages", 0)), size_text(info.get("bytes", 0))),
        ("queues", count_text(info.get("queues", 0)),
         "" if info.get("topics") is None else counted(info["topics"], "topic")),
        ("on disk", size_text(info["diskBytes"]), counted(info["files"], "file")),
    ]  # fmt: skip
    if info["groups"]:
        tiles.append(("lag", count_text(info["lag"]), counted(info["groups"], "consumer group")))
    if info.get("firstStoreTimestamp"):
        first, last = (moment_text(info[name]) for name in ("firstStoreTimestamp", "lastStoreTimestamp"))
        tiles.append(("last stored (UTC)", last, f"first {first}"))
    if info["cutBytes"]:
        tiles.append(("cut by a broker startup", f"≤ {size_text(info['cutBytes'])}", "of the log, not counted here"))
    if facts.damage:
        tiles.append(("damage", count_text(len(facts.damage)), "see below"))
    shown = "".join(
        f'<div class="tile {_tile_kind(name)}"><small>{escape(name)}</small>'
        f"<strong>{escape(text)}</strong><small>{escape(below)}</small></div>"
        for name, text, below in tiles
    )
    return f'<div class="tiles">{shown}</div>'


def _tile_kind(name: str) -> str:
    return "bad" if name.startswith(("cut", "damage")) else "long" if "stored" in name else ""


def _charts(facts: StoreFacts) -> Iterator[str]:
    if facts.over_time is not None:
        kind = "timestamp property" if facts.info["engine"] == RABBITMQ else "store time"
        yield _card(f"Messages over time <small>by {kind}, UTC</small>", charts.over_time(facts.over_time), "wide")
    by = "queue" if facts.info["engine"] == RABBITMQ else "topic"
    named = facts.topics or facts.queues
    largest = sorted(((row[by], row["bytes"] or 0) for row in named), key=lambda pair: -pair[1])[:MOST_BARS]
    sized = [(name, size, size_text(size)) for name, size in largest if size]
    yield _card(f"Size by {by}", charts.bars(sized), "" if facts.groups else "wide")
    lagging = [(f"{row['group']} ← {row['topic']}", row["lag"], count_text(row["lag"])) for row in facts.groups]
    lagging_groups = [each for each in lagging if each[1]][:MOST_BARS]
    if facts.groups:
        none = "<p>No group has messages left to read.</p>"
        yield _card("Lag by group <small>messages</small>", charts.bars(lagging_groups) if lagging_groups else none)
    if facts.sizes:
        what = "body" if facts.info["engine"] == RABBITMQ else "record"
        yield _card(f"Message sizes <small>messages by bytes of the {what}</small>", charts.sizes(facts.sizes), "wide")


def _tables(facts: StoreFacts) -> Iterator[str]:
    yield from (_table(title, rows, fields) for title, rows, fields in _special(facts) if rows)
    if facts.info["engine"] == RABBITMQ:
        state = [Field("ready", "ready", COUNT), Field("unacknowledged", "unacknowledged", COUNT)]
        fields = [Field("queue", "queue"), Field("type", "type"), *SIZES, *state, *OFFSETS]
        fields.append(Field("version", "version", COUNT))
    else:
        fields = [Field("topic", "topic"), Field("queue", "queueId", COUNT), *SIZES, *OFFSETS, *TIMES]
    yield _table("Queues", facts.queues, fields)
    used = "liveBytes" if facts.info["engine"] == RABBITMQ else "usedBytes"
    lengths = [Field("length", "bytes", BYTES), Field("used", used, BYTES), Field("messages", "messages", COUNT)]
    yield _table("Files", facts.files, [Field("file", "file"), Field("kind", "kind"), *lengths])


def _special(facts: StoreFacts) -> Iterator[tuple[str, Sequence[Row], Sequence[Field]]]:
    """The tables that may be empty for a store."""
    where = [Field("file", "file"), Field("position", "position", COUNT), Field("length", "length", COUNT)]
    yield "Damage", facts.damage, [*where, Field("kind", "kind"), Field("what", "reason"), Field("a broker", "effect")]
    waiting = [Field("still to come", "waiting", COUNT), Field("first of them stored", "since", TIME)]
    waiting += [Field("first of them due", "due", TIME), Field("last due", "lastDue", TIME)]
    there = [Field("in the store", "messages", COUNT), Field("last stored", "last", TIME)]
    yield "Delayed messages", facts.delayed, [Field("level", "level", COUNT), *waiting, *there]
    failed = [row for row in facts.topics if row["kind"] in ("dead letter", "retry") and row["messages"]]
    named = [Field("topic", "topic"), Field("kind", "kind")]
    yield "Dead letters and retries", failed, [*named, *SIZES, *TIMES]
    origin = [Field("stored", "storeTimestamp", TIME), Field("topic", "topic"), Field("came from", "origin")]
    message = [Field("key", "key"), Field("retries", "reconsumeTimes", COUNT), Field("message id", "msgId")]
    yield "Newest dead letters", facts.dead_letters, [*origin, *message]
    yield "Topics", facts.topics, [*named, Field("queues", "queues", COUNT), *SIZES, *TIMES]
    offsets = [Field("committed", "committed", COUNT), Field("end", "maxOffset", COUNT), Field("lag", "lag", COUNT)]
    yield "Consumer groups", facts.groups, [Field("group", "group"), Field("topic", "topic"), *offsets]


def _card(title: str, content: str, kind: str = "") -> str:
    return f'<section class="card {kind}"><h2>{title}</h2>{content}</section>'


def _table(title: str, rows: Sequence[Row], fields: Sequence[Field]) -> str:
    shown = [field for field in fields if any(row.get(field.name) is not None for row in rows)]
    left_out = f"<p>The first {count_text(MOST_ROWS)} of {count_text(len(rows))}.</p>" if len(rows) > MOST_ROWS else ""
    head = "".join(f'<th class="{field.kind}">{escape(field.title)}</th>' for field in shown)
    body = "".join(f"<tr>{''.join(_cell(row.get(field.name), field.kind) for field in shown)}</tr>"
                   for row in rows[:MOST_ROWS])  # fmt: skip
    search = f'<input type="search" placeholder="search" aria-label="search {escape(title)}">'
    table = f"<div class=scroll><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    return (
        f'<details class="card wide" open><summary><h2>{escape(title)} <small>{count_text(len(rows))}</small></h2>'
        f"</summary>{search}{table}{left_out}</details>"
    )


def _cell(value: Any, kind: str) -> str:
    """One cell; `data-v` is its sort key."""
    if value is None:
        return f'<td class="{kind}"></td>'
    sorted_by = "" if kind == TEXT else f' data-v="{escape(str(value))}"'
    return f'<td class="{kind}"{sorted_by}>{escape(SHOWN[kind](value))}</td>'
