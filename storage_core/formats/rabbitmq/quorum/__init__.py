"""The files of quorum queues: a node's write-ahead log, segments, snapshots, and the commands in them."""
