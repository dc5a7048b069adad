"""The tests, by area: formats, files, rocketmq, rabbitmq, connector, and `real` against the real systems."""
