package main

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/cuda"
	"github.com/weftgo/weft/internal/ranktest"
)

// refuses fails the test unless err is one sentence that says that.
func refuses(t *testing.T, err error, want string) {
	t.Helper()
	if err == nil || !strings.Contains(err.Error(), want) || strings.ContainsAny(err.Error(), "\n") ||
		strings.Contains(err.Error(), "nil") {
		t.Errorf("%v, want one sentence with %q", err, want)
	}
}

// TestModelRefusals asks for models that there cannot be. Every rank refuses, and all of them can
// go on.
func TestModelRefusals(t *testing.T) {
	for _, c := range []struct {
		ranks  int
		change func(*Config)
		want   string
	}{
		{3, func(*Config) {}, "3 ranks: want 1, 2 or 4"},
		{8, func(*Config) {}, "8 ranks: want 1, 2 or 4"},
		{2, func(c *Config) { c.Layers = 0 }, "Layers:0 "},
		{1, func(c *Config) { c.Steps = 0 }, "want positive sizes"},
		{1, func(c *Config) { c.Context = 0 }, "want positive sizes"},
		{1, func(c *Config) { c.Hidden = -4 }, "want positive sizes"},
		{1, func(c *Config) { c.Inner = 0 }, "want positive sizes"},
		{1, func(c *Config) { c.Experts = 0 }, "want positive sizes"},
		{1, func(c *Config) { c.TopK = 0 }, "want positive sizes"},
		{1, func(c *Config) { c.Tokens = -1 }, "want positive sizes"},
		{2, func(c *Config) { c.Hidden = 6 }, "multiple of 16 bytes"},
		{4, func(c *Config) { c.Experts = 6 }, "Experts is 6 on 4 ranks"},
		{2, func(c *Config) { c.Experts, c.TopK = 4, 5 }, "TopK is 5 of 4 experts"},
	} {
		t.Run(fmt.Sprintf("%s on %d", c.want, c.ranks), func(t *testing.T) {
			cfg, ctx := small, testContext(t)
			c.change(&cfg)
			err := ranktest.Each(join(t, c.ranks), func(comm *weft.Comm) error {
				_, err := newModel(ctx, comm, comm, cfg)
				refuses(t, err, c.want)
				return comm.Err()
			})
			if err != nil {
				t.Error(err)
			}
		})
	}
}

// TestCommandRefusals is about arguments.
func TestCommandRefusals(t *testing.T) {
	alone(t)
	dir := t.TempDir()
	for name, size := range map[string]int{"short": 1023, "long": 1024} {
		if err := os.WriteFile(filepath.Join(dir, name), make([]byte, size), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Mkdir(filepath.Join(dir, "directory"), 0o700); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"-text", filepath.Join(dir, "none*")}, "0 bytes of text in 0 files that match"},
		{[]string{"-text", "["}, `0 bytes of text in 0 files that match "["`},
		{[]string{"-text", filepath.Join(dir, "short")}, "1023 bytes of text in 1 files"},
		{[]string{"-text", filepath.Join(dir, "directory")}, "directory"},
		{[]string{"-text", filepath.Join(dir, "long"), "-layers", "0"}, "Layers:0 "},
		{[]string{"-text", filepath.Join(dir, "long"), "-steps", "-1"}, "Steps:-1 "},
		{[]string{"-device", "tpu"}, "-device tpu: want host or gpu"},
	} {
		refuses(t, run(testContext(t), c.args, io.Discard), c.want)
	}
	if _, err := cuda.Open(); err != nil {
		refuses(t, run(testContext(t), []string{"-text", filepath.Join(dir, "long"), "-device", "gpu"},
			io.Discard), "no CUDA driver")
	}
}
