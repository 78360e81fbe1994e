package environment

import (
	"context"
	"maps"
	"slices"

	"github.com/git-env/git-env/internal/secret"
	"github.com/git-env/git-env/runtime"
)

// Values of secrets are fetched by the client, as the user who made the request,
// when a container is started, and are kept in this process's memory until the
// environment is suspended. Inside they go with each exec's request, and as files
// onto a tmpfs; nothing of ours writes them down. What comes out is masked where
// it enters, see recorder; what is to be committed is looked through, see commit.

// SecretSource fetches values on behalf of whoever made a request.
type SecretSource func(ctx context.Context, specs []secret.Spec) ([]secret.Value, error)

type secretSourceKey struct{}

// WithSecretSource returns a context of a request whose maker can be asked for
// secrets.
func WithSecretSource(ctx context.Context, src SecretSource) context.Context {
	return context.WithValue(ctx, secretSourceKey{}, src)
}

// envSecrets are the values that an environment has at present.
type envSecrets struct {
	// byOwner are the present values: of the services by name, and under "" those of
	// the environment itself.
	byOwner map[string][]secret.Value
	// seen are all values since the environment was brought up: what was written
	// meanwhile may have an older one in it.
	seen []secret.Value
	set  *secret.Set // of seen; nil when there is none
}

// vars are the variables of the processes of a service, or with "" of execs.
func (s *envSecrets) vars(owner string) []string {
	if s == nil {
		return nil
	}
	var out []string
	for _, v := range s.byOwner[owner] {
		if !v.File {
			out = append(out, v.Name+"="+string(v.Data))
		}
	}
	return out
}

// files are what belongs into secret.Dir of the container of an owner.
func (s *envSecrets) files(owner string) []runtime.SecretFile {
	if s == nil {
		return nil
	}
	var out []runtime.SecretFile
	for _, v := range s.byOwner[owner] {
		if v.File {
			out = append(out, runtime.SecretFile{Name: v.Name, Data: v.Data})
		}
	}
	return out
}

// finds is the Set that knows the values; nil when there are none.
func (s *envSecrets) finds() *secret.Set {
	if s == nil {
		return nil
	}
	return s.set
}

// secretsOf lists what settings ask for, by owner.
func (set *Settings) secretsOf() map[string][]secret.Spec {
	all := map[string][]secret.Spec{}
	if len(set.Secrets) > 0 {
		all[""] = set.Secrets
	}
	for _, s := range set.Services {
		if len(s.Secrets) > 0 {
			all[s.Name] = s.Secrets
		}
	}
	return all
}

// fetchSecrets asks the maker of the request for the values that settings ask for,
// if everything that they ask of this machine is trusted.
func (e *Engine) fetchSecrets(ctx context.Context, set *Settings) (map[string][]secret.Value, error) {
	if err := e.store.checkTrust(ctx, *set); err != nil {
		return nil, err
	}
	var specs []secret.Spec
	var owners []string
	wanted := set.secretsOf()
	for _, owner := range slices.Sorted(maps.Keys(wanted)) {
		for _, s := range wanted[owner] {
			specs, owners = append(specs, s), append(owners, owner)
		}
	}
	if len(specs) == 0 {
		return nil, nil
	}
	src, ok := ctx.Value(secretSourceKey{}).(SecretSource)
	if !ok {
		return nil, Errorf(ExitFailed, "secret '%s': there is nobody to ask for it", specs[0].Target())
	}
	values, err := src(ctx, specs)
	if err != nil {
		return nil, err
	}
	if len(values) != len(specs) {
		return nil, Errorf(ExitFailed, "asked for %d secrets and got %d", len(specs), len(values))
	}
	got := map[string][]secret.Value{}
	for i, owner := range owners {
		values[i].Spec = specs[i]
		got[owner] = append(got[owner], values[i])
	}
	return got, nil
}

// checkSecrets makes sure, when an environment is made, that its secrets can be
// had.
func (e *Engine) checkSecrets(ctx context.Context, set *Settings) error {
	_, err := e.fetchSecrets(ctx, set)
	return err
}

// bringSecrets fetches the values anew, for a container that is about to start.
// v.mu is held.
func (v *Env) bringSecrets(ctx context.Context, set *Settings) error {
	got, err := v.e.fetchSecrets(ctx, set)
	if err != nil {
		return err
	}
	next := &envSecrets{byOwner: got}
	if v.secrets != nil {
		next.seen = v.secrets.seen
	}
	for _, list := range got {
		next.seen = append(next.seen, list...)
	}
	next.set = secret.NewSet(next.seen)
	v.secrets = next
	return nil
}

// knownSecrets is the Set by which to look through what is to be committed. The
// values are fetched when no container has been started since the environment was
// brought up: an earlier one may have written them. v.mu is held.
func (v *Env) knownSecrets(ctx context.Context) (*secret.Set, error) {
	if v.secrets != nil {
		return v.secrets.set, nil
	}
	if !v.hadContainer() {
		return nil, nil // nobody could have written any
	}
	set, err := v.settings(ctx)
	if err != nil {
		return nil, err
	}
	if err := v.bringSecrets(ctx, &set); err != nil {
		e := *asError(err)
		e.Msg = "what is in the workspace cannot be looked through for secrets, and is not committed: " + e.Msg
		return nil, &e
	}
	return v.secrets.set, nil
}

// asError makes an *Error of any, with the same text, code and hint.
func asError(err error) *Error {
	return &Error{Code: ExitCode(err), Msg: err.Error(), Hint: Hint(err), Err: err}
}
