"""The plan and the loader: item k is batch k of this rank."""
