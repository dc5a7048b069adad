"""Random scripts of queue operations, for both the real backing queue and the replay."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

DEFAULTS = {
    "queue_index_segment_entry_count": "2048",
    "msg_store_io_batch_size": "4096",
    "queue_explicit_gc_run_operation_threshold": "1000",
    "lazy_queue_explicit_gc_run_operation_threshold": "1000",
    "queue_index_embed_msgs_below": "4096",
    "queue_index_max_journal_entries": "32768",
    "msg_store_credit_disc_bound": "{4000, 800}",
}


def _small(segment: int, batch: int, threshold: int, **more: str) -> dict[str, str]:
    return {
        "queue_index_segment_entry_count": str(segment),
        "msg_store_io_batch_size": str(batch),
        "queue_explicit_gc_run_operation_threshold": str(threshold),
        "lazy_queue_explicit_gc_run_operation_threshold": str(threshold),
        "queue_index_embed_msgs_below": "100",
        **more,
    }


@dataclass(frozen=True)
class Kind:
    """Settings of a script, the maximum number of messages per operation, and the body size of "large" messages."""

    settings: dict[str, str] = field(default_factory=dict)
    most: int = 30
    large: int = 200
    durable: bool = True


KINDS = {
    "small": Kind(_small(16, 8, 2)),
    "small0": Kind(_small(8, 1, 0), 12),
    "jrnl": Kind(_small(32, 4, 5, queue_index_max_journal_entries="50"), 40),
    "credit": Kind(_small(16, 4, 3, msg_store_credit_disc_bound="{20, 5}"), 60),
    "nondurable": Kind(_small(16, 8, 2), durable=False),
    "default2048": Kind({"queue_index_segment_entry_count": "2048"}, 6000, 5000),
    "default16384": Kind({"queue_index_segment_entry_count": "16384"}, 9000, 5000),
}
OPERATIONS = {
    "publish": 22.0,
    "batch_publish": 8.0,
    "publish_delivered": 4.0,
    "batch_publish_delivered": 2.0,
    "fetch": 18.0,
    "drop": 5.0,
    "ack": 12.0,
    "requeue": 8.0,
    "target": 12.0,
    "rates": 2.0,
    "resume": 2.0,
    "pre_hibernate": 2.0,
    "timeout": 2.0,
    "purge": 1.0,
    "dropwhile": 3.0,
    "fetchwhile": 2.0,
    "fold": 1.0,
    "purge_acks": 0.5,
}


def script(kind_name: str, seed: int, operations: int = 60, lazy: bool = False, restart: bool = False) -> str:
    """One script. It ends by fetching and acknowledging everything."""
    maker = _Maker(KINDS[kind_name], random.Random(seed), lazy, restart and kind_name != "nondurable")
    return maker.script(operations)


class _Maker:
    def __init__(self, kind: Kind, chance: random.Random, lazy: bool, restart: bool) -> None:
        self.kind, self.chance, self.lazy, self.restart = kind, chance, lazy, restart

    def script(self, operations: int) -> str:
        weights = dict(OPERATIONS)
        if self.lazy:
            weights["mode"] = 4.0
        if self.restart:
            weights["restart"] = 4.0
            del weights["purge_acks"]  # a clean restart after it fails in the real queue
        settings = ", ".join(f"{{{name}, {value}}}" for name, value in {**DEFAULTS, **self.kind.settings}.items())
        durable = "true" if self.kind.durable else "false"
        lines = [f"{{config, #{{durable => {durable}, env => [{settings}]}}}}."]
        if self.lazy and self.chance.random() < 0.5:
            lines.append("{mode, lazy}.")
        for name in self.chance.choices(list(weights), list(weights.values()), k=operations):
            arguments = self.arguments(name)
            lines.append(f"{{{name}, {arguments}}}." if arguments else f"{name}.")
        most = self.kind.most
        lines += [f"{{fetch, {most * operations if most < 100 else 3000}, false}}.", "{ack, all}."]
        return "\n".join(lines) + "\n"

    def number(self, most: int = 1 << 30) -> int:
        chance = self.chance
        return min(chance.choice([1, 2, 3, chance.randint(1, self.kind.most), chance.randint(1, self.kind.most)]), most)

    def options(self) -> str:
        chance, large = self.chance, self.kind.large
        size = chance.choice([10, 10, 20, large, large + 7])
        more = ["", "", f", expiry => {chance.randint(1, 100)}", ", props_len => 95, delivered => true"]
        extra = chance.choice(more) if large == 200 else ""
        return f"#{{size => {size}, persistent => {chance.choice(['true', 'true', 'false'])}{extra}}}"

    def arguments(self, name: str) -> str:
        chance, most = self.chance, self.kind.most
        makers: dict[str, Callable[[], str]] = {
            "publish": lambda: f"{self.number()}, {self.options()}",
            "batch_publish": lambda: f"{self.number(100)}, {self.options()}",
            "publish_delivered": lambda: f"{self.number()}, {self.options()}",
            "batch_publish_delivered": lambda: (
                f"{self.number(50)}, #{{size => {chance.choice([10, self.kind.large])}, "
                f"persistent => {chance.choice(['true', 'false'])}}}"
            ),
            "fetch": lambda: f"{self.number()}, {chance.choice(['true', 'true', 'false'])}",
            "drop": lambda: f"{self.number()}, {chance.choice(['true', 'false'])}",
            "ack": self.selector,
            "requeue": self.selector,
            "target": lambda: str(
                chance.choice(["infinity", 0, 0, 1, chance.randint(0, most), *(chance.sample(range(3 * most), 2))])
            ),
            "rates": lambda: ", ".join(str(chance.choice([0.0, 1.0, 5.0, 10.0])) for _ in range(4)),
            "dropwhile": lambda: str(chance.randint(1, 110)),
            "fetchwhile": lambda: str(chance.randint(1, 110)),
            "mode": lambda: chance.choice(["lazy", "default"]),
            "restart": lambda: chance.choice(["clean", "dirty"]),
        }
        return makers[name]() if name in makers else ""

    def selector(self) -> str:
        first, last = f"{{first, {self.number()}}}", f"{{last, {self.number()}}}"
        return self.chance.choice([first, last, f"{{every, {self.chance.randint(2, 6)}}}", "all"])
