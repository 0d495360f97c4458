# What the working tree is now against the base: patch, paths and problem are left as files in OURS.
# Expects what git.sh does, and MAX, the most bytes of a patch.
problem() { printf '%s' "$1" >"$OURS/problem"; exit 0; }
{ [ -d "$WORKTREE" ] && [ ! -L "$WORKTREE" ] && cd "$WORKTREE"; } || problem "the working tree is gone: $WORKTREE is no folder"
[ "$(pwd -P)" = "$WORKTREE" ] || problem "the working tree is gone: $WORKTREE leads to another place"
git read-tree "$BASE" 2>"$OURS/said" || { cat "$OURS/said"; exit 40; }

# Of what cannot be read git would say a word, and leave it out.
find . -path ./.git -prune -o \( -type f -o -type d \) ! -readable -exec chmod u+rwX {} \; 2>/dev/null

# A repository in the repository would come as the bare name of a commit that nobody else has: its files are what counts.
git ls-files -s -z | tr '\0' '\n' | sed -n 's/^160000 [0-9a-f]* 0\t//p' >"$OURS/submodules"
find . -mindepth 2 -name .git -not -path './.git/*' -prune -print0 2>/dev/null | while IFS= read -r -d '' nested; do
	parent="${nested%/.git}"
	grep -qxF -- "${parent#./}" "$OURS/submodules" || rm -rf -- "$nested"
done

size=$(git ls-files -o --exclude-standard -z | xargs -0 -r stat -c %s -- 2>/dev/null | awk '{ sum += $1 } END { print int(sum / 1024) }')
[ "${size:-0}" -le $((MAX / 64 + 65536)) ] || problem "new files of ${size} KiB: more than a patch may hold"

added=
for attempt in 1 2 3; do # something may still be writing
	git add -A . >"$OURS/said" 2>&1 && { added=1; break; }
done
[ "$added" ] || problem "git cannot read the working tree: $(tail -c 500 "$OURS/said")"
differ() { git diff-index --cached --no-renames --no-ext-diff --no-textconv --ignore-submodules=none "$@" "$BASE" --; }
differ -p --binary --full-index --no-color --src-prefix=a/ --dst-prefix=b/ 2>"$OURS/said" | head -c $((MAX + 1)) >"$OURS/patch"
case "${PIPESTATUS[0]}" in 0 | 141) ;; *) problem "git cannot compare the working tree: $(tail -c 500 "$OURS/said")" ;; esac
[ "$(stat -c %s "$OURS/patch")" -le "$MAX" ] || problem "a patch of more than $MAX bytes"
differ --name-only -z >"$OURS/paths"
