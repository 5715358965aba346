"""Evaluation over a pool of workers."""
