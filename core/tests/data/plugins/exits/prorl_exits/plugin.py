import sys

sys.exit("no licence key")
