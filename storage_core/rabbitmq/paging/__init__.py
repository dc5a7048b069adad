"""The paging queue: which messages of a queue have payload and position in memory, and how they leave it."""
