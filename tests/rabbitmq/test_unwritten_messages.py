"""Queues of version 2 whose node was killed between the entries of messages and the messages themselves."""

from __future__ import annotations

from pathlib import Path

import pytest

from storage_core.errors import CorruptionError
from storage_core.rabbitmq import open_store
from storage_core.store import Mode, ScanRequest
from tests.rabbitmq import golden
from tests.support import version_2_harm
from tests.support.rabbitmq_damage import edit, queue_file


@pytest.mark.parametrize(
    ("name", "size", "reason"),
    [("1.qs", 0.5, "lies after the end of its .qs file"), ("1.qi", 0, "a header of 64 bytes expected")],
)
def test_what_a_killed_node_had_not_written(name: str, size: float, reason: str, tmp_path: Path) -> None:
    """A node writes the index of version 2 before the messages that it lists, and drops these entries when it starts.

    After a clean stop the same is damage.
    """
    store = golden.unpack("s11_cqv2_clean", tmp_path) / golden.DEFAULT_VHOST
    path = queue_file(store, "v2.q", name)
    edit(path, lambda data: data.__delitem__(slice(int(len(data) * size), None)))
    with pytest.raises(CorruptionError, match=reason):
        golden.table(store)
    left = golden.table(store, mode=Mode.DROPMALFORMED).drop_columns("redelivered")
    (store / "recovery.dets").unlink()
    for mode in Mode:
        assert golden.table(store, mode=mode).select(left.column_names).equals(left)
    with open_store(str(store)) as opened:
        snapshot = opened.snapshot()
        snapshot.plan(ScanRequest())
        (warning,) = [line for line in snapshot.warnings() if reason in line]
        assert warning.endswith("; a node forgets them when it starts")
        (finding,) = [finding for finding in opened.verify() if finding.kind == "segment"]
        assert finding.effect == "forgets the messages"
        if name == "1.qs":
            assert finding.reason == "355 messages, of sequence ids 4547 to 4999, lie after the end of its .qs file"


@pytest.mark.parametrize("clean", [True, False])
def test_a_transient_message_that_a_killed_node_had_not_written(clean: bool, tmp_path: Path) -> None:
    """A node drops it in any case: it is neither damage nor a finding."""
    store = golden.unpack("s11_cqv2_clean", tmp_path) / golden.DEFAULT_VHOST

    def change(data: bytearray) -> None:
        entry = version_2_harm.live(data)
        data[entry + 1], data[entry + 4] = 0, 0xFF

    edit(queue_file(store, "v2.q", "0.qi"), change)
    if not clean:
        (store / "recovery.dets").unlink()
    assert golden.table(store).num_rows == 1172
    with open_store(str(store)) as opened:
        assert not [finding for finding in opened.verify() if finding.kind == "segment"]
