"""What everything else stands on: values, arrays, memory, names imported on demand."""
