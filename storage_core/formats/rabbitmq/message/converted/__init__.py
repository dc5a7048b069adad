"""What a node delivers for messages published over protocols other than AMQP 0-9-1."""
