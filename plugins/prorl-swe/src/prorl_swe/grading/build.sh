# From two patches to two trees. Expects what git.sh does, and tests.patch and agent.patch in OURS.
# Leaves tests.tree and agent.tree, or why there is none in rejected (the agent's patch).
# Ends with 41 when the test patch does not apply.
cd "$WORKTREE" || exit 40
tree_of() { # of the base with a patch
	git read-tree "$BASE" || exit 40
	[ ! -s "$1" ] || git apply --cached --binary --whitespace=nowarn "$1" || return 1
	git write-tree
}
tree_of "$OURS/tests.patch" >"$OURS/tests.tree" || exit 41
if ! tree_of "$OURS/agent.patch" >"$OURS/agent.tree" 2>"$OURS/said"; then
	tail -c 2000 "$OURS/said" >"$OURS/rejected"
	exit 0
fi
tests=$(cat "$OURS/tests.tree") agent=$(cat "$OURS/agent.tree")
git diff-tree -r -z --raw --full-index --no-renames "$BASE^{tree}" "$agent" >"$OURS/agent.changed"
git diff-tree -r -z --raw --full-index --no-renames "$BASE^{tree}" "$tests" >"$OURS/tests.changed"
git ls-tree -r -z --full-tree "$tests" >"$OURS/tests.all"
"$PYTHON" -I -c "$MODULES" "$WORKTREE" >"$OURS/modules" 2>/dev/null || : >"$OURS/modules" # it may be no Python at all
mkdir -p "$OURS/settings"
number=0
while IFS= read -r -d '' path; do
	case "${path##*/}" in setup.cfg | pyproject.toml) ;; *) continue ;; esac
	[ "$number" -lt 50 ] || break
	git cat-file blob "$agent:$path" >"$OURS/settings/$number.agent" 2>/dev/null
	git cat-file blob "$tests:$path" >"$OURS/settings/$number.tests" 2>/dev/null
	printf '%s' "$path" >"$OURS/settings/$number.path"
	number=$((number + 1))
done < <(git diff-tree -r -z --name-only --no-renames "$BASE^{tree}" "$agent")
