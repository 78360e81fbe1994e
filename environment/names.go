package environment

import (
	"crypto/rand"
	"math/big"
	"strings"
)

// Words for names that are made up: short, pronounceable, friendly.
const (
	adjectives = "able amber apt bold brave brisk calm clear clever cool cosy crisp deft eager early fair fast fine firm fond free fresh gentle glad golden good grand green happy hardy humble jolly keen kind light lively loyal lucky merry mild neat nimble noble patient plain polite proud quick quiet rapid ready sharp silver smart snug solid spry steady still sunny sure swift tidy true vivid warm wise witty young zesty"
	animals    = "ant badger bat bear beaver bee bison boar camel cat crane crow deer dove duck eagle elk falcon finch fox frog gecko goat goose hare hawk hen heron horse ibex jay koala lark lemur lion llama lynx marten mole moose mouse newt orca otter owl panda pony puffin quail rabbit raven robin seal sheep shrew snail sparrow squid stork swan tapir tern tiger toad trout turtle viper vole weasel whale wolf wren yak zebra"
)

// inventName makes an adjective-animal name; after a few clashes, which try
// counts, it has a second adjective.
func inventName(try int) string {
	name := pick(adjectives) + "-" + pick(animals)
	if try > 8 {
		name = pick(adjectives) + "-" + name
	}
	return name
}

func pick(list string) string {
	words := strings.Fields(list)
	n, err := rand.Int(rand.Reader, big.NewInt(int64(len(words))))
	if err != nil { // the kernel's generator does not fail once it is seeded
		return words[0]
	}
	return words[n.Int64()]
}
