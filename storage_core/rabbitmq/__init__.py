"""The RabbitMQ engine: a vhost directory read as a node would read it, written as a node would write it."""
