package settings

import (
	"fmt"
	"strings"
)

// Reference writes the tables of the reference page: one row for each setting.
func Reference() map[string]string {
	return map[string]string{
		"environment": table(environmentKeys()),
		"machine":     table(machineKeys()),
		"service":     table(serviceKeys()),
	}
}

func table(keys []Key) string {
	var b strings.Builder
	b.WriteString("| setting | value | default | consent | meaning |\n|---|---|---|---|---|\n")
	for _, k := range keys {
		name := strings.ReplaceAll(k.Name, "service."+anyService+".", "")
		kind := k.Kind.Name
		if k.Multi {
			kind += "; may be given more than once"
		}
		def := ""
		if k.Default != "" {
			def = "`" + k.Default + "`"
		}
		about := k.About
		if k.Pending {
			about += ". *Checked, but not acted on yet*"
		}
		cells := []string{"`" + name + "`", kind, def, k.TrustFor, about}
		for i, c := range cells {
			cells[i] = strings.ReplaceAll(c, "|", `\|`)
		}
		fmt.Fprintf(&b, "| %s |\n", strings.Join(cells, " | "))
	}
	return b.String()
}
