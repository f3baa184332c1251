"""How well a finished model does on utterances whose answers are known."""
