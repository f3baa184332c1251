"""The training loop, its experiment folder, checkpoints and processes."""
