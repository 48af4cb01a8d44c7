"""Our metrics behind the interfaces of others; none of their libraries is imported."""
