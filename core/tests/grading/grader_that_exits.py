"""A grader module whose import ends the process."""

import sys

sys.exit(7)
