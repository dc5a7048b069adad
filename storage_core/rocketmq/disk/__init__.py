"""The files of a RocketMQ store directory."""
