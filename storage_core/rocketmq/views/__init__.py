"""A RocketMQ store as tables."""
