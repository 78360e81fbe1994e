package environment

import (
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/git-env/git-env/internal/durable"
)

// standing is indexes.json: which commits the host's index and git inside stand
// for. They follow the branch a moment later; should the daemon die before they
// have, the difference is found from here. It is written after what it tells of,
// which may therefore be ahead of it but never behind.
type standing struct {
	// Boot is the boot of the machine it was written in. Neither it nor an index
	// is flushed to the disk, so after another one nothing is known.
	Boot string `json:"boot"`
	// Host is "" when the host's index is not there or not known.
	Host string `json:"host,omitempty"`
	// Inside is what the branch inside was brought to, or taken over at.
	Inside string `json:"inside,omitempty"`
}

func (v *Env) standingPath() string { return filepath.Join(v.dir(), "indexes.json") }

// loadStanding reads what is known; noted is false when that is not written yet.
// Where an earlier version left nothing, both stand for the tip, as they did when
// it had committed.
func (v *Env) loadStanding(tip string) (s standing, noted bool) {
	boot := bootID()
	data, err := os.ReadFile(v.standingPath())
	if errors.Is(err, fs.ErrNotExist) {
		return standing{Boot: boot, Host: tip, Inside: tip}, false
	}
	if err != nil || json.Unmarshal(data, &s) != nil || s.Boot != boot {
		return standing{Boot: boot}, false
	}
	return s, true
}

func (v *Env) saveStanding(s standing) error {
	data, err := json.Marshal(s)
	if err != nil {
		return err
	}
	tmp := v.standingPath() + durable.TempPrefix
	if err := os.WriteFile(tmp, data, 0o600); err != nil {
		discard(tmp)
		return err
	}
	return os.Rename(tmp, v.standingPath())
}

// bootID names the present boot of the machine; "" where the kernel does not say.
func bootID() string {
	id, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(id))
}
