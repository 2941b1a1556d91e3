package main_test

import (
	"context"
	"debug/elf"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/weftgo/weft/fabric"
	"github.com/weftgo/weft/fabric/fabrictest"
)

// ncclEP is what leaves libnccl_ep.so: what TransformerEngine calls, and nothing else.
var ncclEP = []string{
	"ncclEpCombine", "ncclEpCreateGroup", "ncclEpDispatch", "ncclEpGroupDestroy", "ncclEpHandleDestroy",
	"ncclEpHandleMemSize", "ncclEpInitHandle", "ncclEpUpdateHandle",
}

// build runs the C compiler, with warnings for errors.
func build(t *testing.T, program string, arguments ...string) {
	t.Helper()
	arguments = append([]string{"-std=c11", "-O1", "-Wall", "-Wextra", "-Werror", "-o", program}, arguments...)
	cmd := exec.Command(compiler(t), arguments...)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %v\n%s", cmd, err, out)
	}
}

// compileEP makes a program of a C file that calls the NCCL EP face.
func compileEP(t *testing.T, source string) string {
	t.Helper()
	folder := library(t)
	program := filepath.Join(t.TempDir(), "program")
	build(t, program, "-Itestdata", "-I"+folder, source, "-L"+folder, "-Wl,-rpath,"+folder, "-lnccl_ep",
		"-lweft", "-lpthread", "-ldl")
	return program
}

func TestNCCLEP(t *testing.T) {
	program := compileEP(t, "testdata/nccl_ep.c")
	t.Run("misuse", func(t *testing.T) {
		if got := run(t, program, "misuse"); got != "ok\n" {
			t.Error(got)
		}
	})
	for _, n := range []string{"1", "2", "4"} {
		t.Run("threads/"+n, func(t *testing.T) {
			if got := run(t, program, "threads", n); got != "ok\n" {
				t.Error(got)
			}
		})
	}
	for _, n := range []int{2, 3} {
		t.Run(fmt.Sprintf("processes/%d", n), func(t *testing.T) {
			for r, o := range ranks(t, n, program, "exchange") {
				if o.err != nil || o.output != "ok\n" {
					t.Errorf("rank %d of %d: %v\n%s", r, n, o.err, o.output)
				}
			}
		})
	}
	for _, hosts := range []string{"ab", "aab"} {
		t.Run("hosts/"+hosts, func(t *testing.T) {
			d := fabrictest.Libfabric(t.Context(), t, fabric.Options{Size: 1, Provider: "tcp", Source: "127.0.0.1"})
			if err := d.Close(); err != nil {
				t.Fatal(err)
			}
			env := func(rank int) []string { return []string{"WEFT_HOSTID=" + hosts[rank:][:1], "WEFT_HEARTBEAT=60s"} }
			for r, o := range ranksWith(t, len(hosts), env, program, "exchange") {
				if o.err != nil || o.output != "ok\n" {
					t.Errorf("rank %d of %s: %v\n%s", r, hosts, o.err, o.output)
				}
			}
		})
	}
	t.Run("death/3", func(t *testing.T) {
		for r, o := range ranks(t, 3, program, "death") {
			exit, killed := errors.AsType[*exec.ExitError](o.err)
			if r == 2 {
				if !killed || exit.Exited() {
					t.Errorf("rank %d was not killed: %v\n%s", r, o.err, o.output)
				}
			} else if o.err != nil || o.output != "ok\n" {
				t.Errorf("rank %d: %v\n%s", r, o.err, o.output)
			}
		}
	})
}

// fakeNCCL is a folder with a fake NCCL and a fake driver, whose device memory is the host's.
func fakeNCCL(t *testing.T) string {
	t.Helper()
	folder := t.TempDir()
	fake := filepath.Join(folder, "libnccl.so.2")
	build(t, fake, "-fPIC", "-shared", "-Wl,-soname,libnccl.so.2", "testdata/nccl_fake.c", "-lpthread")
	if err := os.Symlink(fake, filepath.Join(folder, "libcuda.so.1")); err != nil {
		t.Fatal(err)
	}
	return folder
}

// The GPU half, on GPUs that the host's processors emulate: libweft.so has them, built with the tag
// emulated. Rows, experts, counts and the memory of handles are device memory.
func TestNCCLEPOnEmulatedGPUs(t *testing.T) {
	program, folder := compileEP(t, "testdata/nccl_ep.c"), fakeNCCL(t)
	emulatedGPUs(t, folder)
	for _, n := range []string{"2", "3"} {
		t.Run(n, func(t *testing.T) {
			if got := runFor(t, 5*time.Minute, program, "gpus", n); got != "ok\n" { // the first one compiles the kernels
				t.Error(got)
			}
		})
	}
}

// Ranks meet through an NCCL communicator, of the fake NCCL. No GPU has run this.
func TestNCCLEPMeetsThroughNCCL(t *testing.T) {
	folder, fakes := library(t), fakeNCCL(t)
	program := filepath.Join(t.TempDir(), "program")
	build(t, program, "-Itestdata", "-I"+folder, "-Inccl", "testdata/nccl_meeting.c",
		filepath.Join(folder, "libnccl_ep.a"),
		"-L"+folder, "-Wl,-rpath,"+folder, "-lweft", "-lpthread", "-ldl")
	t.Setenv("LD_LIBRARY_PATH", fakes)
	if got := run(t, program); got != "ok\n" {
		t.Error(got)
	}
}

// The archive is linked where Weft is not, and finds it when it runs.
func TestNCCLEPArchive(t *testing.T) {
	folder := library(t)
	source := filepath.Join(t.TempDir(), "archive.c")
	text := `#include <stdio.h>
#include "weft_nccl_ep.h"
int main(void) {
	ncclEpGroup_t group;
	printf("%d\n", (int)ncclEpCreateGroup(&group, NULL, NULL));
	return 0;
}
`
	if err := os.WriteFile(source, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	program := filepath.Join(t.TempDir(), "program")
	build(t, program, "-I"+folder, source, filepath.Join(folder, "libnccl_ep.a"), "-lpthread", "-ldl")
	for _, test := range []struct{ name, value, want string }{
		{"LD_LIBRARY_PATH", folder, "4\n"},
		{"WEFT_LIBRARY", filepath.Join(folder, "libweft.so"), "4\n"},
		{"WEFT_LIBRARY", filepath.Join(folder, "nowhere.so"), "2\n"},
	} {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		cmd := exec.CommandContext(ctx, program)
		cmd.Env = []string{test.name + "=" + test.value}
		var words strings.Builder
		cmd.Stderr = &words
		out, err := cmd.Output()
		if err != nil || string(out) != test.want {
			t.Errorf("%s=%s: %v, printed %q, want %q; %s", test.name, test.value, err, out, test.want, words.String())
		}
		if failed := test.want == "2\n"; failed != strings.Contains(words.String(), "WEFT_LIBRARY") {
			t.Errorf("%s=%s: %q", test.name, test.value, words.String())
		}
	}
}

func TestNCCLEPSymbols(t *testing.T) {
	folder := library(t)
	lib, err := elf.Open(filepath.Join(folder, "libnccl_ep.so"))
	if err != nil {
		t.Fatal(err)
	}
	defer lib.Close()
	if names, err := lib.DynString(elf.DT_SONAME); err != nil || !slices.Equal(names, []string{"libnccl_ep.so"}) {
		t.Errorf("the library calls itself %v (%v)", names, err)
	}
	symbols, err := lib.DynamicSymbols()
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, s := range symbols {
		if s.Section != elf.SHN_UNDEF {
			got = append(got, s.Name)
		}
	}
	slices.Sort(got)
	if diff := cmp.Diff(ncclEP, got); diff != "" {
		t.Errorf("symbols (-wanted +library):\n%s", diff)
	}
}

// The header is C99 and C++, by itself and without a warning, and names nothing of NCCL's.
func TestNCCLEPHeader(t *testing.T) {
	folder := library(t)
	source := filepath.Join(t.TempDir(), "header.c")
	text := "typedef struct ncclComm *ncclComm_t;\nstruct ncclWindow_vidmem;\n#include " +
		"\"weft_nccl_ep.h\"\nint main(void) { return (int)sizeof(ncclEpTensor_t) - 48; }\n"
	if err := os.WriteFile(source, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	check := func(name string, flags ...string) {
		args := append(flags, "-Wall", "-Wextra", "-pedantic", "-Werror", "-fsyntax-only", "-I"+folder, source)
		if out, err := exec.Command(name, args...).CombinedOutput(); err != nil {
			t.Errorf("%s %v: %v\n%s", name, args, err, out)
		}
	}
	check(compiler(t), "-std=c99")
	if cxx, err := exec.LookPath("c++"); err == nil {
		check(cxx, "-std=c++11", "-x", "c++")
	}
	header, err := os.ReadFile("nccl/weft_nccl_ep.h")
	if err != nil {
		t.Fatal(err)
	}
	code := comments.ReplaceAllString(string(header), "")
	for _, name := range []string{"ncclComm", "ncclWindow", "ncclUniqueId", "<nccl"} {
		if strings.Contains(code, name) {
			t.Errorf("the header names %s, which is NCCL's", name)
		}
	}
}

// The program of docs/guides/nccl-ep.md is one that compiles by the package files and runs.
func TestNCCLEPDocumentation(t *testing.T) {
	folder := library(t)
	source := page(t, "../docs/guides/nccl-ep.md")
	tool, err := exec.LookPath("pkg-config")
	if err != nil {
		t.Skip("no pkg-config")
	}
	cmd := exec.Command(tool, "--cflags", "--libs", "nccl_ep", "weft")
	cmd.Env = append(os.Environ(), "PKG_CONFIG_PATH="+folder)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	program := filepath.Join(t.TempDir(), "program")
	build(t, program, append([]string{source}, strings.Fields(string(out))...)...)
	for r, o := range ranks(t, 2, program) {
		if want := fmt.Sprintf("rank %d: 3 6 9 12\n", r); o.err != nil || o.output != want {
			t.Errorf("rank %d: %v\n%s", r, o.err, o.output)
		}
	}
}
