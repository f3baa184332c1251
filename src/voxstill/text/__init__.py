"""Words, tokens and grammars."""
