"""A plan is cut where one array of all lengths would be cut, however the entries are spread over directories."""

from __future__ import annotations

import numpy as np
import pytest

from storage_core.rabbitmq.index.entries import new_entries
from storage_core.rabbitmq.read.partitioning import PlannedEntries


@pytest.mark.parametrize("seed", range(60))
def test_shares_are_cut_as_if_all_entries_were_one_list(seed: int) -> None:
    chance = np.random.default_rng(seed)
    planned, lengths = PlannedEntries(), []
    for queue in range(int(chance.integers(1, 6))):
        entries = new_entries(int(chance.integers(0, 9)))
        entries["length"] = chance.integers(0, 4, len(entries)) ** int(chance.integers(1, 9))
        planned.add(queue, [f"file {queue}"], entries)
        lengths += entries["length"].tolist()
    ends, totals = np.cumsum(lengths, dtype=np.int64), []
    count = int(chance.integers(1, 12))
    found = planned.cuts(lambda total: totals.append(total) or count)
    assert (totals, planned.count) == ([sum(lengths)], len(lengths))
    assert found == [int((ends <= sum(lengths) * share // count).sum()) for share in range(1, count)]
