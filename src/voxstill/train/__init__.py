"""The loop, its optimizer, checkpoints and guards."""
