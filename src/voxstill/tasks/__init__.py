"""What a batch means to a student: its loss and its figures."""
