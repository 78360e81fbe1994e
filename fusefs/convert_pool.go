package fusefs

import (
	"context"
	"errors"
	"log"
	"sync"

	"github.com/git-env/git-env/internal/conversion"
	"github.com/git-env/git-env/internal/gitcmd"
)

// converters are the trees whose files are converted, one for all mounts of the
// same tree under the same configuration.
type converters struct {
	git    *gitcmd.Git
	objs   conversion.Objects
	config *conversion.Source
	store  *convertStore
	tmp    string
	log    *log.Logger

	mu    sync.Mutex
	trees map[converterKey]*sharedTree // guarded by mu
}

type converterKey struct {
	tree   string
	config *conversion.Config
}

type sharedTree struct {
	*conversion.Tree
	users int
}

// treeConverter is the part of a workspace in converters. The configuration is
// the one of when it was first used, so that what a mount shows stays the same.
type treeConverter struct {
	*converters
	id string // of the tree

	once sync.Mutex
	key  converterKey     // guarded by once
	tree *conversion.Tree // guarded by once; nil before its first use
	done bool             // guarded by once
}

func newConverters(g *gitcmd.Git, objs conversion.Objects, tmp string, l *log.Logger) *converters {
	return &converters{
		git: g, objs: objs, config: conversion.NewSource(g), log: l, tmp: tmp, trees: map[converterKey]*sharedTree{},
	}
}

var errUnmounted = errors.New("unmounted")

func (c *converters) of(tree string) *treeConverter {
	return &treeConverter{converters: c, id: tree}
}

// get returns the tree to convert with.
func (c *treeConverter) get(ctx context.Context) (*conversion.Tree, error) {
	c.once.Lock()
	defer c.once.Unlock()
	switch {
	case c.done:
		return nil, errUnmounted
	case c.tree != nil:
		return c.tree, nil
	}
	config, err := c.config.Config(ctx)
	if err != nil {
		return nil, err
	}
	c.key = converterKey{c.id, config}
	c.converters.mu.Lock()
	defer c.converters.mu.Unlock()
	t := c.trees[c.key]
	if t == nil {
		t = &sharedTree{Tree: conversion.NewTree(c.git, c.objs, c.id, config, c.tmp, c.log)}
		c.trees[c.key] = t
	}
	t.users++
	c.tree = t.Tree
	return c.tree, nil
}

// end gives the tree up. When nobody else has it, conversions that are under way
// for requests nobody waits for any more are ended.
func (c *treeConverter) end() {
	c.once.Lock()
	defer c.once.Unlock()
	if c.done {
		return
	}
	c.done = true
	if c.tree == nil {
		return
	}
	c.converters.mu.Lock()
	t := c.trees[c.key]
	t.users--
	last := t.users == 0
	if last {
		delete(c.trees, c.key)
	}
	c.converters.mu.Unlock()
	if !last {
		return
	}
	if err := t.Close(); err != nil {
		c.log.Printf("conversions of tree %s: %v", c.id, err)
	}
}
