"""Pre-job validation and uniform NCCL configuration for GPU clusters, over plain SSH."""

__version__ = "0.1.0"
