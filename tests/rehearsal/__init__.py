"""The code for a GPU on a machine without one."""
