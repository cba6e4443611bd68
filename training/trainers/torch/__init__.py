"""The trainer `torch`: Evergreen's own loop over a PyTorch module, with DDP, FSDP, DeepSpeed or virtual shards."""
