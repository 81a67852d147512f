"""How peers reach each other: one seam, and a real network behind it."""
