"""Faults on purpose, histories of what the clients saw, and checkers that judge them."""
