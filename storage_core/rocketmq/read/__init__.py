"""Reading a RocketMQ store."""
