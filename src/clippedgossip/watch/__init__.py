"""The live page: what peers or a run have written so far, read from their folders and shown in a browser."""
