package kernel

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"maps"
	"regexp"
	"slices"
	"strings"
	"unicode"
)

// LibraryVersion is a part of every key. It changes when the same source must be compiled anew for
// another reason than its text, and with the format of entries.
const LibraryVersion = "weft 2"

// Spec is a program and how to compile it. It is data: nothing here changes it.
type Spec struct {
	// Name stands for the kernel in errors and messages. It is no part of the key.
	Name string
	// Source is CUDA C++17.
	Source string
	// Headers are the headers for #include, by name. There are no others.
	Headers map[string]string
	// Defines are macros, as #define name value before the first line.
	Defines map[string]string
	// Options are the compiler's own, in an order that may matter, but not the architecture's nor
	// the standard's.
	Options []string
	// Kernels are the C++ names of kernels in namespaces and of templates, as layer::scale or
	// scale<float>, each once: see [Cubin.Symbol]. Kernels that are extern "C" need none.
	Kernels []string
	// Arch is a real architecture, as sm_90a.
	Arch string
}

// Key identifies the output: two specs of the same key have the same cubin.
type Key [sha256.Size]byte

func (k Key) String() string { return hex.EncodeToString(k[:]) }

// Key is a hash of all of the spec but its name, and of [LibraryVersion].
func (s Spec) Key() Key { return s.key(LibraryVersion) }

func (s Spec) key(library string) Key {
	e := encoder{sha256.New()}
	e.text("weft kernel")
	e.text(library)
	e.text(s.Arch)
	e.text(s.Source)
	e.texts(s.Headers)
	e.texts(s.Defines)
	e.list(s.Options)
	e.list(s.Kernels)
	return Key(e.hash.Sum(nil))
}

// An encoder hashes texts, each after its length, so that no two lists of texts look the same.
type encoder struct{ hash hash.Hash }

func (e encoder) count(n int) {
	var b [8]byte
	binary.LittleEndian.PutUint64(b[:], uint64(n))
	e.hash.Write(b[:])
}

func (e encoder) text(s string) {
	e.count(len(s))
	e.hash.Write([]byte(s))
}

func (e encoder) list(texts []string) {
	e.count(len(texts))
	for _, text := range texts {
		e.text(text)
	}
}

func (e encoder) texts(byName map[string]string) {
	e.count(len(byName))
	for _, name := range slices.Sorted(maps.Keys(byName)) {
		e.text(name)
		e.text(byName[name])
	}
}

var (
	realArch   = regexp.MustCompile(`^sm_[1-9][0-9]+[a-z]?$`)
	identifier = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)
)

// check refuses specs that no compiler accepts, or that could be taken for others.
func (s Spec) check() error {
	if s.Name == "" {
		return errors.New("a spec without a name")
	}
	if s.Source == "" {
		return errors.New("no source")
	}
	if !realArch.MatchString(s.Arch) {
		return fmt.Errorf("architecture %q: want one as sm_90a", s.Arch)
	}
	for _, name := range slices.Sorted(maps.Keys(s.Headers)) {
		if name == "" {
			return errors.New("a header without a name")
		}
	}
	for _, name := range slices.Sorted(maps.Keys(s.Defines)) {
		if !identifier.MatchString(name) {
			return fmt.Errorf("define %q: want an identifier", name)
		}
	}
	for i, name := range s.Kernels {
		if name == "" || strings.ContainsFunc(name, unicode.IsControl) {
			return fmt.Errorf("kernel %q: want a name as C++ has it", name)
		}
		if slices.Contains(s.Kernels[:i], name) {
			return fmt.Errorf("kernel %q is named twice", name)
		}
	}
	for _, option := range s.Options {
		for _, own := range []string{"-arch", "--gpu-architecture", "-std", "--std"} {
			if name, _, _ := strings.Cut(option, "="); strings.TrimSpace(name) == own {
				return fmt.Errorf("option %q: the architecture is the spec's Arch, and the standard C++17", option)
			}
		}
	}
	return nil
}

// clone is a spec that its caller can no longer change.
func (s Spec) clone() Spec {
	s.Headers, s.Defines = maps.Clone(s.Headers), maps.Clone(s.Defines)
	s.Options, s.Kernels = slices.Clone(s.Options), slices.Clone(s.Kernels)
	return s
}
