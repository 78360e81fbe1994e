package initproc

import (
	"reflect"
	"testing"
)

func TestRequest(t *testing.T) {
	want := Request{
		Args: []string{"a", "", "\xff\n\x01"}, Env: []string{"A=b", "C="}, Cwd: "/x",
		UID: 1, GID: 2, Groups: []uint32{3, 1 << 31}, Streams: StreamsAll,
	}
	data := want.Encode(nil)
	var got Request
	if err := got.Decode(data); err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%v: %+v", err, got)
	}
	for n := range data {
		if err := got.Decode(data[:n]); err == nil {
			t.Errorf("the first %d of %d bytes are taken for a request", n, len(data))
		}
	}
	// No number in it makes the reader take more than is there.
	for at := range data {
		bad := append([]byte(nil), data...)
		for i := at; i < min(at+4, len(bad)); i++ {
			bad[i] = 0xff
		}
		_ = got.Decode(bad)
	}
	if err := got.Decode(append(data, 0)); err == nil {
		t.Error("more than a request is taken for one")
	}
	if err := got.Decode(append([]byte{requestVersion + 1}, data[1:]...)); err == nil {
		t.Error("another version is taken for this one")
	}
}

func TestReply(t *testing.T) {
	want := Reply{Kind: ReplyFailed, Stage: StageExec, Value: 1<<32 - 2}
	if got, err := DecodeReply(want.Encode()); err != nil || got != want {
		t.Errorf("%+v, %v", got, err)
	}
	for _, bad := range [][]byte{nil, want.Encode()[1:], append(want.Encode(), 0), {'?', 0, 0, 0, 0, 0}} {
		if _, err := DecodeReply(bad); err == nil {
			t.Errorf("%q is taken for a reply", bad)
		}
	}
}
