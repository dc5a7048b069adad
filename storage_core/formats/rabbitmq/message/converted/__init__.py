"""What a node delivers of messages that came by other protocols than AMQP 0-9-1."""
