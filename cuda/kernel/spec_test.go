package kernel

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// TestKeyIsFixed: keys are names of files that other processes, machines and builds look for.
func TestKeyIsFixed(t *testing.T) {
	s := Spec{
		Name: "add", Source: "source", Headers: map[string]string{"h": "text"}, Defines: map[string]string{"N": "1"},
		Options: []string{"-lineinfo"}, Kernels: []string{"layer::add"}, Arch: "sm_90a",
	}
	const want = "ae46d703306decaedf246a8281bd3137a82881724971d7371affd6e3ea63651f"
	if got := s.key("weft 2").String(); got != want {
		t.Errorf("the key is %s, want %s", got, want)
	}
}

// TestKeyKnowsEveryField: whatever changes the code changes the key, and the name does not.
func TestKeyKnowsEveryField(t *testing.T) {
	base := spec(1)
	variants := map[string]func(s *Spec){
		"source":         func(s *Spec) { s.Source += " " },
		"header's text":  func(s *Spec) { s.Headers["a.h"] += " " },
		"header's name":  func(s *Spec) { s.Headers["c.h"] = s.Headers["a.h"]; delete(s.Headers, "a.h") },
		"header more":    func(s *Spec) { s.Headers["c.h"] = "" },
		"headers change": func(s *Spec) { s.Headers["a.h"], s.Headers["b.h"] = s.Headers["b.h"], s.Headers["a.h"] },
		"define's value": func(s *Spec) { s.Defines["TOPK"] = "9" },
		"define's name":  func(s *Spec) { s.Defines["TOP"] = "8"; delete(s.Defines, "TOPK") },
		"define more":    func(s *Spec) { s.Defines["MORE"] = "" },
		"define less":    func(s *Spec) { delete(s.Defines, "TOPK") },
		"option":         func(s *Spec) { s.Options[0] = "-G" },
		"option more":    func(s *Spec) { s.Options = append(s.Options, "") },
		"option less":    func(s *Spec) { s.Options = nil },
		"kernel":         func(s *Spec) { s.Kernels[0] = "scale<int>" },
		"kernel more":    func(s *Spec) { s.Kernels = append(s.Kernels, "scale<int>") },
		"kernel less":    func(s *Spec) { s.Kernels = nil },
		"arch":           func(s *Spec) { s.Arch = "sm_90" },
	}
	keys := map[Key]string{base.Key(): "the base"}
	for what, change := range variants {
		s := base.clone()
		change(&s)
		if other, ok := keys[s.Key()]; ok {
			t.Errorf("%s: the same key as %s", what, other)
		}
		keys[s.Key()] = what
	}
	if base.key("weft 1") == base.key("weft 2") {
		t.Error("the library's version does not matter")
	}
	named := base
	named.Name = "another"
	if named.Key() != base.Key() {
		t.Error("the name matters")
	}
}

// TestKeyOfOptionsInOrder: the order of options may matter to the compiler.
func TestKeyOfOptionsInOrder(t *testing.T) {
	a, b := spec(1), spec(1)
	a.Options, b.Options = []string{"-A", "-B"}, []string{"-B", "-A"}
	if a.Key() == b.Key() {
		t.Error("the order of options does not matter")
	}
}

// TestKeyIgnoresMapOrder: maps that were filled in another order, and have grown and shrunk, give
// the same key.
func TestKeyIgnoresMapOrder(t *testing.T) {
	const n = 64
	make1, make2 := spec(1), spec(1)
	make1.Defines, make2.Defines = map[string]string{}, map[string]string{}
	for i := range n {
		make1.Defines[fmt.Sprint("D", i)] = fmt.Sprint(i)
		make2.Defines[fmt.Sprint("D", n-1-i)] = fmt.Sprint(n - 1 - i)
		make2.Defines[fmt.Sprint("GONE", i)] = ""
	}
	for i := range n {
		delete(make2.Defines, fmt.Sprint("GONE", i))
	}
	make1.Headers, make2.Headers = make1.Defines, make2.Defines
	for range 20 { // a walk over a map begins anywhere
		if make1.Key() != make2.Key() {
			t.Fatal("the order in which maps were filled matters")
		}
	}
}

// TestKeyIsUnambiguous moves a piece of text from one place to the next: concatenated, the fields
// would read the same.
func TestKeyIsUnambiguous(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		text := rapid.StringMatching(`[ab\x00=,]{1,13}`).Draw(t, "text")
		cuts := func(label string) (pieces [9]string) {
			at := []int{0, len(text)}
			for range len(pieces) - 1 {
				at = append(at, rapid.IntRange(0, len(text)).Draw(t, label))
			}
			slices.Sort(at)
			for i := range pieces {
				pieces[i] = text[at[i]:at[i+1]]
			}
			return pieces
		}
		key := func(p [9]string) Key {
			s := Spec{
				Arch: p[1], Source: p[2], Headers: map[string]string{p[3]: p[4]},
				Defines: map[string]string{p[5]: p[6]}, Options: []string{p[7]}, Kernels: []string{p[8]},
			}
			return s.key(p[0])
		}
		a, b := cuts("a"), cuts("b")
		if (key(a) == key(b)) != (a == b) {
			t.Fatalf("%q and %q have the same key", a, b)
		}
	})
	// The same for the boundaries between lists, which are of other lengths.
	all := map[Key]string{}
	for what, s := range map[string]Spec{
		"two headers":  {Headers: map[string]string{"a": "b", "c": "d"}},
		"one each":     {Headers: map[string]string{"a": "b"}, Defines: map[string]string{"c": "d"}},
		"two defines":  {Defines: map[string]string{"a": "b", "c": "d"}},
		"four kernels": {Kernels: []string{"a", "b", "c", "d"}},
		"two and two":  {Options: []string{"a", "b"}, Kernels: []string{"c", "d"}},
		"four options": {Options: []string{"a", "b", "c", "d"}},
		"half":         {Defines: map[string]string{"a": "b"}, Options: []string{"c", "d"}},
	} {
		if other, ok := all[s.Key()]; ok {
			t.Errorf("%s and %s have the same key", what, other)
		}
		all[s.Key()] = what
	}
}

func TestSpecsThatAreRefused(t *testing.T) {
	for want, change := range map[string]func(s *Spec){
		"without a name":       func(s *Spec) { s.Name = "" },
		"no source":            func(s *Spec) { s.Source = "" },
		`architecture ""`:      func(s *Spec) { s.Arch = "" },
		`"compute_90"`:         func(s *Spec) { s.Arch = "compute_90" },
		`"sm_90a --G"`:         func(s *Spec) { s.Arch = "sm_90a --G" },
		`define "A=B"`:         func(s *Spec) { s.Defines["A=B"] = "1" },
		`define ""`:            func(s *Spec) { s.Defines[""] = "1" },
		"header without":       func(s *Spec) { s.Headers[""] = "" },
		`kernel ""`:            func(s *Spec) { s.Kernels[0] = "" },
		`kernel "a\tb"`:        func(s *Spec) { s.Kernels[0] = "a\tb" },
		"named twice":          func(s *Spec) { s.Kernels[1] = s.Kernels[0] },
		"-arch":                func(s *Spec) { s.Options = []string{"-arch=sm_80"} },
		"--gpu-architecture":   func(s *Spec) { s.Options = []string{"--gpu-architecture", "sm_80"} },
		`"-std=c++20"`:         func(s *Spec) { s.Options = []string{"-std=c++20"} },
		`option "--std=c++20"`: func(s *Spec) { s.Options = []string{"--std=c++20"} },
	} {
		s := spec(1)
		change(&s)
		f := &fake{}
		c, _ := cacheIn(newDir(t), f)
		if _, err := c.Load(testContext(t), s); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("want an error that says %q, have %v", want, err)
		}
		if len(f.compiled) > 0 {
			t.Errorf("%s: it was compiled", want)
		}
	}
	for _, arch := range []string{"sm_80", "sm_90a", "sm_100a", "sm_103f"} {
		s := spec(1)
		s.Arch = arch
		if err := s.check(); err != nil {
			t.Errorf("%s: %v", arch, err)
		}
	}
}

// TestSpecIsNotChanged: a spec stays its owner's, before and after.
func TestSpecIsNotChanged(t *testing.T) {
	s, same := spec(1), spec(1)
	started, change := make(chan struct{}), make(chan struct{})
	seen := make(chan Spec, 1)
	c, _ := cacheIn(newDir(t), &fake{begin: func(_ context.Context, s Spec) error {
		close(started)
		<-change
		seen <- s
		return nil
	}})
	done := make(chan error, 1)
	go func() {
		_, err := c.Load(testContext(t), s)
		done <- err
	}()
	<-started
	s.Defines["TOPK"], s.Headers["a.h"], s.Options[0], s.Kernels[0] = "changed", "changed", "changed", "changed"
	close(change)
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	compiled := <-seen
	if !maps.Equal(compiled.Defines, same.Defines) || !maps.Equal(compiled.Headers, same.Headers) ||
		!slices.Equal(compiled.Options, same.Options) ||
		!slices.Equal(compiled.Kernels, same.Kernels) {
		t.Errorf("what was compiled has changed with its owner's spec: %v", compiled)
	}
}
