package environment

import (
	"context"
	"crypto/sha256"
	"fmt"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/git-env/git-env/environment/api"
	"github.com/git-env/git-env/notes"
	"github.com/git-env/git-env/runtime"
)

const (
	// serviceWait is how long services have to become ready before an exec that
	// waits for them fails.
	serviceWait = 60 * time.Second
	// serviceGrace is how long a service has to end by itself.
	serviceGrace = 10 * time.Second
)

// services are those of one environment. They are looked after from the first
// exec until the environment is suspended.
type services struct {
	sync.Mutex
	byName map[string]*service // guarded by Mutex
	down   map[string]bool     // stopped by the user, to stay so; guarded by Mutex
	boxes  map[string]string   // containers of their own, by service; guarded by Mutex
}

// serviceNamed returns the service of a name or id that is looked after.
func (v *Env) serviceNamed(ref string) *service {
	v.svc.Lock()
	defer v.svc.Unlock()
	if s := v.svc.byName[ref]; s != nil {
		return s
	}
	for _, s := range v.svc.byName {
		if s.home.id() == ref {
			return s
		}
	}
	return nil
}

func (v *Env) servicesUp() []*service {
	v.svc.Lock()
	defer v.svc.Unlock()
	var up []*service
	for _, s := range v.svc.byName {
		up = append(up, s)
	}
	return up
}

// keepDown says whether a service is to stay as it is when execs come.
func (v *Env) keepDown(name string, down bool) {
	v.svc.Lock()
	defer v.svc.Unlock()
	if v.svc.down == nil {
		v.svc.down = map[string]bool{}
	}
	v.svc.down[name] = down
}

func (v *Env) isDown(name string) bool {
	v.svc.Lock()
	defer v.svc.Unlock()
	return v.svc.down[name]
}

// startServices brings up the services that are not, and returns when all are
// ready. v.mu is held and the container runs.
func (v *Env) startServices(ctx context.Context, rep Reporter) error {
	if slices.ContainsFunc(v.configured, func(set Service) bool { return !v.isDown(set.Name) && v.serviceNamed(set.Name) == nil }) {
		if err := v.renewServices(ctx); err != nil {
			return err
		}
	}
	var waiting []*service
	for _, set := range v.configured {
		if v.isDown(set.Name) {
			continue
		}
		s, err := v.startService(ctx, set, rep)
		if err != nil {
			return err
		}
		waiting = append(waiting, s)
	}
	return v.awaitServices(ctx, waiting, rep)
}

// renewServices has what is started now follow the settings as they are now. A
// service that is new has to wait until the container is started anew, which then
// knows its name. v.mu is held.
func (v *Env) renewServices(ctx context.Context) error {
	set, err := v.settings(ctx)
	if err != nil {
		return err
	}
	v.configured = slices.DeleteFunc(set.Services, func(now Service) bool {
		return !slices.ContainsFunc(v.configured, func(old Service) bool { return old.Name == now.Name })
	})
	return nil
}

func (v *Env) awaitServices(ctx context.Context, waiting []*service, rep Reporter) error {
	ctx, cancel := context.WithTimeoutCause(ctx, serviceWait, errNotReady)
	defer cancel()
	for _, s := range waiting {
		if err := s.awaitReady(ctx, rep); err != nil {
			return err
		}
	}
	return nil
}

// startService returns a service that is looked after in the present container.
func (v *Env) startService(ctx context.Context, set Service, rep Reporter) (*service, error) {
	old := v.serviceNamed(set.Name)
	if old != nil && !old.over() && old.ctr.Running(ctx) {
		return old, nil
	}
	if old != nil {
		old.end(0)
		<-old.ended
	}
	ctr, command, err := v.serviceContainer(ctx, set, rep)
	if err != nil {
		return nil, inService(set.Name, err)
	}
	if err := v.forgetService(set.Name); err != nil {
		return nil, err
	}
	s := newSupervised(v, set, ctr)
	s.imageCommand, s.secrets, s.mask = command, v.secrets.vars(set.Name), v.secrets.finds()
	if err := s.giveVolumes(ctx); err != nil {
		return nil, inService(set.Name, err)
	}
	if err := s.open(ctx); err != nil {
		return nil, err
	}
	v.svc.Lock()
	if v.svc.byName == nil {
		v.svc.byName = map[string]*service{}
	}
	v.svc.byName[set.Name] = s
	v.svc.Unlock()
	go s.supervise()
	return s, nil
}

// inService says in which service something is wrong.
func inService(name string, err error) error {
	return (&Error{Code: ExitCode(err), Err: err, Msg: fmt.Sprintf("service '%s': %v", name, err), Hint: Hint(err)})
}

// forgetService removes what is left of an earlier run of a service.
func (v *Env) forgetService(name string) error {
	procs, err := v.e.store.Processes(v.name)
	if err != nil {
		return err
	}
	for _, p := range procs {
		if p.Kind == KindService && p.Name == name && !p.Running() {
			if err := os.RemoveAll(v.e.store.procDir(v.name, p.ID)); err != nil {
				return err
			}
		}
	}
	return nil
}

// dropService takes a service that has ended out of those that are looked after.
func (v *Env) dropService(s *service) {
	v.svc.Lock()
	defer v.svc.Unlock()
	if v.svc.byName[s.set.Name] == s {
		delete(v.svc.byName, s.set.Name)
	}
}

// stopServices ends all services.
func (v *Env) stopServices() {
	up := v.servicesUp()
	for _, s := range up {
		go s.end(serviceGrace)
	}
	for _, s := range up {
		<-s.ended
	}
}

// suspendServices ends all services and forgets which were to stay down.
func (v *Env) suspendServices(ctx context.Context) error {
	v.stopServices()
	v.svc.Lock()
	v.svc.down = nil
	v.svc.Unlock()
	return v.removeBoxes(ctx)
}

// hosts are the names of the services, and the addresses that they stand for.
func (v *Env) hosts(set []Service) []runtime.Host {
	var hosts []runtime.Host
	for _, s := range set {
		hosts = append(hosts, runtime.Host{Name: s.Name, Addr: serviceAddress(v.st.ID, s.Name)})
	}
	return hosts
}

// serviceAddress is the loopback address of a service, the same as long as the
// environment lives: services of one environment, and of several that share a
// network, can then have the same port.
func serviceAddress(env, service string) string {
	sum := sha256.Sum256([]byte(env + "\x00" + service))
	return fmt.Sprintf("127.%d.%d.%d", 128+sum[0]%127, sum[1], 1+sum[2]%254)
}

// Restart ends services, if they run, and starts them anew; it returns when they
// are ready.
func (e *Engine) Restart(ctx context.Context, p api.Restart, rep Reporter) (*api.Restarted, error) {
	v, err := e.env(p.Env)
	if err != nil {
		return nil, err
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	defer v.touch()
	if err := v.mount(ctx); err != nil {
		return nil, err
	}
	if err := v.start(ctx, rep); err != nil {
		return nil, err
	}
	if err := v.renewServices(ctx); err != nil {
		return nil, err
	}
	names := p.Services
	if len(names) == 0 {
		for _, set := range v.configured {
			names = append(names, set.Name)
		}
	}
	var again []Service
	for _, name := range names {
		i := slices.IndexFunc(v.configured, func(s Service) bool { return s.Name == name })
		if i < 0 {
			return nil, Errorf(ExitFailed, "environment '%s' has no service '%s'", v.name, name).
				WithHint("services come from [service \"<name>\"] of .gitenv or git config; a background process is started with 'git env run -d'")
		}
		again = append(again, v.configured[i])
	}
	out := &api.Restarted{Services: []string{}}
	var started []*service
	for _, set := range again {
		if s := v.serviceNamed(set.Name); s != nil {
			s.end(p.Grace)
			<-s.ended
		}
		v.keepDown(set.Name, false)
		s, err := v.startService(ctx, set, rep)
		if err != nil {
			return nil, err
		}
		started = append(started, s)
		out.Services = append(out.Services, set.Name)
	}
	return out, v.awaitServices(ctx, started, rep)
}

// ports are the numbers of a service's ports inside.
func (s *Service) ports() []uint16 {
	var ports []uint16
	for _, p := range s.Ports {
		ports = append(ports, p.Inside)
	}
	return ports
}

// text is how a service's command is shown.
func (s *Service) text() string {
	if s.Command != "" {
		return s.Command
	}
	return s.Image
}

// newExecID is the id of a process of a service.
func newExecID() string { return notes.NewID(now()) }
