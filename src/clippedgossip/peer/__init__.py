"""A peer: one process per participant, owned by strangers, talking over the real network."""
