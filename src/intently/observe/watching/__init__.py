"""What happens while a model is watched."""
