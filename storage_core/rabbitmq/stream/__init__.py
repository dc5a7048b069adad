"""Reading a vhost's store as a stream: its queues while a node or a writer appends and removes messages."""
