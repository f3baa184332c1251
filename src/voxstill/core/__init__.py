"""What everything else stands on: errors, records, configuration, monitoring, the frame of a command."""
