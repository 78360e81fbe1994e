package main

import (
	"context"
	"fmt"
	"strings"

	"github.com/git-env/git-env/environment"
	"github.com/git-env/git-env/environment/api"
	"github.com/git-env/git-env/internal/settings"
)

// portJSON is a port of an environment and where it is on this machine.
type portJSON struct {
	Inside int `json:"inside"`
	Host   int `json:"host"`
}

func portsOf(ports []environment.PublishedPort) []portJSON {
	var out []portJSON
	for _, p := range ports {
		out = append(out, portJSON{p.Inside, p.Host})
	}
	return out
}

// portsText says where ports are.
func portsText(ports []portJSON) string {
	var words []string
	for _, p := range ports {
		words = append(words, fmt.Sprintf("%d at 127.0.0.1:%d", p.Inside, p.Host))
	}
	return strings.Join(words, ", ")
}

// publish has ports published and says where they are.
func (a *app) publish(ctx context.Context, env string, ports []string) error {
	if len(ports) == 0 {
		return nil
	}
	p := api.Publish{Env: env, Caller: a.caller()}
	for _, text := range ports {
		port, err := settings.ParsePort(text)
		if err != nil {
			return usagef("-p %s: %v", text, err)
		}
		p.Ports = append(p.Ports, api.Port(port))
	}
	var at api.Ports
	if err := a.call(ctx, api.MethodPublish, p, &at); err != nil {
		return ours(err)
	}
	for _, port := range at.Ports {
		a.say("", fmt.Sprintf("port %d is published at 127.0.0.1:%d", port.Inside, port.Host))
	}
	return nil
}
