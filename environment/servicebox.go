package environment

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/git-env/git-env/internal/durable"
	"github.com/git-env/git-env/internal/settings"
	"github.com/git-env/git-env/notes"
	"github.com/git-env/git-env/runtime"
)

// boxesFile is services.json: the root filesystems of the services that have an
// image of their own, by service.
const boxesFile = "services.json"

// box is what a service with an image of its own keeps.
type box struct {
	Image ImageRef `json:"image"`
	// RootFS is the id of its root filesystem in the runtime.
	RootFS string `json:"rootfs"`
}

func (s *Store) readBoxes(env string) (map[string]box, error) {
	boxes := map[string]box{}
	err := durable.ReadJSON(filepath.Join(s.EnvDir(env), boxesFile), &boxes)
	if errors.Is(err, fs.ErrNotExist) {
		return boxes, nil
	}
	return boxes, err
}

func (s *Store) saveBoxes(env string, boxes map[string]box) error {
	return durable.WriteJSON(filepath.Join(s.EnvDir(env), boxesFile), boxes, 0o600)
}

// serviceContainer returns the container that a service runs in, and the image's
// own command: the environment's container, or one of its own when it has an
// image. v.mu is held.
func (v *Env) serviceContainer(ctx context.Context, set Service, rep Reporter) (runtime.Container, []string, error) {
	if set.Image == "" {
		return v.ctr, nil, nil
	}
	b, err := v.e.runtimeBackend(ctx)
	if err != nil {
		return nil, nil, err
	}
	own, img, err := v.serviceBox(ctx, b, set, rep)
	if err != nil {
		return nil, nil, err
	}
	if set.Command == "" && len(img.Command) == 0 {
		return nil, nil, Errorf(ExitFailed, "its image %s says no command to run", set.Image).
			WithHint("give it one: git config service.%s.command '…'", set.Name)
	}
	spec, err := v.serviceSpec(set, own, img)
	if err != nil {
		return nil, nil, err
	}
	files := v.secrets.files(set.Name)
	spec.Secrets = len(files) > 0
	v.svc.Lock()
	if v.svc.boxes == nil {
		v.svc.boxes = map[string]string{}
	}
	v.svc.boxes[set.Name] = spec.ID
	v.svc.Unlock()
	ctr, err := b.Start(ctx, spec)
	if err != nil {
		return nil, nil, capability(fmt.Errorf("cannot start its container: %w", err))
	}
	if len(files) > 0 {
		if err := ctr.PutSecrets(ctx, files); err != nil {
			return nil, nil, fmt.Errorf("cannot put the secrets into its container: %w", err)
		}
	}
	return ctr, img.Command, nil
}

// secretFiles are those of the environment's own container: of execs, and of the
// services that run there. v.mu is held.
func (v *Env) secretFiles() []runtime.SecretFile {
	files := v.secrets.files("")
	for _, set := range v.configured {
		if set.Image == "" {
			files = append(files, v.secrets.files(set.Name)...)
		}
	}
	return files
}

// serviceBox makes the root filesystem of a service, anew when its image is
// another than before.
func (v *Env) serviceBox(ctx context.Context, b runtime.Backend, set Service, rep Reporter) (box, runtime.Image, error) {
	boxes, err := v.e.store.readBoxes(v.name)
	if err != nil {
		return box{}, runtime.Image{}, err
	}
	own, known := boxes[set.Name]
	if known && own.Image.Ref != set.Image {
		if err := b.RemoveRootFS(ctx, own.RootFS); err != nil {
			return own, runtime.Image{}, err
		}
		known = false
	}
	if !known {
		own = box{Image: ImageRef{Ref: set.Image}, RootFS: notes.NewID(now())}
	}
	img, err := b.Resolve(ctx, own.Image.pinned(), func(p runtime.Progress) { rep.Progress(p.Phase, p.Done, p.Total) })
	if err != nil {
		return own, img, imageError(set.Image, err)
	}
	if !known {
		own.Image.Digest = img.Digest
		boxes[set.Name] = own
		// Before it is made, so that a delete knows of it; "started" says that
		// there is something to remove.
		if err := errors.Join(v.writeFile("started", nil), v.e.store.saveBoxes(v.name, boxes)); err != nil {
			return own, img, err
		}
	}
	if err := b.CreateRootFS(ctx, own.RootFS, img); err != nil && !errors.Is(err, runtime.ErrExists) {
		return own, img, capability(fmt.Errorf("cannot make its root filesystem: %w", err))
	}
	return own, img, nil
}

func (v *Env) serviceSpec(set Service, own box, img runtime.Image) (runtime.Spec, error) {
	volumes, err := v.volumeMounts(set)
	img.User = cmp.Or(set.User, img.User)
	return runtime.Spec{
		ID: v.boxID(set.Name), RootFS: own.RootFS, Image: img, Mounts: volumes,
		Cwd: set.Workdir, Hostname: hostname(set.Name), Hosts: v.hosts(v.configured),
		Labels:  map[string]string{repoLabel: v.e.store.Key(), "io.git-env.environment": v.st.Name, "io.git-env.service": set.Name},
		Network: v.reach, NetworkOf: v.containerID(),
		MemoryBytes: set.Memory, CPUs: set.CPUs,
	}, err
}

// boxID is the id of a service's container; the service's name may be too long.
func (v *Env) boxID(service string) string { return v.containerID() + "-" + shortHash(service) }

func shortHash(s string) string {
	sum := sha256.Sum256([]byte(s))
	return hex.EncodeToString(sum[:6])
}

// removeBoxes removes the containers of services; their root filesystems stay.
func (v *Env) removeBoxes(ctx context.Context) error {
	v.svc.Lock()
	boxes := v.svc.boxes
	v.svc.boxes = nil
	v.svc.Unlock()
	if len(boxes) == 0 {
		return nil
	}
	b, err := v.e.runtimeBackend(ctx)
	if err != nil {
		return err
	}
	for _, id := range boxes {
		err = errors.Join(err, b.Remove(ctx, id))
	}
	return err
}

// dropBoxes removes the root filesystems of an environment's services.
func (e *Engine) dropBoxes(ctx context.Context, b runtime.Backend, env string) error {
	boxes, err := e.store.readBoxes(env)
	if err != nil {
		return err
	}
	for name, own := range boxes {
		if err := b.RemoveRootFS(ctx, own.RootFS); err != nil {
			return fmt.Errorf("cannot remove the root filesystem of service '%s': %w", name, err)
		}
	}
	return nil
}

// forkServices gives a new environment copies of what the source's services keep.
// Their containers stand still.
func (e *Engine) forkServices(ctx context.Context, b runtime.Backend, src *Env, st *State) error {
	boxes, err := e.store.readBoxes(src.name)
	if err != nil {
		return err
	}
	copies := map[string]box{}
	for name, own := range boxes {
		copies[name] = box{Image: own.Image, RootFS: notes.NewID(now())}
	}
	if len(copies) > 0 {
		if err := e.store.saveBoxes(st.Name, copies); err != nil {
			return err
		}
	}
	for name, own := range boxes {
		img, err := b.Resolve(ctx, own.Image.pinned(), nil)
		if err == nil {
			err = b.ForkRootFS(ctx, own.RootFS, copies[name].RootFS, img)
		}
		if err != nil && !errors.Is(err, runtime.ErrNotFound) {
			return fmt.Errorf("cannot fork the root filesystem of service '%s': %w", name, err)
		}
	}
	from := filepath.Join(src.dir(), "volumes")
	if _, err := os.Lstat(from); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err := b.CopyTree(ctx, from, filepath.Join(e.store.EnvDir(st.Name), "volumes")); err != nil {
		return fmt.Errorf("cannot fork the volumes: %w", err)
	}
	return nil
}

// standStill freezes the environment and its services, so that what all of them
// keep is of one moment; let go ends that. v.mu is held.
func (v *Env) standStill(ctx context.Context) (letGo func() error, err error) {
	frozen := map[string]runtime.Container{}
	if v.ctr != nil {
		frozen[v.ctr.ID()] = v.ctr
	}
	for _, s := range v.servicesUp() {
		frozen[s.ctr.ID()] = s.ctr
	}
	var done []runtime.Container
	letGo = func() (err error) {
		for _, c := range done {
			if c.Running(ctx) {
				err = errors.Join(err, c.Resume(context.WithoutCancel(ctx)))
			}
		}
		return err
	}
	for _, c := range frozen {
		if !c.Running(ctx) {
			continue
		}
		if err := c.Pause(ctx); err != nil {
			return nil, errors.Join(err, letGo())
		}
		done = append(done, c)
	}
	return letGo, nil
}

// volumeMounts makes the directories of a service's volumes, which are the
// environment's own, and says where they go.
func (v *Env) volumeMounts(set Service) ([]runtime.Mount, error) {
	var mounts []runtime.Mount
	for _, vol := range set.Volumes {
		dir := v.volumeDir(set.Name, vol)
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return nil, fmt.Errorf("cannot make a volume: %w", err)
		}
		mounts = append(mounts, runtime.Mount{Source: dir, Target: vol.Target})
	}
	return mounts, nil
}

// volumeDir is where a volume is kept: one with a name is shared by the services
// that name it.
func (v *Env) volumeDir(service string, vol settings.Volume) string {
	key := "named-" + vol.Name
	if vol.Name == "" {
		key = service + "-" + shortHash(vol.Target)
	}
	return filepath.Join(v.dir(), "volumes", key)
}

// insideVolumes are the volumes of the services that run in the environment's own
// container; two that name the same place share it.
func (v *Env) insideVolumes(services []Service) ([]runtime.Mount, error) {
	var all []runtime.Mount
	at := map[string]bool{}
	for _, set := range services {
		if set.Image != "" {
			continue
		}
		mounts, err := v.volumeMounts(set)
		if err != nil {
			return nil, err
		}
		for _, m := range mounts {
			if at[m.Target] {
				return nil, Errorf(ExitUsage, "two services of environment '%s' have a volume at %s", v.name, m.Target).
					WithHint("services without an image share the environment's container, and with it each other's volumes")
			}
			at[m.Target] = true
			all = append(all, m)
		}
	}
	return all, nil
}

// giveVolumes hands the volumes that are empty to the user who runs the service.
func (s *service) giveVolumes(ctx context.Context) error {
	if s.set.User == "" {
		return nil
	}
	for _, vol := range s.set.Volumes {
		entries, err := os.ReadDir(s.v.volumeDir(s.set.Name, vol))
		if err != nil || len(entries) > 0 {
			return err
		}
		spec := s.spec([]string{"chown", s.set.User, vol.Target})
		spec.User, spec.Cwd = "0:0", "/"
		said := &lastBytes{}
		proc, err := s.ctr.Exec(ctx, spec, runtime.IO{Stdout: said, Stderr: said})
		if err != nil {
			return err
		}
		exit, err := proc.Wait()
		if err = errors.Join(err, proc.Close()); err != nil {
			return err
		}
		if exit.Code != 0 {
			return fmt.Errorf("cannot give the volume %s to %s: %s", vol.Target, s.set.User, said)
		}
	}
	return nil
}

// pinned is what the image resolved to once, so that a tag that moved changes
// nothing.
func (im ImageRef) pinned() string {
	if im.Digest == "" || strings.Contains(im.Ref, "@") {
		return im.Ref
	}
	name := im.Ref
	if i := strings.LastIndexByte(name, ':'); i > strings.LastIndexByte(name, '/') {
		name = name[:i]
	}
	return name + "@" + im.Digest
}
