"""What the SDK can do, described without I/O: generators of calls that a driver answers."""
