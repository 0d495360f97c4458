# The working tree as it is to be tested. Expects what git.sh does, and in OURS agent.tree and the lines of an index
# that make the difference (entries).
cd "$WORKTREE" || exit 40
git read-tree "$(cat "$OURS/agent.tree")" && git update-index -z --index-info <"$OURS/entries" || exit 40
final=$(git write-tree) || exit 40
git read-tree "$BASE" && { git update-index -q --refresh >/dev/null; git read-tree --reset -u "$final"; } || exit 40
# Nothing may be left that is not this tree's: neither a file that could not be replaced nor one that was in the way.
git update-index -q --refresh >/dev/null
git diff-files --quiet || exit 42
find "$OURS" -mindepth 1 -delete 2>/dev/null
exit 0
