"""Writing DataFrames into a RabbitMQ store."""
