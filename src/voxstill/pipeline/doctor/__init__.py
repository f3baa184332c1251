"""`voxstill doctor`: what is wrong with a machine, a corpus or a training, the worst first, and what to do about it."""
