"""The `mqstore` command: what is in a store, its messages, its lag, what a node must import; no Spark, no broker."""
