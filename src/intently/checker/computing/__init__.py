"""What an attention computes: its weights, measured and explained."""
