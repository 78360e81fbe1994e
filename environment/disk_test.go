package environment

import "testing"

func TestParseLimit(t *testing.T) {
	for text, want := range map[string]int64{"0": 0, "unlimited": 0, "7": 7, "2k": 2 << 10, "3M": 3 << 20, "4g": 4 << 30, "1t": 1 << 40,
		"-1": -1, "k": -1, "1x": -1, "": -1, "none": -1, "5000000t": -1} {
		n, err := parseLimit(text)
		if err != nil {
			n = -1
		}
		if n != want {
			t.Errorf("%q is %d, %v", text, n, err)
		}
	}
}

func TestHumanSize(t *testing.T) {
	for n, want := range map[int64]string{0: "0 bytes", 1023: "1023 bytes", 1024: "1.00 KiB", 1536 << 10: "1.50 MiB", 3 << 40: "3.00 TiB", 5 << 50: "5120.00 TiB"} {
		if got := HumanSize(n); got != want {
			t.Errorf("%d is %s", n, got)
		}
	}
}
