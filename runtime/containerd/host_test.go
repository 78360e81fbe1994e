package containerd

import (
	"testing"
	"time"

	"github.com/git-env/git-env/runtime"
)

func TestHostSmoke(t *testing.T) {
	p := newPlace(t)
	begin := time.Now()
	b := p.open(t)
	t.Logf("open: %v", time.Since(begin))
	begin = time.Now()
	info, err := b.Info(testContext(t))
	t.Logf("info: %v %+v %v", time.Since(begin), info, err)
	begin = time.Now()
	c := hostContainer(t, b, "one")
	t.Logf("create+start: %v", time.Since(begin))
	for range 5 {
		begin = time.Now()
		r := try(t, c, runtime.ExecSpec{Args: []string{"true"}})
		t.Logf("exec: %v %+v", time.Since(begin), r)
	}
	t.Log(sh(t, c, "id; ls -la / /etc | head -80; ps aux; env; cat /proc/self/mountinfo; go version"))
	begin = time.Now()
	if err := b.Remove(testContext(t), "one"); err != nil {
		t.Fatal(err)
	}
	t.Logf("remove: %v", time.Since(begin))
	begin = time.Now()
	startOn(t, b, "one", "root-one", runtime.Image{Host: true, Ref: "host"})
	t.Logf("restart: %v", time.Since(begin))
}
