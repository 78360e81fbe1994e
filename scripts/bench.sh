#!/bin/bash
# Times git env beside what people use instead, in one run, on repositories that it
# makes below a temporary directory. Prints medians in milliseconds; it judges
# nothing. Numbers of a busy machine say little: repeat it on a quiet one.
set -euo pipefail
PATH=$PATH:/usr/local/go/bin:/usr/sbin:/sbin
rounds=${ROUNDS:-15}

tmp=$(mktemp -d "${TMPDIR:-/tmp}/git-env-bench.XXXXXX")
export XDG_DATA_HOME=$tmp/data XDG_RUNTIME_DIR=$tmp/run GIT_PAGER=cat
export GIT_AUTHOR_NAME=Bench GIT_AUTHOR_EMAIL=bench@example.com
export GIT_COMMITTER_NAME=Bench GIT_COMMITTER_EMAIL=bench@example.com
mkdir -p "$tmp/run"

repos=()
cleanup() {
    status=$?
    trap - EXIT
    for r in "${repos[@]}"; do
        (cd "$r" && { git env list -q | xargs -r git env delete --force; git env daemon stop --force; } >/dev/null 2>&1) || status=1
    done
    if grep -q " $tmp/" /proc/self/mountinfo; then
        echo "warning: a workspace is still mounted below $tmp; left in place" >&2
        exit 1
    fi
    rm -rf "$tmp"
    exit "$status"
}
trap cleanup EXIT

# ms CMD…: how long it took, in tenths of a millisecond.
ms() {
    local start=$EPOCHREALTIME
    "$@" >/dev/null 2>&1 </dev/null || { echo "error: failed: $*" >&2; return 1; }
    echo $(((${EPOCHREALTIME/[.,]/} - ${start/[.,]/}) / 100))
}
# median: of the numbers on standard input, in milliseconds.
median() { sort -n | awk '{ v[NR] = $1 } END { printf "%.1f", v[int((NR + 1) / 2)] / 10 }'; }
row() { printf '%-58s %10s ms\n' "$1" "$2"; }

repo() {
    git init -q "$tmp/$1"
    repos+=("$tmp/$1")
    (cd "$tmp/$1" && "$2" && git add -A && git -c gc.auto=0 commit -qm files)
}
files() { for ((i = 0; i < $1; i++)); do
    ((i % 100)) || mkdir -p "d$((i / 10000))/e$((i / 100))"
    echo "$i" >"d$((i / 10000))/e$((i / 100))/f$i"
done; }
small() { files 1000; }
large() { files 100000; }
source_of_go() { cp -R "$(go env GOROOT)/src" .; }

creates() { # creates REPO: the median of several creates, the daemon up
    cd "$tmp/$1"
    git env create -q warm-up >/dev/null 2>&1 || git env create warm-up >/dev/null 2>&1
    for ((n = 0; n < rounds; n++)); do ms git env create "c$n"; done | median
}

echo "git env $(git env version | cut -d' ' -f2), git $(git version | cut -d' ' -f3), $(nproc) processors, median of $rounds"
repo go source_of_go
repo small small
repo large large

echo
echo "== create ($(git -C "$tmp/go" ls-files | wc -l) files of Go's own source)"
row "git env create" "$(creates go)"
cd "$tmp/go"
row "git worktree add (3 rounds)" "$(for n in 1 2 3; do
    ms git worktree add --detach "$tmp/wt" HEAD
    git worktree remove --force "$tmp/wt"
done | median)"

echo
echo "== create and fork do not depend on the size"
row "git env create, 1,000 files" "$(creates small)"
row "git env create, 100,000 files" "$(creates large)"
for r in small large; do
    cd "$tmp/$r"
    git env run warm-up -- true
    row "git env fork, $r" "$(for ((n = 0; n < rounds; n++)); do ms git env fork warm-up "f$n"; done | median)"
done

echo
echo "== from nothing: no daemon, no file server, no containerd"
cd "$tmp/small"
git env list -q | xargs -r git env delete --force >/dev/null 2>&1
git env daemon stop
row "git env create" "$(ms git env create cold | median)"
git env daemon stop
row "git env run cold -- true" "$(ms git env run cold -- true | median)"
grep -E 'msg=(mounted|"brought up")' .git/env/daemon.log | tail -n 2 | sed 's/.*msg=/  /'

echo
echo "== exec of true in a warm container, recorded"
sock=$(git env daemon status --json | sed 's/.*"containerd":"\([^" ]*\).*/\1/')
id=$(ctr -a "$sock" -n git-env containers ls -q | head -n 1)
for ((n = 0; n < 2 * rounds; n++)); do
    ms git env run cold -- true >>"$tmp/ours"
    ms ctr -a "$sock" -n git-env tasks exec --exec-id "bench$n" "$id" true >>"$tmp/theirs"
done
row "git env run -- true" "$(median <"$tmp/ours")"
row "ctr tasks exec true, same container" "$(median <"$tmp/theirs")"
printf '%-58s %10s\n' "ours as a share of it" "$(echo "$(median <"$tmp/ours") $(median <"$tmp/theirs")" | awk '{ printf "%.2f", $1 / $2 }')"
