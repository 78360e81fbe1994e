#!/bin/sh
# Shows git env at work on this project itself: a real build and real tests inside
# an environment, then log, fork, diff and merge. Works in a clone below a
# temporary directory; neither this checkout nor any of its refs is touched.
set -eu

PATH=$PATH:/usr/local/go/bin
src=$(cd "$(dirname "$0")/.." && pwd)

command -v git-env >/dev/null || {
    echo "error: git-env is not on PATH" >&2
    echo "hint: run 'make demo', or ./install.sh first" >&2
    exit 1
}

tmp=$(mktemp -d "${TMPDIR:-/tmp}/git-env-demo.XXXXXX")

# Runs on every way out, also after Ctrl-C and after a step that failed.
cleanup() {
    status=$?
    trap - EXIT INT TERM
    cd "$tmp/project" 2>/dev/null && {
        for env in $(git env list -q 2>/dev/null); do
            git env delete --force "$env" >/dev/null 2>&1 || status=1
        done
        git env daemon stop --force >/dev/null 2>&1 || :
    }
    cd /
    # Never remove what is below a mount that could not be released.
    if grep -q " $tmp/" /proc/self/mountinfo; then
        echo "warning: a workspace is still mounted below $tmp; left in place" >&2
        status=1
    else
        rm -rf "$tmp"
    fi
    exit "$status"
}
trap cleanup EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

# Workspaces of the demo stay with the demo.
export XDG_DATA_HOME="$tmp/data" GIT_PAGER=cat PAGER=cat

if [ -t 1 ]; then bold=$(printf '\033[1m') plain=$(printf '\033[0m'); else bold='' plain=''; fi
note() { printf '\n%s# %s%s\n' "$bold" "$*" "$plain"; }
# type LINE: shows a line as a person would type it, then runs it.
type_() {
    printf '%s$ %s%s\n' "$bold" "$1" "$plain"
    eval "$1"
}

note "A clone of this project to work on"
if git -C "$src" rev-parse -q --verify HEAD >/dev/null 2>&1; then
    type_ "git clone -q '$src' '$tmp/project'"
    type_ "cd '$tmp/project'"
else
    # A source archive has no history: it becomes the first commit of one.
    mkdir "$tmp/project"
    cp -R "$src/." "$tmp/project/"
    type_ "cd '$tmp/project'"
    type_ "git init -q"
fi
git config user.name >/dev/null || git config user.name 'Git Env Demo'
git config user.email >/dev/null || git config user.email 'demo@example.com'
# A checkout in the middle of a rebase has no branch; the demo wants one.
git symbolic-ref -q HEAD >/dev/null || git checkout -q -b demo-main

git rev-parse -q --verify HEAD >/dev/null || { git add -A && git commit -q -m 'Import'; }

note "An environment: a branch with a workspace and a container of its own"
type_ "git env create demo"

note "A real build and real tests inside, with this machine's own tools"
# Inside, the home directory is the environment's own: what go would read from
# the user's settings is handed over.
GOPROXY=$(go env GOPROXY) GOFLAGS=$(go env GOFLAGS)
export GOPROXY GOFLAGS
goenv='-e GOPROXY -e GOFLAGS -e CGO_ENABLED=0'
type_ "git env run demo $goenv -- go build ./..."
type_ "git env run demo $goenv -- go vet ./..."
type_ "git env run demo $goenv -- go test ./notes/... ./internal/objects/... ./internal/gitcmd/..."

note "Nothing to commit so far; now a change"
type_ "git env run demo -m 'Say hello' -- sh -c 'echo hello from an environment > HELLO'"
type_ "git status --short   # the checkout outside is untouched"

note "What happened, as git env and as plain git show it"
type_ "git env log demo"
type_ "git log --notes=env -2 env/demo"

note "A fork has everything: files, caches, root filesystem"
type_ "git env fork demo demo-2"
type_ "git env run demo-2 $goenv -- go build ./...   # already compiled"
type_ "git env run demo-2 -m 'Another greeting' -- sh -c 'echo and from its fork >> HELLO'"
type_ "git env diff demo-2"
type_ "git env list"

note "Merge the fork into the branch, then let both environments go"
type_ "git env merge demo-2"
type_ "git log --oneline -3"
type_ "cat HELLO"
type_ "git env delete demo"
type_ "git env delete demo-2"
type_ "git env list"
note "Done. The clone, its containers and its daemon are gone."
