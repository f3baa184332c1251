"""Text-to-speech with espeak-ng."""
