"""Writing a RocketMQ store."""
