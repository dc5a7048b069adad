"""The index files of a RocketMQ store."""
