"""The state machine of a quorum queue, versions 2 to 8: what each command of its log does to the messages."""
