"""The transcription server with OpenAI's API."""
