"""Replies: the caller's handle, the worker's channel, and the stores they wait in."""
