"""The state machine of a quorum queue, versions 2, 3 and 5 to 8: what each command of its log does to the messages."""
