"""Error rates of words, speakers, meetings and classes."""
