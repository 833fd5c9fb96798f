"""What a model's author writes and receives."""
