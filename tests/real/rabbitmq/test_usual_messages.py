"""Real nodes: dead letters, and bodies that clients send in pieces, are read in bulk, as the node delivers them.

Before 3.13 a node keeps dead letters decoded; later ones keep their annotations.
"""

from __future__ import annotations

from functools import partial

import pytest

from tests.real.rabbitmq.history_3 import Node310, UsualHistory
from tests.real.rabbitmq.history_4 import History, check_published
from tests.real.rabbitmq.node import Node
from tests.real.rabbitmq.node_4 import LATER, Node4, Node43, Node312
from tests.support.sampling import SEED

pytestmark = [pytest.mark.real, pytest.mark.timeout(600)]

BEFORE_3_13 = [Node310, pytest.param(Node312, marks=LATER)]
FEW, SOME = 20, 100
"""Messages that may be decoded one at a time: those searched for shapes, and with later nodes those written
differently.
"""
OF_EACH = pytest.mark.parametrize(
    ("release", "most"),
    [(Node310, FEW), *(pytest.param(*each, marks=LATER) for each in ((Node312, FEW), (Node4, SOME), (Node43, SOME)))],
)


@OF_EACH
@pytest.mark.parametrize("clean", [True, False])
def test_dead_letters(release: type[Node], most: int, clean: bool, alone: list[bytes]) -> None:
    history = History(f"dead {SEED} {clean}", release)
    check_published(history, partial(history.die, 150), clean, str(SEED))
    assert len(alone) < most


@OF_EACH
def test_bodies_in_pieces(release: type[Node], most: int, alone: list[bytes]) -> None:
    history = History(f"pieces {SEED}", release)
    check_published(history, partial(history.in_pieces, 200), False, str(SEED))
    assert len(alone) < most


@pytest.mark.parametrize("release", BEFORE_3_13)
def test_all_properties(release: type[Node]) -> None:
    """Includes messages with copies, whose lists a node keeps decoded."""
    history = History(f"usual {SEED}", release)
    check_published(history, history.work, True, str(SEED))


def test_a_queue_of_version_2(alone: list[bytes]) -> None:
    history = UsualHistory(f"version 2 {SEED}")
    check_published(history, partial(history.usual, 60), True, str(SEED))
    assert len(alone) < FEW
