# make demo   installs what is missing, then shows git env at work on this very project
# make test   installs what is missing, then runs every check and test

SHELL := /bin/sh
# Go is where PATH says, or where its own installer puts it.
GO ?= $(shell command -v go 2>/dev/null || ls /usr/local/go/bin/go /usr/lib/go/bin/go 2>/dev/null | head -n 1 | grep . || echo go)
export PATH := $(PATH):$(if $(findstring /,$(GO)),$(patsubst %/,%,$(dir $(GO))):)/usr/local/sbin:/usr/sbin:/sbin
export CGO_ENABLED := 0
export GOTOOLCHAIN := local
# Continuous integration skips nothing: a missing capability fails there.
ifeq ($(CI),true)
export GITENV_TEST_REQUIRE := 1
endif

PREFIX ?= /usr/local
VERSION := $(shell git describe --tags --always --dirty 2>/dev/null)
LDFLAGS := -s -w $(if $(VERSION),-X github.com/git-env/git-env/internal/version.stamped=$(VERSION))
# The end-to-end tests have their own step; see test-e2e.
UNIT = $$($(GO) list ./... | grep -v '/e2e$$')

.PHONY: build install demo test test-deps lint test-unit test-e2e bench bench-fs conformance man clean

build:
	$(GO) build -buildvcs=false -trimpath -ldflags '$(LDFLAGS)' -o bin/git-env ./cmd/git-env

install:
	./install.sh --prefix '$(PREFIX)'

demo:
	./install.sh --prefix '$(PREFIX)'
	PATH='$(PREFIX)/bin':"$$PATH" ./scripts/demo.sh

# Each step is a make of its own: what the first one installs, the next one sees.
test:
	@$(MAKE) --no-print-directory test-deps
	@$(MAKE) --no-print-directory lint
	@$(MAKE) --no-print-directory test-unit
	@$(MAKE) --no-print-directory test-e2e

test-deps:
	./install.sh --deps-only --test-deps

lint:
	@echo '== gofmt, go vet, architecture'
	@bad=$$($(GO)fmt -l $$(find . -name '*.go' -not -path './.git/*')); \
		if [ -n "$$bad" ]; then echo "gofmt would change:" $$bad >&2; exit 1; fi
	$(GO) vet ./...
	$(GO) run ./internal/archlint .

test-unit:
	@echo '== unit tests'
	$(GO) test -timeout 10m $(UNIT)

# -v prints each script as it ends; each one has the machine's FUSE and its own
# containerd, so more than two at a time only wait for one another.
test-e2e:
	@echo '== end-to-end tests'
	$(GO) test -count=1 -timeout 20m -parallel 2 -v ./e2e

# Side by side with what people use instead; see scripts/bench.sh.
bench: build
	PATH='$(CURDIR)/bin':"$$PATH" ./scripts/bench.sh
	@echo; echo '== bytes out of and into the network of a container, and over its loopback'
	@$(GO) test -run '^$$' -bench Throughput -benchtime 2s ./runtime/network

# The file system beside the native one, overlayfs and fuse-overlayfs; for example
# make bench-fs ARGS='--only find --columns overlay,ours'; see docs/benchmarks.md.
bench-fs: build
	@$(GO) build -buildvcs=false -o bin/benchfs ./internal/benchfs
	@exec bin/benchfs --git-env bin/git-env $(ARGS)

# The public test suites, which are fetched, on a plain directory and on a
# workspace; see scripts/conformance.sh and docs/conformance.md.
conformance: build
	PATH='$(CURDIR)/bin':"$$PATH" ./scripts/conformance.sh

man: build
	mkdir -p docs/man
	bin/git-env man docs/man

clean:
	rm -rf bin
