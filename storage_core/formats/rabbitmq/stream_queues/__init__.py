"""The files of stream queues: index, segments of chunks, entries, tracking, and messages as AMQP 1.0 sections."""
