"""The foundation of all other code: values, arrays, memory, names imported on demand."""

from intently.foundation import process  # noqa: F401 - `import intently` imports it: it notices forks
