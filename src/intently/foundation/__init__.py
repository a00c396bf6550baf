"""The foundation of all other code: values, arrays, memory, names imported on demand."""
