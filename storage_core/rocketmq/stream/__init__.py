"""Reading a store as a stream: its end while a broker or a writer appends."""
