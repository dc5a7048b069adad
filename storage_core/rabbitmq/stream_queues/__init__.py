"""Reading the stream queues of a node from its disk: what the restarted node would deliver."""
