"""Credit, rates and delta, each tested against the rule in rabbitmq.md."""

from __future__ import annotations

import numpy as np
import pytest

from storage_core.rabbitmq.paging.credit import CreditFlow, StoreCredit
from storage_core.rabbitmq.paging.delta import Delta
from storage_core.rabbitmq.paging.rates import Rates
from storage_core.rabbitmq.queue.memory_monitor import INFINITY, MemoryMonitor


def test_the_credit_of_1_blocks_and_a_grant_above_0_unblocks() -> None:
    credit = StoreCredit(20, 5)
    assert (credit.left, credit.limit()) == (None, 20)
    credit.spend(19)
    assert (credit.left, credit.blocked) == (1, False)
    credit.spend(3)
    assert (credit.left, credit.blocked) == (-2, True)
    assert credit.processed() == [5] * 4
    credit.grant(2)
    assert (credit.left, credit.blocked) == (0, True)
    credit.grant(5)
    assert (credit.left, credit.blocked) == (5, False)


def test_grants_come_after_each_step_and_one_by_one() -> None:
    flow = CreditFlow(4, 3)
    flow.persistent.spend(2)
    flow.collect()
    assert flow.take_grant() is False
    flow.persistent.spend(2)
    assert flow.blocked
    flow.collect()
    assert flow.take_grant() is True
    assert (flow.persistent.left, flow.blocked) == (3, False)
    assert flow.take_grant() is False


def test_rates_fade_by_half_in_five_seconds() -> None:
    now = [0.0]
    rates = Rates(lambda: now[0])
    rates.count(entered=50)
    rates.maybe_update()
    assert rates.values[0] == 0, "100 messages at most do not take the rates anew"
    now[0] = 3.0
    rates.update()
    assert rates.values[0] == pytest.approx(50 / 3 * (1 - 0.5 ** (3 / 5)))
    before = rates.values[0]
    now[0] = 8.0
    rates.count(left=101)
    rates.maybe_update()
    assert rates.values[0] == pytest.approx(before / 2)
    assert rates.values[1] == pytest.approx(101 / 5 / 2)
    rates.update()
    assert rates.values[0] == pytest.approx(before / 2), "no time has passed"


def test_the_duration_is_a_quarter_of_what_the_rates_say() -> None:
    rates = Rates(lambda: 0.0)
    assert rates.duration_s(10) == float("inf")
    rates.values = (10.0, 5.0, 5.0, 0.0)
    assert rates.duration_s(80) == 1.0


def test_delta_keeps_a_half_open_range() -> None:
    transient = np.array([False, True])
    delta = Delta().expanded(np.array([7, 5]), transient)
    assert delta == Delta(5, 2, 1, 8)
    assert delta.expanded(np.array([6]), transient[:1]) == Delta(5, 3, 1, 8)
    assert delta.expanded(np.array([2, 9]), transient) == Delta(2, 4, 2, 10)
    assert Delta(4, 0, 0, 4).blank
    assert not Delta(4, 0, 0, 5).blank
    assert Delta(4, 0, 0, 4).expanded(np.array([9]), transient[:1]) == Delta(9, 1, 0, 10)


def test_the_monitor_pushes_only_a_lower_target_to_who_holds_more() -> None:
    used, sent = [0], {"a": [], "b": []}
    monitor = MemoryMonitor(1000, 0.5, lambda: used[0])
    monitor.register("a", sent["a"].append)
    monitor.register("b", sent["b"].append)
    used[0] = 600
    monitor.update()
    assert monitor.desired == INFINITY, "nobody reports"
    assert monitor.report("a", 10.0) == INFINITY
    monitor.report("b", 2.0)
    monitor.update()
    assert monitor.desired == pytest.approx((12 + 1) / 2 / 0.6)
    assert sent == {"a": [], "b": []}, "10 s held are less than 10.8 s wanted"
    used[0] = 960
    monitor.update()
    assert monitor.desired == pytest.approx(12 / 2 / 0.96)
    assert sent == {"a": [monitor.desired], "b": []}
    used[0] = 400
    monitor.update()
    assert monitor.desired == INFINITY
    assert len(sent["a"]) == 1, "a higher target waits for the next report"
    assert monitor.report("a", 1.0) == INFINITY
    monitor.deregister("b")
    assert (monitor.sum, monitor.count) == (1.0, 1)


def test_a_disk_alarm_lifts_every_limit() -> None:
    monitor = MemoryMonitor(1000, 0.5, lambda: 999)
    monitor.register("a", lambda _: None)
    monitor.report("a", 3.0)
    monitor.disk_alarm = True
    monitor.update()
    assert monitor.desired == INFINITY
    assert MemoryMonitor(0, 0.5, lambda: 1).desired_duration(None) == 0.0
