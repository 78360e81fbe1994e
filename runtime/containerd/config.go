package containerd

import (
	"fmt"
	"strconv"
	"strings"
)

// disabledPlugins are those we never use. Fewer plugins start faster, and some
// would create directories outside ours. Names of several versions are listed;
// unknown ones are ignored.
var disabledPlugins = [...]string{
	"io.containerd.grpc.v1.cri",
	"io.containerd.cri.v1.images",
	"io.containerd.cri.v1.runtime",
	"io.containerd.podsandbox.controller.v1.podsandbox",
	"io.containerd.internal.v1.opt",
	"io.containerd.internal.v1.restart",
	"io.containerd.internal.v1.tracing",
	"io.containerd.tracing.processor.v1.otlp",
	"io.containerd.nri.v1.nri",
	"io.containerd.monitor.v1.cgroups",
	"io.containerd.monitor.task.v1.cgroups",
	"io.containerd.image-verifier.v1.bindir",
	"io.containerd.transfer.v1.local",
	"io.containerd.snapshotter.v1.aufs",
	"io.containerd.snapshotter.v1.blockfile",
	"io.containerd.snapshotter.v1.btrfs",
	"io.containerd.snapshotter.v1.devmapper",
	"io.containerd.snapshotter.v1.erofs",
	"io.containerd.snapshotter.v1.native",
	"io.containerd.snapshotter.v1.zfs",
}

// config is the configuration of the private containerd. Version 2 is read by
// every containerd from 1.3 to 2.x.
func (d *daemon) config() string {
	quoted := make([]string, len(disabledPlugins))
	for i, name := range disabledPlugins {
		quoted[i] = strconv.Quote(name)
	}
	return fmt.Sprintf(`version = 2
root = %s
state = %s
disabled_plugins = [%s]

[grpc]
  address = %s

[debug]
  level = "warn"
`,
		strconv.Quote(d.dataDir), strconv.Quote(d.runDir+"/state"),
		strings.Join(quoted, ", "), strconv.Quote(d.socket()))
}
