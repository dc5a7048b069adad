"""The paging queue: which messages of a queue keep payload and position in memory, and how they leave memory."""
