#!/bin/sh
# boot.sh FD [TOKEN_FD]: the action server by the image's own python3 (3.8 or newer), or else by bash alone.
here=${0%/*}
if command -v python3 >/dev/null 2>&1; then
    exec python3 -I -S -c '
import os, sys
if sys.version_info < (3, 8):
    os.execv("/bin/bash", ["bash", "--noprofile", "--norc", sys.argv[1] + "/bare.sh"] + sys.argv[2:])
sys.path.insert(0, os.path.dirname(sys.argv[1]))
from inside.server import main
main(*map(int, sys.argv[2:]))' "$here" "$@"
fi
exec /bin/bash --noprofile --norc "$here/bare.sh" "$@"
