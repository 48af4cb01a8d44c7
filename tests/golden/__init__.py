"""The golden cases: what the peers were seen to give, and what we give for the same."""
