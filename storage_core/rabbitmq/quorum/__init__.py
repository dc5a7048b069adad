"""Reading the quorum queues of a node from its disk: what the restarted node would deliver."""
