"""What must hold of any attention, tried from outside."""
