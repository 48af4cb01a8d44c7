"""A company with a handbook, and an offline LangChain application that answers from it."""
