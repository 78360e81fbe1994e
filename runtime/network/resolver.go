package network

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"net/netip"
	"time"

	"golang.org/x/net/dns/dnsmessage"
)

// resolver answers the container's questions: from the host's hosts file, and
// with what the host's resolvers answer.
type resolver struct {
	net   *Network
	files *hostFiles
	busy  chan struct{} // as many as there may be questions
}

func newResolver(n *Network) *resolver {
	return &resolver{net: n, files: newHostFiles(n.opts), busy: make(chan struct{}, n.opts.Limits.Queries)}
}

// Times of a question.
const (
	queryTime   = 10 * time.Second // altogether
	attemptTime = 2500 * time.Millisecond
	attempts    = 2
	ownTTL      = 5 // seconds, of answers from the hosts file
)

// plainSize is what an answer over UDP may have when the question names no size.
const plainSize = 512

// errorText is the number of the extended errors of RFC 8914 that we give.
const (
	optionExtendedError = 15
	errorProhibited     = 18
)

// question is one message from the container, taken apart.
type question struct {
	raw    []byte
	header dnsmessage.Header
	q      dnsmessage.Question
	name   string // canonical
	edns   bool
	size   int // of an answer over UDP
}

func parseQuestion(raw []byte) (*question, error) {
	var p dnsmessage.Parser
	h, err := p.Start(raw)
	if err != nil {
		return nil, err
	}
	if h.Response {
		return nil, errors.New("not a question")
	}
	qs, err := p.AllQuestions()
	if err != nil {
		return nil, err
	}
	if len(qs) != 1 || h.OpCode != 0 {
		return nil, errors.New("not one plain question")
	}
	q := &question{raw: raw, header: h, q: qs[0], name: canonicalName(qs[0].Name.String()), size: plainSize}
	if p.SkipAllAnswers() == nil && p.SkipAllAuthorities() == nil {
		for {
			rh, err := p.AdditionalHeader()
			if err != nil {
				break
			}
			if rh.Type == dnsmessage.TypeOPT {
				q.edns, q.size = true, max(plainSize, int(rh.Class))
			}
			if p.SkipAdditional() != nil {
				break
			}
		}
	}
	return q, nil
}

// answer makes the answer to a message; nil for what deserves none.
func (r *resolver) answer(ctx context.Context, raw []byte) []byte {
	q, err := parseQuestion(raw)
	if err != nil {
		if len(raw) < 12 || raw[2]&0x80 != 0 {
			return nil
		}
		// Too broken to repeat the question.
		reply := make([]byte, 12)
		copy(reply, raw[:2])
		reply[2], reply[3] = 0x80|raw[2]&0x79, byte(dnsmessage.RCodeFormatError)
		return reply
	}
	rules := r.net.rules.Load()
	if q.name == HostName {
		return q.reply(dnsmessage.RCodeSuccess, r.hostAddresses(rules), "")
	}
	if !rules.allowsName(q.name) {
		r.net.contacts.note(Contact{Target: q.shown(), Refused: "not in env.allow"})
		return q.reply(dnsmessage.RCodeRefused, nil, "not in env.allow")
	}
	if q.isAddress() {
		if addrs := r.files.lookup(q.name); len(addrs) > 0 {
			r.remember(q.name, addrs)
			return q.reply(dnsmessage.RCodeSuccess, addrs, "")
		}
	}
	reply, err := r.forward(ctx, q)
	if err != nil {
		return q.reply(dnsmessage.RCodeServerFailure, nil, "the host's resolvers do not answer")
	}
	r.remember(q.name, answered(reply, q))
	return reply
}

// shown is the name as a person reads it.
func (q *question) shown() string {
	if q.name == "" {
		return "the root of the name system"
	}
	return q.name
}

func (q *question) isAddress() bool {
	return q.q.Class == dnsmessage.ClassINET && (q.q.Type == dnsmessage.TypeA || q.q.Type == dnsmessage.TypeAAAA)
}

// hostAddresses are those of the host's loopback, if any of it can be reached.
func (r *resolver) hostAddresses(rules *parsed) []netip.Addr {
	if len(rules.ports) == 0 {
		return nil
	}
	return []netip.Addr{r.net.plan.host4, r.net.plan.host6}
}

// remember notes which addresses a name has, but those that nobody reaches.
func (r *resolver) remember(name string, addrs []netip.Addr) {
	for _, a := range addrs {
		if r.net.barrier.stops(a) == "" {
			r.net.names.remember(name, a)
		}
	}
}

// reply makes an answer of our own.
func (q *question) reply(code dnsmessage.RCode, addrs []netip.Addr, why string) []byte {
	b := dnsmessage.NewBuilder(nil, dnsmessage.Header{ID: q.header.ID, Response: true, RecursionDesired: q.header.RecursionDesired,
		RecursionAvailable: true, RCode: code})
	b.EnableCompression()
	err := errors.Join(b.StartQuestions(), b.Question(q.q), b.StartAnswers())
	head := dnsmessage.ResourceHeader{Name: q.q.Name, Class: dnsmessage.ClassINET, TTL: ownTTL}
	for _, a := range addrs {
		switch {
		case a.Is4() && q.q.Type == dnsmessage.TypeA:
			err = errors.Join(err, b.AResource(head, dnsmessage.AResource{A: a.As4()}))
		case a.Is6() && q.q.Type == dnsmessage.TypeAAAA:
			err = errors.Join(err, b.AAAAResource(head, dnsmessage.AAAAResource{AAAA: a.As16()}))
		}
	}
	if q.edns {
		var opt dnsmessage.ResourceHeader
		err = errors.Join(err, b.StartAdditionals(), opt.SetEDNS0(4096, code, false))
		var body dnsmessage.OPTResource
		if why != "" {
			data := binary.BigEndian.AppendUint16(nil, errorProhibited)
			body.Options = []dnsmessage.Option{{Code: optionExtendedError, Data: append(data, why...)}}
		}
		err = errors.Join(err, b.OPTResource(opt, body))
	}
	reply, ferr := b.Finish()
	if errors.Join(err, ferr) != nil {
		return nil
	}
	return reply
}

// answered returns the addresses that an answer gives for the name asked for,
// which may be called otherwise on the way.
func answered(reply []byte, q *question) []netip.Addr {
	var p dnsmessage.Parser
	if _, err := p.Start(reply); err != nil || p.SkipAllQuestions() != nil {
		return nil
	}
	as, err := p.AllAnswers()
	if err != nil {
		return nil
	}
	names := map[string]bool{q.name: true}
	var addrs []netip.Addr
	for _, a := range as {
		if !names[canonicalName(a.Header.Name.String())] {
			continue
		}
		switch body := a.Body.(type) {
		case *dnsmessage.CNAMEResource:
			names[canonicalName(body.CNAME.String())] = true
		case *dnsmessage.AResource:
			addrs = append(addrs, netip.AddrFrom4(body.A))
		case *dnsmessage.AAAAResource:
			addrs = append(addrs, netip.AddrFrom16(body.AAAA))
		}
	}
	return addrs
}

// truncated is an answer that says that it did not fit.
func (q *question) truncated() []byte {
	b := dnsmessage.NewBuilder(nil, dnsmessage.Header{ID: q.header.ID, Response: true, Truncated: true,
		RecursionDesired: q.header.RecursionDesired, RecursionAvailable: true})
	if errors.Join(b.StartQuestions(), b.Question(q.q)) != nil {
		return nil
	}
	reply, err := b.Finish()
	if err != nil {
		return nil
	}
	return reply
}

// forward asks the host's resolvers in turn.
func (r *resolver) forward(ctx context.Context, q *question) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, queryTime)
	defer cancel()
	servers := r.net.opts.Resolvers
	if len(servers) == 0 {
		servers = r.files.servers()
	}
	err := errors.New("no resolver")
	for range attempts {
		for _, s := range servers {
			var reply []byte
			if reply, err = askServer(ctx, s, q); err == nil {
				return reply, nil
			}
			if ctx.Err() != nil {
				return nil, ctx.Err()
			}
		}
	}
	return nil, err
}

// askServer asks one resolver, over TCP when the answer is too long for UDP. The
// question gets a number and a port of its own, that nobody can guess.
func askServer(ctx context.Context, server netip.AddrPort, q *question) ([]byte, error) {
	out := append([]byte(nil), q.raw...)
	if _, err := rand.Read(out[:2]); err != nil {
		return nil, err
	}
	reply, err := exchangeUDP(ctx, server, out)
	if err == nil && reply[2]&2 != 0 { // truncated
		reply, err = exchangeTCP(ctx, server, out)
	}
	if err != nil {
		return nil, err
	}
	if code := dnsmessage.RCode(reply[3] & 15); code == dnsmessage.RCodeServerFailure || code == dnsmessage.RCodeRefused {
		return nil, errors.New(code.String()) // another one may know better
	}
	binary.BigEndian.PutUint16(reply, q.header.ID)
	return reply, nil
}

// matches says whether a message answers a question.
func matches(reply, asked []byte) bool {
	var a, b dnsmessage.Parser
	ha, err := a.Start(reply)
	if err != nil || !ha.Response || ha.ID != binary.BigEndian.Uint16(asked) {
		return false
	}
	if _, err := b.Start(asked); err != nil {
		return false
	}
	qa, err1 := a.Question()
	qb, err2 := b.Question()
	return err1 == nil && err2 == nil && qa.Type == qb.Type && qa.Class == qb.Class &&
		canonicalName(qa.Name.String()) == canonicalName(qb.Name.String())
}

func dialServer(ctx context.Context, network string, server netip.AddrPort) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, attemptTime)
	defer cancel()
	var d net.Dialer
	c, err := d.DialContext(ctx, network, server.String())
	if err == nil {
		deadline, _ := ctx.Deadline()
		_ = c.SetDeadline(deadline)
	}
	return c, err
}

func exchangeUDP(ctx context.Context, server netip.AddrPort, asked []byte) ([]byte, error) {
	c, err := dialServer(ctx, "udp", server)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	defer context.AfterFunc(ctx, func() { _ = c.Close() })()
	if _, err := c.Write(asked); err != nil {
		return nil, err
	}
	buf := make([]byte, 1<<16)
	for {
		n, err := c.Read(buf)
		if err != nil {
			return nil, err
		}
		if matches(buf[:n], asked) {
			return buf[:n], nil
		}
	}
}

func exchangeTCP(ctx context.Context, server netip.AddrPort, asked []byte) ([]byte, error) {
	c, err := dialServer(ctx, "tcp", server)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	defer context.AfterFunc(ctx, func() { _ = c.Close() })()
	if err := writeFramed(c, asked); err != nil {
		return nil, err
	}
	reply, err := readFramed(c)
	if err != nil {
		return nil, err
	}
	if !matches(reply, asked) {
		return nil, errors.New("an answer to something else")
	}
	return reply, nil
}

// writeFramed and readFramed are for messages over TCP: two bytes of length in
// front of each.
func writeFramed(w io.Writer, msg []byte) error {
	_, err := w.Write(append(binary.BigEndian.AppendUint16(nil, uint16(len(msg))), msg...))
	return err
}

func readFramed(r io.Reader) ([]byte, error) {
	var size [2]byte
	if _, err := io.ReadFull(r, size[:]); err != nil {
		return nil, err
	}
	msg := make([]byte, binary.BigEndian.Uint16(size[:]))
	_, err := io.ReadFull(r, msg)
	return msg, err
}
