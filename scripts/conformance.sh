#!/bin/bash
# Runs the public file system test suites on a plain directory and on a
# workspace, and prints where they differ. It builds them from their public
# repositories, below a cache directory and never here:
#
#   pjdfstest   every call, its errors and what it does to attributes
#   fsx         random reads, writes, mappings and allocations of one file
#   stress-ng   its class "filesystem", when the package is installed
#
# usage: scripts/conformance.sh [pjdfstest] [fsx] [stress-ng]   (default: all)
#
# Variables: PJDFSTEST_REPO and XFSTESTS_REPO name other repositories (URL or
# path), CONFORMANCE_DIR where they are kept, FSX_OPS and FSX_SEEDS how long fsx
# runs, KINDS which kinds of path are tested.
#
# Needs root, /dev/fuse, a C compiler, autoconf, automake, perl (prove) and
# openssl. Exits with 1 when something fails in the workspace that passes in
# the plain directory.
set -euo pipefail
PATH=$PATH:/usr/local/go/bin:/usr/sbin:/sbin
pjdfstest_repo=${PJDFSTEST_REPO:-https://github.com/pjd/pjdfstest}
xfstests_repo=${XFSTESTS_REPO:-https://git.kernel.org/pub/scm/fs/xfs/xfstests-dev.git}
cache=${CONFORMANCE_DIR:-${XDG_CACHE_HOME:-$HOME/.cache}/git-env-conformance}
fsx_ops=${FSX_OPS:-20000}
fsx_seeds=${FSX_SEEDS:-1 2 3}
# In the tree; only in the top layer; in the tree and changed; and in a
# workspace that is forked all the time, so that whatever was written is in a
# layer below at the next change.
kinds=${KINDS:-tree upper changed forked}
suites=("$@")
[ $# -gt 0 ] || suites=(pjdfstest fsx stress-ng)

die() { echo "error: $*" >&2; exit 1; }
[ "$(id -u)" = 0 ] || die "needs root"
[ -e /dev/fuse ] || die "needs /dev/fuse"
for tool in git git-env cc; do
    command -v $tool >/dev/null || die "$tool is not installed (use 'make conformance', which builds git-env)"
done

tmp=$(mktemp -d "${TMPDIR:-/tmp}/git-env-conformance.XXXXXX")
chmod 755 "$tmp"
export XDG_DATA_HOME=$tmp/data XDG_RUNTIME_DIR=$tmp/run GIT_PAGER=cat
export GIT_AUTHOR_NAME=Test GIT_AUTHOR_EMAIL=test@example.com
export GIT_COMMITTER_NAME=Test GIT_COMMITTER_EMAIL=test@example.com
mkdir -p "$tmp/run" "$tmp/data" "$cache"
forker=
cleanup() {
    status=$?
    trap - EXIT
    cd /
    [ "$forker" = "" ] || kill "$forker" 2>/dev/null || :
    (cd "$tmp/repo" && { git env list -q | xargs -r git env delete --force; git env daemon stop --force; } >/dev/null 2>&1) || :
    if grep -q " $tmp/" /proc/self/mountinfo; then
        echo "warning: a workspace is still mounted below $tmp; left in place" >&2
        exit 1
    fi
    rm -rf "$tmp"
    exit "$status"
}
trap cleanup EXIT

# fetch REPO DIR: a copy of a public repository, kept for the next time.
fetch() {
    [ -d "$cache/$2" ] || git clone -q --depth 1 "$1" "$cache/$2" ||
        die "cannot get $1: set ${3} to a repository that can be had"
    echo "$2: $(git -C "$cache/$2" log -1 --format='%h of %cs') from $1"
}

build_pjdfstest() {
    fetch "$pjdfstest_repo" pjdfstest PJDFSTEST_REPO
    for tool in autoreconf prove openssl; do
        command -v $tool >/dev/null || die "$tool is not installed"
    done
    [ -x "$cache/pjdfstest/pjdfstest" ] ||
        (cd "$cache/pjdfstest" && autoreconf -ifs && ./configure && make pjdfstest) >"$tmp/log" 2>&1 ||
        die "pjdfstest does not build: $(tail -n 3 "$tmp/log")"
}

# fsx is one file of xfstests; what it wants of the rest is little.
build_fsx() {
    fetch "$xfstests_repo" xfstests XFSTESTS_REPO
    [ -x "$cache/fsx" ] && return
    mkdir -p "$tmp/include"
    {
        for h in sys/types.h sys/stat.h sys/ioctl.h sys/param.h fcntl.h unistd.h getopt.h assert.h linux/fs.h linux/falloc.h; do
            echo "#include <$h>"
        done
        echo '#define rounddown_64(x, y) ((unsigned long long)(x) / (y) * (y))'
        echo '#define roundup_64(x, y) (((unsigned long long)(x) + (y) - 1) / (y) * (y))'
    } >"$tmp/include/global.h"
    cc -O2 -w -D_GNU_SOURCE -DHAVE_ERR_H -DFALLOCATE -DHAVE_COPY_FILE_RANGE \
        -I"$tmp/include" -I"$cache/xfstests/src" -o "$cache/fsx" "$cache/xfstests/ltp/fsx.c" ||
        die "fsx does not build"
}

# workspace: makes the environment.
workspace() {
    git init -q "$tmp/repo"
    cd "$tmp/repo"
    git config env.idleTimeout 24h # nothing of git env runs in it
    for d in tree changed; do
        mkdir $d
        head -c 200000 /dev/urandom >$d/file
        for ((i = 0; i < 50; i++)); do echo "$i" >"$d/f$i"; done
    done
    git add -A
    git commit -qm files
    git env create e >/dev/null
    ws=$(git env path e)
    chmod 755 "$(dirname "$(dirname "$ws")")" "$(dirname "$ws")"
    mkdir "$ws/upper" "$ws/forked" "$tmp/plain"
    for d in upper forked plain; do
        dst=$ws/$d
        [ $d = plain ] && dst=$tmp/plain
        cp "$tmp/repo/tree/"* "$dst/"
    done
    for f in "$ws/changed/"*; do printf x | dd of="$f" conv=notrunc status=none; done
    chmod 700 "$ws/changed"
    chmod 755 "$ws/changed"
    cd /
}

# fork_all_the_time: until it is killed.
fork_all_the_time() {
    cd "$tmp/repo"
    for ((i = 0; ; i++)); do
        git env fork e "f$i" >/dev/null && git env delete --force "f$i" >/dev/null
        sleep 2
    done
}

# each SUITE: runs it in the plain directory and in the workspace.
each() {
    echo
    echo "== $1"
    "$1" "$tmp/plain" plain
    printf '%-10s %s\n' plain "$(cat "$tmp/$1.plain.sum")"
    for kind in $kinds; do
        if [ "$kind" = forked ]; then
            fork_all_the_time >"$tmp/forker.log" 2>&1 &
            forker=$!
        fi
        "$1" "$ws/$kind" "$kind"
        if [ "$forker" != "" ]; then
            kill "$forker" 2>/dev/null || die "forking failed: $(cat "$tmp/forker.log")"
            wait "$forker" 2>/dev/null || :
            forker=
        fi
        printf '%-10s %s\n' "$kind" "$(cat "$tmp/$1.$kind.sum")"
        if ! diff "$tmp/$1.plain" "$tmp/$1.$kind" >"$tmp/diff"; then
            grep '^[<>]' "$tmp/diff"
            worse=1
        fi
    done
}

# Each suite gets a directory and a name; it leaves what failed, one a line, in
# $tmp/SUITE.NAME and a summary in $tmp/SUITE.NAME.sum.

pjdfstest() {
    mkdir -p "$1/pjd"
    (cd "$1/pjd" && prove -v -r "$cache/pjdfstest/tests") >"$tmp/log" 2>&1 || :
    # The names of files are random: of a failure only the file and its number count.
    awk '/\.t \.\.+ *$/ { sub(/.*\/tests\//, ""); sub(/ .*/, ""); file = $0 }
        /^not ok/ && !/# TODO/ { print file, $3 }' "$tmp/log" >"$tmp/pjdfstest.$2"
    grep '^not ok' "$tmp/log" >>"$tmp/details.$2" || :
    grep '^Files=' "$tmp/log" | sed 's/, *[0-9]* wallclock.*//' >"$tmp/sum"
    echo "$(cat "$tmp/sum"), failed $(wc -l <"$tmp/pjdfstest.$2")" >"$tmp/pjdfstest.$2.sum"
}

fsx() {
    : >"$tmp/fsx.$2"
    runs=0
    for seed in $fsx_seeds; do
        for how in "" "-k" "-c 20" "-Z -R -W -r 4096 -w 4096"; do
            file=$1/file
            [ "$how" != "" ] || file=$1/new
            runs=$((runs + 1))
            # shellcheck disable=SC2086
            (cd "$1" && "$cache/fsx" -q -P "$tmp" -S "$seed" -N "$fsx_ops" $how "$file") >"$tmp/log" 2>&1 ||
                { echo "seed $seed $how" >>"$tmp/fsx.$2"; cp "$tmp/log" "$tmp/fsx.$2.$seed.log"; tail -n 40 "$tmp/log" >&2; }
        done
    done
    echo "$runs runs of $fsx_ops operations, failed $(wc -l <"$tmp/fsx.$2")" >"$tmp/fsx.$2.sum"
}

stress-ng() {
    mkdir -p "$1/stress"
    (cd / && command stress-ng --class filesystem --sequential 1 --timeout 2 --temp-path "$1/stress" \
        --verify --metrics-brief --hdd-bytes 16m --iomix-bytes 16m --fallocate-bytes 16m) >"$tmp/log" 2>&1 || :
    sed -n 's/^stress-ng: fail: *\[[0-9]*\] *//p; s/^stress-ng: error: *\[[0-9]*\] *//p' "$tmp/log" | sort >"$tmp/stress-ng.$2"
    echo "$(grep -c 'stress-ng: metrc' "$tmp/log" || :) lines of metrics, $(tail -n 1 "$tmp/log" | sed 's/.*\] //')" >"$tmp/stress-ng.$2.sum"
}

worse=0
for s in "${suites[@]}"; do
    case $s in
    pjdfstest) build_pjdfstest ;;
    fsx) build_fsx ;;
    stress-ng) command -v stress-ng >/dev/null || die "stress-ng is not installed" ;;
    *) die "no such suite: $s" ;;
    esac
done
workspace
echo "$(uname -sr), plain directory on $(stat -f -c %T "$tmp/plain"), workspace on $(stat -f -c %T "$tmp/repo/.git"), git env $(git env version | head -n 1 | cut -d' ' -f2)"
for s in "${suites[@]}"; do each "$s"; done
exit $worse
