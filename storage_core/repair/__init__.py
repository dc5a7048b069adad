"""What a repair is, whatever the engine: a copy to work on, and every byte that it cuts put aside."""
