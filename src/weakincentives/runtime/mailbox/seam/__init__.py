"""What the author of a backend reads: the seam between the typed face and a store."""
