"""Runs several loops together: threads, signals, health probes and the watchdog."""
