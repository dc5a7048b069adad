"""Erlang's external terms in a hexdump: one line per value, indented by nesting.

It reads the tags that RabbitMQ 3.10 writes, step by step and independently of `storage_core`, and so checks it.
"""

from __future__ import annotations

from tools.dumps.dump import Dump, quoted

LONGEST = 90
MANY = {104: ("tuple", 1), 108: ("list", 4), 116: ("map", 4)}
BRACKETS = {"tuple": "{{{}}}", "list": "[{}]", "map": "#{{{}}}"}
# The names of a value: its own, and the shapes of the values inside it; a list repeats its last one.
Shape = tuple[str, tuple["Shape", ...]]


def named(name: str, *inside: str | Shape) -> Shape:
    """A shape; a plain text in `inside` is a value that holds no others."""
    return name, tuple((part, ()) if isinstance(part, str) else part for part in inside)


BASIC_MESSAGE = named(
    "message",
    "tag",
    named("exchange", "tag", "vhost", "kind", "name"),
    named("routing keys", "routing key"),
    named("content", "tag", "class", "properties", "properties_bin", "protocol", named("fragments", "fragment")),
    "id",
    "is_persistent",
)


def term(dump: Dump, shape: Shape, depth: int | None = None) -> str:
    """Shows the term at the dump's position and returns it as Erlang text; `depth` is None at the version byte."""
    if depth is None:
        dump.number(1, "version", lambda number: f"{number} (external term format)")
        depth = 0
    name, inside = shape
    field = "  " * depth + name
    tag = dump.content[dump.position]
    if tag in MANY:
        return _many(dump, tag, field, inside, depth)
    size, rendered = _simple(dump.content, dump.position)
    dump.take(size, field, lambda _: rendered)
    return rendered


def text(raw: bytes) -> str:
    """A whole term, version byte included, as Erlang text."""
    return term(Dump("", raw), named("", ""))


def whole(dump: Dump, field: str) -> None:
    """Shows one term that is part of another in a single line."""
    apart = Dump(dump.source, dump.content, dump.position)
    rendered = term(apart, named(field), 0)
    shown = rendered if len(rendered) <= LONGEST else f"{rendered[: LONGEST - 1]}…"
    dump.take(apart.position - dump.position, f"  {field}", lambda _: shown)


def _many(dump: Dump, tag: int, field: str, inside: tuple[Shape, ...], depth: int) -> str:
    kind, size = MANY[tag]
    count = int.from_bytes(dump.content[dump.position + 1 : dump.position + 1 + size], "big")
    dump.take(1 + size, field, lambda _: f"{kind} of {count}")
    shapes = inside or (("", ()),)
    values = 2 * count if kind == "map" else count
    parts = [term(dump, shapes[min(i, len(shapes) - 1)], depth + 1) for i in range(values)]
    if kind == "list":
        dump.take(1, field, lambda _: "end of the list")
    return BRACKETS[kind].format(", ".join(parts))


def _simple(content: bytes, at: int) -> tuple[int, str]:
    tag = content[at]
    if tag == 97:
        return 2, str(content[at + 1])
    if tag == 98:
        return 5, str(int.from_bytes(content[at + 1 : at + 5], "big", signed=True))
    if tag == 106:
        return 1, "[]"
    if tag == 110:
        size = content[at + 1]
        sign = -1 if content[at + 2] else 1
        return 3 + size, str(sign * int.from_bytes(content[at + 3 : at + 3 + size], "little"))
    if tag == 88:
        size, node = _simple(content, at + 1)
        return 1 + size + 12, f"pid on {node}"
    width = {100: 2, 107: 2, 109: 4, 119: 1}[tag]
    size = int.from_bytes(content[at + 1 : at + 1 + width], "big")
    raw = content[at + 1 + width : at + 1 + width + size]
    if tag == 109:
        return 1 + width + size, f"<<{quoted(raw) if raw.isascii() and raw.decode().isprintable() else raw.hex()}>>"
    return 1 + width + size, raw.decode() if tag in (100, 119) else quoted(raw)
