// Package e2e runs the scripts in testdata/script against the real program: each
// script calls "git env …" through git, with a real FUSE mount, a real private
// containerd and a real git. Nothing is faked.
//
// A script gets a home, a data and a runtime directory of its own, so that its
// daemon, file server and containerd are its own too. When it ends, everything
// it started must be gone after "git env daemon stop": a process, mount or
// container that is left fails the script by name and is then removed by force.
//
// testdata/script/README.md describes the verbs and conditions that scripts have
// beyond those of testscript. GIT_ENV_BIN names a git-env to test instead of
// building one; GITENV_TEST_REQUIRE=1 turns a missing capability of the host
// from a skip into a failure.
package e2e
