"""Dead letters: when a message becomes one, what it contains, and how it is replayed."""
