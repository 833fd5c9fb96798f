"""What a step plans and runs on."""
