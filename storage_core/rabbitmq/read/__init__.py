"""Reading a RabbitMQ store."""
