package fusefs

import (
	"encoding/json"
	"os"

	"golang.org/x/sys/unix"
)

// The watchdog's questions to the file server and the answers are JSON
// messages on a socket of their own.

const maxHealth = 64 << 10 // bytes of a message

type healthQuery struct {
	Pid    int    // who asks
	Number uint64 // of the question
	Mount  string
}

type healthAnswer struct {
	Pid    int
	Number uint64
	// Full lists the processors whose queue is full of requests that take
	// their time: others from there have to wait.
	Full []int
}

// answerHealth answers until nobody can ask any more. Not to answer is an
// answer too: it comes only when every thread that serves requests works, and
// nobody holds the mount's lock.
func (s *server) answerHealth(f *os.File) {
	defer f.Close()
	fd := int(f.Fd())
	buf := make([]byte, maxHealth)
	for {
		n, err := unix.Read(fd, buf)
		if err == unix.EINTR {
			continue
		}
		if err != nil || n == 0 {
			return
		}
		var q healthQuery
		if json.Unmarshal(buf[:n], &q) != nil {
			continue
		}
		data, err := json.Marshal(healthAnswer{Pid: q.Pid, Number: q.Number, Full: s.full(q.Mount)})
		if err == nil {
			_, err = unix.Write(fd, data)
		}
		if err != nil {
			s.shared.log.Printf("answer to the watchdog: %v", err)
		}
	}
}

// full waits until every thread has done something, and tells which queues of
// a mount are full.
func (s *server) full(id string) []int {
	s.ringsMu.Lock()
	rings := s.rings
	s.ringsMu.Unlock()
	if rings != nil {
		rings.flush()
	}
	m := s.get(id)
	if m == nil {
		return nil
	}
	m.w.mu.Lock()
	m.w.mu.Unlock() //nolint:staticcheck // that it could be taken is what counts
	if t, ok := m.carrier.(interface{ full() []int }); ok {
		return t.full()
	}
	return nil
}

// flush returns when each worker has done what it had to do.
func (p *uringPool) flush() {
	done := make(chan struct{}, len(p.workers))
	for _, w := range p.workers {
		w.post(func() { done <- struct{}{} })
	}
	for range p.workers {
		<-done
	}
}

// full lists the processors all of whose entries have slow requests.
func (t *uringTransport) full() []int {
	var all []int
	for cpu := range t.slow {
		if int(t.slow[cpu].Load()) >= uringDepth(len(t.slow)) {
			all = append(all, cpu)
		}
	}
	return all
}
