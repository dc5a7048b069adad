"""The tests, by room: formats, files, rocketmq, rabbitmq, connector, and `real` against the real systems."""
