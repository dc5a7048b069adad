"""Real nodes before 3.13: dead letters, which they keep decoded, and bodies that clients send in pieces are read in
bulk, as the node delivers them.
"""

from __future__ import annotations

from functools import partial

import pytest

from tests.real.rabbitmq.history_3 import Node310, UsualHistory
from tests.real.rabbitmq.history_4 import History, check_published
from tests.real.rabbitmq.node import Node
from tests.real.rabbitmq.node_4 import LATER, Node312
from tests.support.sampling import SEED

pytestmark = [pytest.mark.real, pytest.mark.timeout(600)]


OF_EACH = pytest.mark.parametrize("release", [Node310, pytest.param(Node312, marks=LATER)])


@OF_EACH
@pytest.mark.parametrize("clean", [True, False])
def test_dead_letters(release: type[Node], clean: bool, alone: list[bytes]) -> None:
    history = History(f"dead {SEED} {clean}", release)
    check_published(history, partial(history.die, 150), clean, str(SEED))
    assert len(alone) < 20


@OF_EACH
def test_bodies_in_pieces(release: type[Node], alone: list[bytes]) -> None:
    history = History(f"pieces {SEED}", release)
    check_published(history, partial(history.in_pieces, 200), False, str(SEED))
    assert len(alone) < 20


@OF_EACH
def test_all_properties(release: type[Node]) -> None:
    """Also of messages with copies, whose lists a node keeps decoded."""
    history = History(f"usual {SEED}", release)
    check_published(history, history.work, True, str(SEED))


def test_a_queue_of_version_2(alone: list[bytes]) -> None:
    history = UsualHistory(f"version 2 {SEED}")
    check_published(history, partial(history.usual, 60), True, str(SEED))
    assert len(alone) < 20
