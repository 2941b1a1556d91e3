package emulate

import (
	"bytes"
	"cmp"
	"context"
	"debug/elf"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"

	"github.com/weftgo/weft/cuda"
	"github.com/weftgo/weft/cuda/cudatest"
	"github.com/weftgo/weft/cuda/kernel"
)

// source has the files that become part of images, and their translator.
//
//go:embed source compiler.go translate.go
var source embed.FS

// flags are those of every compilation: fp32 arithmetic as on the device, defined behaviour for
// code that C++ leaves undefined, and little optimisation: more would take longer than it saves.
var flags = []string{
	"-std=c++17", "-Og", "-fPIC", "-w", "-fvisibility=hidden", "-ffp-contract=off", "-fno-strict-aliasing",
	"-fwrapv", "-fno-exceptions", "-fno-rtti",
	"-fno-stack-protector", "-fcf-protection=none", "-fno-asynchronous-unwind-tables",
}

// Need skips a test where kernels cannot be emulated, and says why; also where WEFT_REQUIRE_GPU
// says that real GPUs are tested.
func Need(t cudatest.TB) {
	t.Helper()
	if os.Getenv("WEFT_REQUIRE_GPU") == "1" {
		t.Skipf("WEFT_REQUIRE_GPU=1: the same is tested on GPUs")
	}
	if _, err := Compiler(); err != nil {
		t.Skipf("needs a C++ compiler to run kernels with: %v", err)
	}
}

// Everything says whether tests run all they have for emulated GPUs, and their longest series on the
// host. "make test-all" asks for it by WEFT_TEST_ALL=1. Otherwise each kernel and each fault runs once.
func Everything() bool { return os.Getenv("WEFT_TEST_ALL") == "1" }

// Compiler finds the host's C++ compiler: WEFT_CXX, or else g++ or clang++. It is for
// [kernel.Options]. Its images are for a machine that [Attach] was called for, so they need a
// directory of their own. It compiles a spec once: images are kept in the user's cache directory,
// under weft/emulated, in a folder for each version of this package and of the compiler.
func Compiler() (kernel.Compiler, error) { return kept() }

// Cache is the cache of Compiler's images, for callers that load no others.
func Cache() (*kernel.Cache, error) {
	k, err := kept()
	if err != nil {
		return nil, err
	}
	return k.cache, nil
}

// keeper is a compiler that compiles nothing that is kept already.
type keeper struct {
	*compiler
	cache *kernel.Cache
}

var kept = sync.OnceValues(func() (*keeper, error) {
	c, err := find()
	if err != nil {
		return nil, err
	}
	of := []string{c.version, runtime.GOARCH}
	if err := fs.WalkDir(source, ".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		text, err := fs.ReadFile(source, path)
		of = append(of, path, string(text))
		return err
	}); err != nil {
		return nil, err
	}
	dir := cudatest.Kept("emulated", of...)
	return &keeper{c, kernel.New(kernel.Options{
		Compiler: func() (kernel.Compiler, error) { return c, nil },
		Dir:      dir, ReadOnly: []string{},
	})}, nil
})

// Compile gives what is kept of a spec.
func (k *keeper) Compile(ctx context.Context, s kernel.Spec) (kernel.Code, error) {
	image, err := k.cache.Load(ctx, s)
	if failed, ok := errors.AsType[*kernel.Error](err); ok {
		err = failed.Err // who asked says of which kernel
	}
	if err != nil {
		return kernel.Code{}, err
	}
	return kernel.Code{Image: image.Image(), Symbols: s.Kernels}, nil
}

var find = sync.OnceValues(func() (*compiler, error) {
	if runtime.GOOS != "linux" || runtime.GOARCH != "amd64" && runtime.GOARCH != "arm64" {
		return nil, fmt.Errorf("%w: kernels are emulated on linux/amd64 and linux/arm64", cuda.ErrUnsupported)
	}
	var failed error
	for _, name := range []string{os.Getenv("WEFT_CXX"), "g++", "clang++"} {
		if name == "" {
			continue
		}
		path, err := exec.LookPath(name)
		if err != nil {
			failed = cmp.Or(failed, err)
			continue
		}
		out, err := exec.Command(path, "--version").Output()
		if err != nil {
			return nil, fmt.Errorf("%s --version: %w", path, err)
		}
		version, _, _ := strings.Cut(string(out), "\n")
		return &compiler{path: path, version: version}, nil
	}
	return nil, fmt.Errorf("%w: %w", cuda.ErrUnsupported, failed)
})

type compiler struct {
	path, version string

	mu        sync.Mutex
	scheduler []byte // machine.cc, compiled
}

func (c *compiler) Version() string { return "emulate with " + c.version }

// Compile gives an image of a shared library, which kernels are found in by their C++ names.
// Options are NVRTC's and mean nothing here.
func (c *compiler) Compile(ctx context.Context, s kernel.Spec) (kernel.Code, error) {
	code, err := c.build(ctx, s)
	if err != nil {
		return kernel.Code{}, err
	}
	return kernel.Code{Image: cudatest.Image(code), Symbols: s.Kernels}, nil
}

// build compiles in a directory of its own.
func (c *compiler) build(ctx context.Context, s kernel.Spec) (code []byte, err error) {
	dir, err := os.MkdirTemp("", "emulate")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	if err := layOut(dir, s); err != nil {
		return nil, err
	}
	arguments := []string{
		"-E", "-std=c++17", "-nostdinc", "-w", "-I", "headers", "-include", "prelude.cuh",
		"-D__CUDA_ARCH__=" + architecture(s.Arch),
	}
	for _, name := range slices.Sorted(maps.Keys(s.Defines)) {
		arguments = append(arguments, "-D"+name+"="+s.Defines[name])
	}
	text, err := c.run(ctx, dir, append(arguments, "-x", "c++", "kernel.cu")...)
	if err != nil {
		return nil, err
	}
	translated, err := translate(text, s.Kernels)
	if err != nil {
		return nil, err
	}
	if err := os.WriteFile(filepath.Join(dir, "kernel.ii"), []byte(translated), 0o600); err != nil {
		return nil, err
	}
	if err := c.addScheduler(ctx, dir); err != nil {
		return nil, err
	}
	// The C++ library, which the linker would read each time, has nothing for kernels.
	link := []string{
		"-shared", "-nostdlib", "-Wl,-z,now", "-o", "kernel.so", "kernel.ii", "machine.o", "-lm", "-lc", "-lgcc",
	}
	if _, err := c.run(ctx, dir, slices.Concat(flags, link)...); err != nil {
		return nil, err
	}
	if code, err = os.ReadFile(filepath.Join(dir, "kernel.so")); err != nil {
		return nil, err
	}
	return code, staticShared(code)
}

// addScheduler puts machine.o into a directory.
func (c *compiler) addScheduler(ctx context.Context, dir string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	path := filepath.Join(dir, "machine.o")
	if c.scheduler != nil {
		return os.WriteFile(path, c.scheduler, 0o600)
	}
	if _, err := c.run(ctx, dir, slices.Concat(flags,
		[]string{"-O2", "-c", "machine.cc", "-o", "machine.o"})...); err != nil {
		return err
	}
	var err error
	c.scheduler, err = os.ReadFile(path)
	return err
}

// layOut writes the spec's files, and the package's: kernels include ptx.cuh, and it is this one.
func layOut(dir string, s kernel.Spec) error {
	files := map[string]string{"kernel.cu": s.Source}
	for name, text := range s.Headers {
		if !filepath.IsLocal(name) {
			return fmt.Errorf("header %q: want a name in the directory of headers", name)
		}
		files[filepath.Join("headers", name)] = text
	}
	for _, name := range []string{"machine.h", "machine.cc", "prelude.cuh", "ptx.cuh"} {
		text, err := fs.ReadFile(source, "source/"+name)
		if err != nil {
			return err
		}
		files[name] = string(text)
	}
	// There is one copy of it: two that were written in different seconds are two headers to g++'s #pragma once.
	files[filepath.Join("headers", "ptx.cuh")] = files["ptx.cuh"]
	delete(files, "ptx.cuh")
	for name, text := range files {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			return err
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			return err
		}
	}
	return nil
}

func (c *compiler) run(ctx context.Context, dir string, arguments ...string) (string, error) {
	cmd := exec.CommandContext(ctx, c.path, arguments...)
	cmd.Dir = dir
	var out, log bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &log
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("%s: %w\n%s", filepath.Base(c.path), err, &log)
	}
	return out.String(), nil
}

var digits = regexp.MustCompile(`[0-9]+`)

// architecture is the value of __CUDA_ARCH__: 900 for sm_90a.
func architecture(arch string) string {
	if n := digits.FindString(arch); n != "" {
		return n + "0"
	}
	return "900"
}

// maxStatic is how much static shared memory a kernel can have, in bytes.
const maxStatic = 48 << 10

// staticShared refuses too much shared memory of one function. A kernel's variables bear its name;
// those outside of functions count for all.
func staticShared(library []byte) error {
	f, err := elf.NewFile(bytes.NewReader(library))
	if err != nil {
		return err
	}
	symbols, err := f.Symbols()
	if err != nil {
		return err
	}
	sizes, outside := map[string]uint64{"": 0}, uint64(0)
	for _, s := range symbols {
		if elf.ST_TYPE(s.Info) != elf.STT_TLS || strings.Contains(s.Name, "7emulate") {
			continue
		}
		if function, _, local := strings.Cut(strings.TrimPrefix(s.Name, "_ZZ"), "E"); local &&
			strings.HasPrefix(s.Name, "_ZZ") {
			sizes[function] += s.Size
		} else {
			outside += s.Size
		}
	}
	for function, size := range sizes {
		if size+outside > maxStatic {
			name := strings.TrimLeft(function, "0123456789")
			return fmt.Errorf("function %s: %d bytes of static shared memory, %d are allowed", name, size+outside, maxStatic)
		}
	}
	return nil
}
