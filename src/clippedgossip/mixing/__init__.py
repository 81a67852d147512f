"""How messages are held and combined: inboxes, their layout in slots, and the kernels below them."""
