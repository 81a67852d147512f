"""One run over many processes and machines, on torch.distributed."""
