package fusefs

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
)

// pktFilter is a long-running filter as gitattributes(5) describes it: it
// smudges by writing every byte with its case swapped, below a first line with
// the path, and notes each start in the file log.
func pktFilter(log string) int {
	f, err := os.OpenFile(log, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return 1
	}
	fmt.Fprintln(f, "started")
	f.Close()
	in, out := bufio.NewReader(os.Stdin), bufio.NewWriter(os.Stdout)
	if _, err := readPkts(in); err != nil { // welcome and version
		return 1
	}
	writePkts(out, "git-filter-server\n", "version=2\n")
	if _, err := readPkts(in); err != nil {
		return 1
	}
	writePkts(out, "capability=clean\n", "capability=smudge\n")
	for {
		head, err := readPkts(in)
		if err != nil {
			return 0
		}
		body, err := readPkts(in)
		if err != nil {
			return 1
		}
		var path, command string
		for _, line := range head {
			line = strings.TrimSuffix(line, "\n")
			if v, ok := strings.CutPrefix(line, "pathname="); ok {
				path = v
			}
			if v, ok := strings.CutPrefix(line, "command="); ok {
				command = v
			}
		}
		data := swapCase([]byte(strings.Join(body, "")))
		if command == "smudge" {
			data = append([]byte("path "+strconv.Quote(path)+"\n"), data...)
		} else if line, rest, ok := bytes.Cut(data, []byte("\n")); ok && bytes.HasPrefix(bytes.ToLower(line), []byte("path ")) {
			data = rest
		}
		writePkts(out, "status=success\n")
		writePkts(out, chunks(data)...)
		writePkts(out)
	}
}

func swapCase(data []byte) []byte {
	return bytes.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z':
			return r - 'a' + 'A'
		case r >= 'A' && r <= 'Z':
			return r - 'A' + 'a'
		}
		return r
	}, data)
}

func chunks(data []byte) []string {
	var all []string
	for len(data) > 0 {
		n := min(len(data), 65000)
		all = append(all, string(data[:n]))
		data = data[n:]
	}
	return all
}

// readPkts reads packets up to a flush.
func readPkts(in *bufio.Reader) ([]string, error) {
	var all []string
	for {
		var head [4]byte
		if _, err := io.ReadFull(in, head[:]); err != nil {
			return nil, err
		}
		n, err := strconv.ParseUint(string(head[:]), 16, 16)
		if err != nil {
			return nil, err
		}
		if n == 0 {
			return all, nil
		}
		data := make([]byte, n-4)
		if _, err := io.ReadFull(in, data); err != nil {
			return nil, err
		}
		all = append(all, string(data))
	}
}

// writePkts writes packets and a flush.
func writePkts(out *bufio.Writer, pkts ...string) {
	for _, p := range pkts {
		fmt.Fprintf(out, "%04x%s", len(p)+4, p)
	}
	out.WriteString("0000")
	out.Flush()
}
