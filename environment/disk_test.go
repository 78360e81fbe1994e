package environment

import "testing"

func TestHumanSize(t *testing.T) {
	for n, want := range map[int64]string{0: "0 bytes", 1023: "1023 bytes", 1024: "1.00 KiB", 1536 << 10: "1.50 MiB", 3 << 40: "3.00 TiB", 5 << 50: "5120.00 TiB"} {
		if got := HumanSize(n); got != want {
			t.Errorf("%d is %s", n, got)
		}
	}
}
