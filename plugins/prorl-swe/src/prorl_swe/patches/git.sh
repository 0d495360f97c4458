# A git directory of our own over the base's objects: neither the working tree's .git nor anybody's settings, hooks,
# filters or attributes have a say. Expects BASE, WORKTREE, PRISTINE and an empty folder in OURS.
export LC_ALL=C GIT_CONFIG_NOSYSTEM=1 GIT_CONFIG_GLOBAL=/dev/null GIT_ATTR_NOSYSTEM=1 GIT_TERMINAL_PROMPT=0
export HOME="$OURS" GIT_DIR="$OURS/git" GIT_WORK_TREE="$WORKTREE" GIT_OPTIONAL_LOCKS=0
export GIT_CONFIG_COUNT=1 GIT_CONFIG_KEY_0=safe.directory GIT_CONFIG_VALUE_0='*'
[ -d "$PRISTINE/objects" ] || { echo "there is no git directory at $PRISTINE"; exit 40; }
command -v git >/dev/null || { echo "there is no git in the sandbox"; exit 40; }
mkdir -p "$GIT_DIR/objects/info" "$GIT_DIR/refs" "$GIT_DIR/info" || exit 40
echo "$PRISTINE/objects" >"$GIT_DIR/objects/info/alternates"
echo "$BASE" >"$GIT_DIR/HEAD"
cat >"$GIT_DIR/config" <<'CONFIG'
[core]
	repositoryformatversion = 0
	bare = false
	fileMode = true
	symlinks = true
	autocrlf = false
	eol = lf
	safecrlf = false
	ignoreCase = false
	precomposeUnicode = false
	hooksPath = /dev/null
	fsmonitor = false
	untrackedCache = false
	attributesFile = /dev/null
	excludesFile = /dev/null
	quotePath = false
[gc]
	auto = 0
[protocol]
	allow = never
[submodule]
	recurse = false
CONFIG
# Before every .gitattributes: bytes are bytes.
echo '* -text !eol !filter !ident !working-tree-encoding !diff !merge !whitespace' >"$GIT_DIR/info/attributes"
cat >"$GIT_DIR/info/exclude" <<'EXCLUDE'
__pycache__/
*.py[cod]
.pytest_cache/
.mypy_cache/
.ruff_cache/
.hypothesis/
.ipynb_checkpoints/
.tox/
.nox/
.venv/
*.egg-info/
.coverage
.coverage.*
.eggs/
.prorl/
EXCLUDE
