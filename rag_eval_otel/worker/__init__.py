"""The scoring pipeline as a process of its own, between applications and their tracing backend."""
