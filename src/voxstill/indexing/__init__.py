"""Index: the files of a source become recordings and utterances."""
