"""What a stock broker would serve."""
