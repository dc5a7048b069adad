"""The consumers and publishers that the streams of a RabbitMQ node track, for `mqstore offsets`."""

from __future__ import annotations

from command_line.outcome import say
from command_line.output.table import column, print_table
from command_line.selection import Selection
from command_line.stores import Stores
from command_line.views import print_json, several_column, view_rows
from storage_core.errors import OptionError


def keep_streams(stores: Stores, group: str | None, at: str | None) -> bool:
    """Leaves out all but streams, if there are streams and no RocketMQ store; returns whether it did.

    Raises OptionError for a switch that applies to consumer groups.
    """
    streams = [named for named in stores.stores if named.store.queue_type == "stream"]
    if not streams or not all(named.holds_queues_only for named in stores.stores):
        return False
    for switch, value in (("--group", group), ("--at", at)):
        if value is not None:
            raise OptionError(switch, value, "is for RocketMQ's consumer groups; a stream has consumers, leave it out")
    stores.stores = streams
    return True


def print_stream_offsets(stores: Stores, wanted: Selection, as_json: bool) -> bool:
    """Prints a line for each consumer and each publisher that a stream tracks; returns whether there are any."""
    rows = view_rows(stores, wanted, "offsets")
    if as_json:
        print_json(rows)
    elif rows:
        numbers = [column("offset", right=True), column("end", "maxOffset", True), column("lag", right=True)]
        print_table(
            [*several_column("store", rows), *several_column("vhost", rows), column("queue"), column("kind"),
             column("reference"), *numbers, column("sequence", right=True)], rows,
        )  # fmt: skip
    else:
        say("no stream tracks a consumer or a publisher")
    return bool(rows)
