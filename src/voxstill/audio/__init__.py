"""From bytes to samples and from samples to stretches of speech."""
