package main

import (
	"bytes"
	"io"
	"os"
)

const (
	randomReads  = 100_000
	randomWrites = 20_000
)

func writeBig(p place) error {
	f, err := os.Create(bigFile)
	if err != nil {
		return err
	}
	defer f.Close()
	data := bytes.Repeat([]byte("0123456789abcdef"), 1<<16)
	for done := int64(0); done < p.size; done += int64(len(data)) {
		if _, err := f.Write(data); err != nil {
			return err
		}
	}
	return f.Close()
}

func readBig(place) error {
	f, err := os.Open(bigFile)
	if err != nil {
		return err
	}
	defer f.Close()
	buf := make([]byte, 1<<20)
	for {
		_, err := f.Read(buf)
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

func randomRead(p place) error {
	f, err := os.Open(bigFile)
	if err != nil {
		return err
	}
	defer f.Close()
	buf := make([]byte, block)
	r := source(9)
	for range randomReads {
		if _, err := f.ReadAt(buf, r.Int64N(p.size/block)*block); err != nil {
			return err
		}
	}
	return nil
}

func randomWrite(p place) error {
	f, err := os.OpenFile(bigFile, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	buf := make([]byte, block)
	r := source(10)
	for range randomWrites {
		if _, err := f.WriteAt(buf, r.Int64N(p.size/block)*block); err != nil {
			return err
		}
	}
	return f.Close()
}
