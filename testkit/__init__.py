"""What tests, chaos and benchmarks share: servers, a proxy, processes, locks, and waiting."""
