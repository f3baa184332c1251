"""Runs commands one after the other, as `&&` does: a JSON file has a list of words for each."""

import json
import sys
from pathlib import Path

from voxstill import cli

for command in json.loads(Path(sys.argv[1]).read_text()):
    if code := cli.main(command):
        sys.exit(code)
