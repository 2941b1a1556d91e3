package main

import (
	"encoding/xml"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Every drawing is XML, and has a figure of the table that it is drawn from.
func TestDraw(t *testing.T) {
	dir := t.TempDir()
	for _, page := range []string{"gpu.md", "host.md"} {
		text, err := os.ReadFile(filepath.Join("..", "..", "docs", "benchmarks", page))
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, page), text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := draw(dir); err != nil {
		t.Fatal(err)
	}
	for name, figure := range map[string]string{
		"peers.svg": ">24.4<", "tokens.svg": "<title>128: 18.3 us</title>", "all-reduce.svg": "<title>1 MiB: 258 us</title>",
	} {
		text, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(string(text), figure) {
			t.Errorf("%s has no %s", name, figure)
		}
		for d := xml.NewDecoder(strings.NewReader(string(text))); ; {
			if _, err := d.Token(); err == io.EOF {
				break
			} else if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
		}
	}
}

func TestTableIsMissed(t *testing.T) {
	page := filepath.Join(t.TempDir(), "page.md")
	if err := os.WriteFile(page, []byte("# Page\n\n## One\n\n| a | b |\n|---|---|\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, heading := range []string{"## One", "## Two"} {
		if _, err := table(page, heading); err == nil {
			t.Errorf("%s: a table was found", heading)
		}
	}
}
