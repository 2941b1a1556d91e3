// Package budget holds compiled kernels to a budget of registers, stack, spills and static shared
// memory: a file that is committed beside the test.
//
//	// go test ./cmd/weft/internal/link -run TestKernelsUse -update
//	func TestKernelsUse(t *testing.T) { budget.Test(t, Kernels) }
//
// # The file
//
// It is testdata/kernels.txt, and rewritten by a test that runs with -update.
// Its first line says which compiler the figures are of, the second how many registers more than
// the budget a kernel may have: a change elsewhere moves them by a few. A program and its
// architecture stand on a line of their own, its kernels below, indented, by their C++ names where
// the spec has them. Stack, spills and shared memory may not grow at all. Kernels that spill need a
// reason, given by what the program's name, a space and the kernel's begin with:
//
//	compiler NVRTC 13.0
//	slack 4
//	spills ep dispatch, flag: two blocks of 512 threads on an SM leave 64 registers
//	  kernel                 registers stack spilled shared
//	sm_80 ep dispatch, flag 4
//	  weft::slots::dispatch         64    80      96  16388
//
// Slack and reasons are written by hand and survive when the file is rewritten.
package budget

import (
	"bytes"
	"context"
	"debug/elf"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/weftgo/weft/cuda/cudatest"
	"github.com/weftgo/weft/cuda/kernel"
	"github.com/weftgo/weft/cuda/nvrtc"
)

// Use is a kernel's resources: registers of a thread, and bytes. Spilled counts stores and loads
// together.
type Use struct{ Registers, Stack, Spilled, Shared int }

// Program is the use of a program's kernels, by name.
type Program struct {
	Arch, Name string
	Compiler   string
	Kernels    map[string]Use
	Symbols    []string // what a driver finds the kernels by, and profilers make their names of
}

// verbose makes the compiler print each kernel's use. It is a part of the key, so a cache keeps
// these apart from those that are run.
const verbose = "--ptxas-options=-v"

// Cache keeps compiled programs for [Compile], in the user's cache directory: compiling takes a
// second or more a program.
func Cache(c *nvrtc.Compiler) *kernel.Cache {
	return kernel.New(kernel.Options{Dir: cudatest.Kept("compiled", c.Version().String(), c.Path()), ReadOnly: []string{}})
}

// Compile compiles specs, in their order, and reads their kernels' use. Any other output of the
// compiler is an error.
func Compile(ctx context.Context, cache *kernel.Cache, specs []kernel.Spec) ([]Program, error) {
	asked := slices.Clone(specs)
	for i := range asked {
		asked[i].Options = append(slices.Clone(asked[i].Options), verbose)
	}
	cubins, err := cache.LoadAll(ctx, asked)
	if err != nil {
		return nil, err
	}
	var all []Program
	for i, c := range cubins {
		kernels, err := read(c.Log)
		if err != nil {
			return nil, fmt.Errorf("%s for %s: %w", specs[i].Name, c.Arch, err)
		}
		symbols := slices.Sorted(maps.Keys(kernels))
		if err := compare(c.Image(), symbols); err != nil {
			return nil, fmt.Errorf("%s for %s: %w", specs[i].Name, c.Arch, err)
		}
		for _, name := range specs[i].Kernels {
			symbol := c.Symbol(name)
			use := kernels[symbol]
			delete(kernels, symbol)
			kernels[name] = use
		}
		all = append(all, Program{
			Arch: c.Arch, Name: specs[i].Name, Compiler: c.Compiler, Kernels: kernels,
			Symbols: symbols,
		})
	}
	return all, nil
}

var (
	entry  = regexp.MustCompile(`^ptxas info\s*: Compiling entry function '(\w+)' for '\w+'$`)
	of     = regexp.MustCompile(`^ptxas info\s*: Function properties for (\w+)$`)
	spills = regexp.MustCompile(`^(?:ptxas\s*\.)?\s*(\d+) bytes stack frame, (\d+) bytes spill stores, ` +
		`(\d+) bytes spill loads$`)
	uses   = regexp.MustCompile(`^ptxas info\s*: Used (\d+) registers(?:, (.*))?$`)
	shared = regexp.MustCompile(`(\d+) bytes smem`)
	idle   = regexp.MustCompile(`^ptxas info\s*: (?:Compile time = .*|\d+ bytes gmem.*|\(C\d+\).*)$`)
)

// read parses ptxas's output for a program. The spills and the stack of functions that a kernel
// calls are the kernel's too.
func read(log string) (map[string]Use, error) {
	kernels := map[string]Use{}
	current := ""
	for line := range strings.Lines(log) {
		line = strings.TrimSpace(line)
		use := kernels[current]
		switch {
		case line == "" || idle.MatchString(line) || of.MatchString(line):
			continue
		case entry.MatchString(line):
			current = entry.FindStringSubmatch(line)[1]
			use = Use{}
		case current == "":
			return nil, fmt.Errorf("the compiler says: %s", line)
		case spills.MatchString(line):
			n := numbers(spills.FindStringSubmatch(line)[1:])
			use.Stack += n[0]
			use.Spilled += n[1] + n[2]
		case uses.MatchString(line):
			m := uses.FindStringSubmatch(line)
			use.Registers = numbers(m[1:2])[0]
			if s := shared.FindStringSubmatch(m[2]); s != nil {
				use.Shared = numbers(s[1:])[0]
			}
		default:
			return nil, fmt.Errorf("the compiler says: %s", line)
		}
		kernels[current] = use
	}
	for name, use := range kernels {
		if use.Registers == 0 {
			return nil, fmt.Errorf("the compiler does not print the resources of kernel %s", name)
		}
	}
	return kernels, nil
}

// compare checks that the compiler's output has every kernel: each has a section of constants, with
// its arguments.
func compare(image []byte, listed []string) error {
	f, err := elf.NewFile(bytes.NewReader(image))
	if err != nil {
		return err
	}
	var names []string
	for _, s := range f.Sections {
		if name, ok := strings.CutPrefix(s.Name, ".nv.constant0."); ok {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	if !slices.Equal(names, listed) {
		return fmt.Errorf("there are kernels %q, and the compiler lists %q", names, listed)
	}
	return nil
}

// numbers are texts that a pattern has found to be digits.
func numbers(texts []string) []int {
	all := make([]int, len(texts))
	for i, s := range texts {
		all[i], _ = strconv.Atoi(s)
	}
	return all
}
