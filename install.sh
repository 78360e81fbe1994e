#!/bin/sh
# Builds git-env from this source tree and installs it, together with what it
# needs from the distribution. POSIX sh; run it again at any time.
set -eu

GO_MIN_MINOR=26 # go 1.26, the version in go.mod

usage() {
    cat <<'EOF'
usage: ./install.sh [options]

Installs what git-env needs (containerd, runc, git, ca-certificates, make, Go),
builds git-env from this source tree and installs it with its manual pages.
Only what is missing is installed, always from the distribution's own packages.

  --prefix DIR   install below DIR (default /usr/local)
  --no-deps      install no packages; needs no root when DIR is yours
  --deps-only    install the packages and nothing else
  --test-deps    also install what the tests need (a static busybox, ps, chattr,
                 ip, python3, git-lfs, stress-ng, PostgreSQL)
  --bench-deps   also install what 'make bench-fs' compares with and runs
                 (fuse-overlayfs, ripgrep, sqlite3, npm)
  --uninstall    remove what this script put below DIR; packages and the state
                 of repositories stay
  --help         show this text

exit status: 0 done, 1 failed, 20 the host lacks something, 129 usage
EOF
}

say() { printf '%s\n' "install.sh: $*"; }

# die CODE MESSAGE [HINT]: one line that says what, one that says what to do.
die() {
    printf 'error: %s\n' "$2" >&2
    if [ "${3:-}" != "" ]; then
        printf 'hint: %s\n' "$3" >&2
    fi
    exit "$1"
}

have() { command -v "$1" >/dev/null 2>&1; }

# sbin holds runc on several distributions and is missing from many PATHs.
PATH=$PATH:/usr/local/sbin:/usr/sbin:/sbin

prefix=/usr/local
deps=yes
build=yes
test_deps=no
bench_deps=no
uninstall=no

while [ $# -gt 0 ]; do
    case $1 in
    --prefix)
        [ $# -ge 2 ] || die 129 "--prefix needs a directory" "./install.sh --help"
        prefix=$2
        shift
        ;;
    --prefix=*) prefix=${1#--prefix=} ;;
    --no-deps) deps=no ;;
    --deps-only) build=no ;;
    --test-deps) test_deps=yes ;;
    --bench-deps) bench_deps=yes ;;
    --uninstall) uninstall=yes ;;
    -h | --help)
        usage
        exit 0
        ;;
    *) die 129 "unknown option '$1'" "./install.sh --help lists the options" ;;
    esac
    shift
done
[ "$prefix" != "" ] || die 129 "--prefix needs a directory" "./install.sh --help"
if [ $deps = no ] && [ $build = no ]; then
    die 129 "--no-deps and --deps-only leave nothing to do" "give one of them"
fi
case $prefix in
/*) ;;
*) prefix=$(pwd)/$prefix ;;
esac
manifest=$prefix/share/git-env/installed

here=$(cd "$(dirname "$0")" && pwd)

# ---------------------------------------------------------------- uninstall

if [ $uninstall = yes ]; then
    if [ ! -f "$manifest" ]; then
        say "nothing of git-env is installed below $prefix"
        exit 0
    fi
    [ -w "$(dirname "$manifest")" ] || die 1 "cannot write to $prefix" "run it as root, or give the --prefix it was installed with"
    while IFS= read -r file; do
        # Paths are relative to the prefix; anything else is not ours.
        case $file in
        bin/* | share/man/man1/*) ;;
        *) continue ;;
        esac
        case $file in
        *..*) continue ;;
        esac
        rm -f "$prefix/$file" || die 1 "cannot remove $prefix/$file" "run it as root"
        say "removed $prefix/$file"
    done <"$manifest"
    rm -f "$manifest"
    rmdir "$prefix/share/git-env" 2>/dev/null || :
    say "the environments of your repositories (.git/env, refs/heads/env/*, refs/notes/env*),"
    say "their workspaces and images (~/.local/share/git-env) and all packages are left as they are"
    exit 0
fi

# ---------------------------------------------------------------- packages

# find_go prints the path of a Go that is new enough. When there is none it
# returns 1 and prints what was found instead, if anything.
find_go() {
    seen=
    for candidate in "$(command -v go || :)" /usr/local/go/bin/go /usr/lib/go/bin/go \
        /usr/lib/go-1.*/bin/go /usr/lib64/go/bin/go /opt/go/bin/go /snap/bin/go; do
        { [ "$candidate" != "" ] && [ -x "$candidate" ]; } || continue
        found=$(GOTOOLCHAIN=local "$candidate" env GOVERSION 2>/dev/null) || continue
        if go_new_enough "${found#go}"; then
            printf '%s\n' "$candidate"
            return 0
        fi
        seen="$found at $candidate"
    done
    printf '%s\n' "$seen"
    return 1
}

# go_new_enough VERSION: is 1.x at least 1.GO_MIN_MINOR? Takes "1.26.1",
# "1.26rc1", "2:1.26~1" and the like.
go_new_enough() {
    v=${1#*:}
    major=${v%%.*}
    rest=${v#*.}
    minor=${rest%%[!0-9]*}
    case $major$minor in
    '' | *[!0-9]*) return 1 ;;
    esac
    [ "$minor" != "" ] || return 1
    [ "$major" -gt 1 ] || { [ "$major" -eq 1 ] && [ "$minor" -ge "$GO_MIN_MINOR" ]; }
}

pm=
for candidate in apt-get dnf apk pacman zypper; do
    if have "$candidate"; then
        pm=$candidate
        break
    fi
done

# package_of TOOL prints the name of the package that brings TOOL.
package_of() {
    case $pm:$1 in
    dnf:postgres | zypper:postgres) printf 'postgresql-server\n' ;;
    *:postgres) printf 'postgresql\n' ;;
    apt-get:busybox | apk:busybox | zypper:busybox) printf 'busybox-static\n' ;;
    dnf:ps | pacman:ps) printf 'procps-ng\n' ;;
    *:ps) printf 'procps\n' ;;
    pacman:python3) printf 'python\n' ;;
    *:chattr) printf 'e2fsprogs\n' ;;
    dnf:ip) printf 'iproute\n' ;;
    *:ip) printf 'iproute2\n' ;;
    *:mkfs.ext4) printf 'e2fsprogs\n' ;;
    *:rg) printf 'ripgrep\n' ;;
    apk:sqlite3 | dnf:sqlite3 | pacman:sqlite3) printf 'sqlite\n' ;;
    zypper:npm) printf 'npm-default\n' ;;
    *) printf '%s\n' "$1" ;;
    esac
}

# go_candidate PACKAGE prints the version of it that the distribution would install.
go_candidate() {
    case $pm in
    apt-get) apt-cache policy "$1" 2>/dev/null | sed -n 's/^ *Candidate: *//p' ;;
    dnf) dnf -q info "$1" 2>/dev/null | sed -n 's/^Version *: *//p' | tail -n 1 ;;
    apk) apk policy "$1" 2>/dev/null | sed -n '2s/^ *\([0-9.]*\).*/\1/p' ;;
    pacman) pacman -Si "$1" 2>/dev/null | sed -n 's/^Version *: *//p' | head -n 1 ;;
    zypper) zypper -q info "$1" 2>/dev/null | sed -n 's/^Version *: *//p' ;;
    esac
}

# newest_go_package prints the package that brings a Go that is new enough; when
# there is none it prints the version that there is and returns 1.
newest_go_package() {
    case $pm in
    apt-get) packages="golang-go golang-1.26-go golang-1.27-go golang-1.28-go" ;;
    dnf) packages=golang ;;
    *) packages=go ;;
    esac
    best=
    for p in $packages; do
        candidate=$(go_candidate "$p")
        if go_new_enough "${candidate:-0}"; then
            printf '%s\n' "$p"
            return 0
        fi
        [ "$best" != "" ] || best=$candidate
    done
    printf '%s\n' "$best"
    return 1
}

have_certs() {
    for f in /etc/ssl/certs/ca-certificates.crt /etc/pki/tls/certs/ca-bundle.crt \
        /etc/ssl/ca-bundle.pem /etc/ssl/cert.pem; do
        [ -s "$f" ] && return 0
    done
    return 1
}

have_static_busybox() {
    for f in /bin/busybox /usr/bin/busybox /bin/busybox-static /usr/bin/busybox-static /bin/busybox.static; do
        # A program without an ELF interpreter is static.
        if [ -x "$f" ] && ! LC_ALL=C grep -aq '/ld-linux\|/ld-musl' "$f"; then
            return 0
        fi
    done
    return 1
}

# have_postgres looks for the server too, which Debian keeps out of PATH.
have_postgres() {
    have psql || return 1
    have postgres && return 0
    for f in /usr/lib/postgresql/*/bin/postgres; do
        [ -x "$f" ] && return 0
    done
    return 1
}

missing_tools() {
    for tool in containerd runc git make; do
        have "$tool" || printf '%s\n' "$tool"
    done
    have_certs || printf 'ca-certificates\n'
    find_go >/dev/null || printf 'go\n'
    if [ $test_deps = yes ]; then
        have_static_busybox || printf 'busybox\n'
        have_postgres || printf 'postgres\n'
        for tool in ps chattr ip python3 git-lfs stress-ng; do
            have "$tool" || printf '%s\n' "$tool"
        done
    fi
    if [ $bench_deps = yes ]; then
        for tool in fuse-overlayfs rg sqlite3 npm mkfs.ext4; do
            have "$tool" || printf '%s\n' "$tool"
        done
    fi
}

as_root() {
    [ "$(id -u)" -eq 0 ] || die 20 "not root, and missing: $(printf '%s' "$missing" | tr '\n' ' ')" \
        "run it with sudo, install them by hand, or give --no-deps"
}

refresh_index() {
    case $pm in
    apt-get) apt-get update -q ;;
    apk) apk update -q ;;
    pacman) pacman -Sy --noconfirm ;;
    *) : ;; # dnf and zypper refresh by themselves
    esac
}

install_packages() {
    case $pm in
    apt-get) DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends "$@" ;;
    dnf) dnf install -q -y "$@" ;;
    apk) apk add -q "$@" ;;
    pacman) pacman -S --noconfirm --needed "$@" ;;
    zypper) zypper -q --non-interactive install --no-recommends "$@" ;;
    esac
}

# index_knows is false when the package index is missing or does not know one of
# the packages: the only cases in which refreshing it is worth the time.
index_knows() {
    case $pm in
    apt-get)
        for p in "$@"; do
            apt-cache policy "$p" 2>/dev/null | grep -q '^ *Candidate: *[0-9]' || return 1
        done
        ;;
    apk)
        for p in "$@"; do
            apk policy "$p" 2>/dev/null | grep -q '/' || return 1
        done
        ;;
    pacman) pacman -Si "$@" >/dev/null 2>&1 || return 1 ;;
    esac
}

go_hint="install Go 1.$GO_MIN_MINOR or newer from https://go.dev/dl/ (unpack it to /usr/local/go) and run this again"

install_deps() {
    missing=$(missing_tools)
    if [ "$missing" = "" ]; then
        say "everything needed is installed"
        return 0
    fi
    as_root
    [ "$pm" != "" ] || die 20 "no package manager that this script knows (apt, dnf, apk, pacman, zypper)" \
        "install by hand: $(printf '%s' "$missing" | tr '\n' ' '), then give --no-deps"

    set --
    need_go=no
    for tool in $missing; do
        case $tool in
        go) need_go=yes ;;
        *) set -- "$@" "$(package_of "$tool")" ;;
        esac
    done
    go_package=
    if [ $need_go = yes ]; then
        go_package=$(newest_go_package) || go_package=
    fi
    if ! index_knows "$@" || { [ $need_go = yes ] && [ "$go_package" = "" ]; }; then
        say "refreshing the package index"
        refresh_index || die 1 "cannot refresh the package index" "check the network and the package sources, or install by hand: $*"
    fi
    if [ $need_go = yes ]; then
        go_package=$(newest_go_package) || {
            seen=$(find_go) || :
            die 20 "Go 1.$GO_MIN_MINOR is needed; this distribution has ${go_package:-none}${seen:+, found $seen}" "$go_hint"
        }
        set -- "$@" "$go_package"
    fi

    had_containerd=no
    have containerd && had_containerd=yes
    say "installing $*"
    if ! install_packages "$@"; then
        # A stale index names versions that the mirror no longer has.
        say "refreshing the package index and trying once more"
        { refresh_index && install_packages "$@"; } ||
            die 1 "cannot install: $*" "check the network and the package sources, or install them by hand and give --no-deps"
    fi
    # git env runs a containerd of its own. A distribution that starts the
    # system's one on installation would leave a service nobody asked for.
    if [ $had_containerd = no ] && [ -d /run/systemd/system ] && have systemctl; then
        systemctl disable --now containerd.service >/dev/null 2>&1 || :
    fi

    missing=$(missing_tools)
    [ "$missing" = "" ] || die 20 "still missing after installation: $(printf '%s' "$missing" | tr '\n' ' ')" "install them by hand, then run this again"
}

[ $deps = no ] || install_deps

# git_new_enough: cat-file --batch-command came with git 2.36.
git_new_enough() {
    v=$(git --version)
    v=${v#git version }
    minor=${v#*.}
    minor=${minor%%[!0-9]*}
    [ "${v%%.*}" -gt 2 ] || { [ "${v%%.*}" -eq 2 ] && [ "${minor:-0}" -ge 36 ]; }
}
if have git && ! git_new_enough; then
    die 20 "git 2.36 or newer is needed; found $(git --version)" "install a newer git, on Ubuntu from ppa:git-core/ppa"
fi
if [ ! -e /dev/fuse ]; then
    printf 'warning: %s\nhint: %s\n' "there is no /dev/fuse; git env cannot mount workspaces on this machine" \
        "load the module with 'modprobe fuse', or in a container give it the device (--device /dev/fuse)" >&2
fi
[ $build = yes ] || exit 0

# ---------------------------------------------------------------- build

go=$(find_go) || {
    if [ "$go" = "" ]; then
        die 20 "Go is not installed" "$go_hint"
    fi
    die 20 "Go 1.$GO_MIN_MINOR is needed; found $go" "$go_hint"
}

# writable DIR: can files be made in DIR, or in the nearest directory above it?
writable() {
    d=$1
    while [ ! -e "$d" ]; do
        d=$(dirname "$d")
    done
    [ -d "$d" ] && [ -w "$d" ]
}
for d in "$prefix/bin" "$prefix/share/man/man1" "$prefix/share/git-env"; do
    writable "$d" || die 1 "cannot write to $d" "run it as root, or choose a directory of yours with --prefix"
done

stage=$(mktemp -d "${TMPDIR:-/tmp}/git-env-install.XXXXXX") || die 1 "cannot make a temporary directory" "set TMPDIR to a directory with free space"
trap 'rm -rf "$stage"' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

# A tarball has no .git: the program then says which version its source states.
version=
if have git && [ -e "$here/.git" ]; then
    version=$(git -C "$here" describe --tags --always --dirty 2>/dev/null) || version=
fi

say "building git-env${version:+ $version} with $go"
(cd "$here" && CGO_ENABLED=0 "$go" build -buildvcs=false -trimpath \
    -ldflags "-s -w${version:+ -X github.com/git-env/git-env/internal/version.stamped=$version}" -o "$stage/git-env" ./cmd/git-env) ||
    die 1 "the build failed" "without a network, Go needs its module cache filled: run 'go mod download' where there is one"
mkdir "$stage/man1"
"$stage/git-env" man "$stage/man1" || die 1 "cannot write the manual pages" "report this with the output above"

# ---------------------------------------------------------------- install

# put FILE TARGET MODE: the new file replaces the old one in one step, so that a
# git-env that is running, or an interrupted installation, never meets half a file.
put() {
    if ! { mkdir -p "$(dirname "$prefix/$2")" && cp "$1" "$prefix/$2.new.$$" &&
        chmod "$3" "$prefix/$2.new.$$" && mv -f "$prefix/$2.new.$$" "$prefix/$2"; }; then
        rm -f "$prefix/$2.new.$$"
        die 1 "cannot install $prefix/$2" "check permissions and free space"
    fi
    printf '%s\n' "$2" >>"$stage/manifest"
}

: >"$stage/manifest"
put "$stage/git-env" bin/git-env 755
for page in "$stage"/man1/*.1; do
    [ -e "$page" ] || continue
    put "$page" "share/man/man1/${page##*/}" 644
done

# Pages of an earlier version that this one no longer has.
if [ -f "$manifest" ]; then
    while IFS= read -r old; do
        case $old in
        *..*) continue ;;
        share/man/man1/*) ;;
        *) continue ;;
        esac
        grep -qxF "$old" "$stage/manifest" || rm -f "$prefix/$old"
    done <"$manifest"
fi
mkdir -p "$(dirname "$manifest")"
cp "$stage/manifest" "$manifest.new.$$"
mv -f "$manifest.new.$$" "$manifest"

say "installed $prefix/bin/git-env and its manual pages"
case :$PATH: in
*":$prefix/bin:"*) ;;
*) printf 'hint: %s\n' "add $prefix/bin to PATH, so that 'git env' finds it" >&2 ;;
esac
