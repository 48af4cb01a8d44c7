"""Deal with the process in which the library runs: threads, forks, exceptions, and providers.

The modules run work on background threads, handle forked children, keep exceptions from the
application, suppress instrumentation, and find or make the OpenTelemetry providers.
"""
