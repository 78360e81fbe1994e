package ocitest

import (
	"net/http"
	"testing"
)

func TestServesWhatWasPushed(t *testing.T) {
	img, err := Image(Config{Bare: true, Layers: [][]File{{{Name: "a", Data: []byte("x")}}}})
	if err != nil {
		t.Fatal(err)
	}
	r := NewRegistry()
	defer r.Close()
	r.Refuse(http.StatusForbidden)
	digest, err := r.Push("box:1", img)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []int{http.StatusForbidden, http.StatusOK} {
		resp, err := http.Get("http://" + r.Host() + "/v2/box/manifests/1")
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != want {
			t.Errorf("status %d, want %d", resp.StatusCode, want)
		}
		if want == http.StatusOK && resp.Header.Get("Docker-Content-Digest") != digest {
			t.Errorf("digest %q, want %q", resp.Header.Get("Docker-Content-Digest"), digest)
		}
		r.Refuse(0)
	}
}
