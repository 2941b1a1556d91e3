package nvrtc

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/weftgo/weft/cuda"
	"github.com/weftgo/weft/internal/dl"
	"github.com/weftgo/weft/internal/pythons"
)

// sonames are the library's names for the loader, newest first.
var sonames = []string{"libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"}

// A system is where NVRTC is looked for.
type system struct {
	nvrtc   string // WEFT_NVRTC
	loader  bool   // whether to ask the loader
	pythons pythons.Search
}

func environment() system {
	return system{nvrtc: os.Getenv("WEFT_NVRTC"), loader: true, pythons: pythons.FromEnvironment()}
}

// open takes the first candidate that loads. An error is a [SearchError].
func open(s system) (*Compiler, error) {
	find := system.find
	if s.nvrtc != "" {
		find = system.openNamed
	}
	c, err := find(s)
	if err != nil {
		return nil, &SearchError{err}
	}
	return c, nil
}

func (s system) find() (*Compiler, error) {
	var candidates []string
	if s.loader {
		candidates = append(candidates, sonames...)
	}
	candidates = append(candidates, s.files()...)
	var tried []error // that were found
	for _, path := range candidates {
		c, err := OpenFile(path)
		if err == nil {
			return c, nil
		}
		if failed, ok := errors.AsType[*dl.OpenError](err); !ok || !failed.Missing() {
			tried = append(tried, err)
		}
	}
	err := fmt.Errorf("%w: NVRTC was not found: install it (python3 -m pip install nvidia-cuda-nvrtc) or name it "+
		"in WEFT_NVRTC", cuda.ErrUnsupported)
	if len(tried) > 0 {
		err = fmt.Errorf("%w; tried: %w", err, joined(tried))
	}
	return nil, err
}

// openNamed opens the library that WEFT_NVRTC names: a file, or a folder that has one.
func (s system) openNamed() (*Compiler, error) {
	name := s.nvrtc
	files := []string{name}
	if info, err := os.Stat(name); err == nil && info.IsDir() {
		if files = libraries(name); len(files) == 0 {
			return nil, fmt.Errorf("%w: WEFT_NVRTC names %s, which has no libnvrtc.so", cuda.ErrUnsupported, name)
		}
	}
	c, err := OpenFile(files[0])
	if err != nil {
		return nil, fmt.Errorf("%w: WEFT_NVRTC names %s: %w", cuda.ErrUnsupported, name, err)
	}
	return c, nil
}

// files are the libraries of toolkits and of Python packages, in the order of preference.
func (s system) files() (files []string) {
	for _, pattern := range []string{"usr/local/cuda*/lib64", "usr/local/cuda*/targets/*/lib"} {
		folders := glob(filepath.Join(s.pythons.Root, pattern))
		slices.SortStableFunc(folders, newestFirst)
		for _, folder := range folders {
			files = append(files, libraries(folder)...)
		}
	}
	for _, packages := range s.packages() {
		var found []string
		for _, pattern := range []string{"nvidia/*/lib", "torch/lib"} {
			for _, folder := range glob(filepath.Join(packages, pattern)) {
				found = append(found, libraries(folder)...)
			}
		}
		slices.SortStableFunc(found, newestLibrary)
		files = append(files, found...)
	}
	return unique(files)
}

// packages are the folders in which Python environments keep their packages.
func (s system) packages() (folders []string) {
	for _, prefix := range s.pythons.Prefixes() {
		for _, pattern := range []string{
			"lib*/python3*/site-packages", "lib*/python3*/dist-packages",
			"lib/python3/dist-packages",
		} {
			found := glob(filepath.Join(prefix, pattern))
			slices.SortStableFunc(found, newestFirst)
			folders = append(folders, found...)
		}
	}
	return unique(folders)
}

// libraries are the NVRTCs in a folder, newest first. PyTorch's older packages have a checksum in
// the name.
func libraries(folder string) (files []string) {
	for _, pattern := range []string{"libnvrtc.so*", "libnvrtc-*.so*"} {
		for _, file := range glob(filepath.Join(folder, pattern)) {
			if base := filepath.Base(file); !strings.Contains(base, "builtins") && !strings.Contains(base, ".alt.") {
				files = append(files, file)
			}
		}
	}
	slices.SortStableFunc(files, newestLibrary)
	return files
}

// builtins are the second parts of the library in a file. A name without a folder is the loader's
// business, and so are its parts.
func builtins(path string) (files []string) {
	if filepath.Base(path) == path {
		return nil
	}
	for _, file := range glob(filepath.Join(filepath.Dir(path), "libnvrtc-builtins*.so*")) {
		if !strings.Contains(filepath.Base(file), ".alt.") {
			files = append(files, file)
		}
	}
	slices.SortStableFunc(files, newestLibrary)
	return files
}

// newestLibrary orders files by the version after .so, and ignores the rest of the name (a
// checksum, say).
func newestLibrary(a, b string) int {
	_, a, _ = strings.Cut(filepath.Base(a), ".so")
	_, b, _ = strings.Cut(filepath.Base(b), ".so")
	return newestFirst(a, b)
}

// newestFirst orders names by the numbers in them, the greatest first: 12.10 comes before 12.9.
func newestFirst(a, b string) int {
	return slices.CompareFunc(numbers(b), numbers(a), cmp.Compare[int])
}

func numbers(name string) (all []int) {
	for _, digits := range strings.FieldsFunc(name, func(r rune) bool { return r < '0' || r > '9' }) {
		if n, err := strconv.Atoi(digits); err == nil {
			all = append(all, n)
		}
	}
	return all
}

// glob never fails: the patterns here are valid, and an unreadable folder has no libraries.
func glob(pattern string) []string {
	found, _ := filepath.Glob(pattern)
	return found
}

func unique(all []string) (kept []string) {
	for _, s := range all {
		if !slices.Contains(kept, s) {
			kept = append(kept, s)
		}
	}
	return kept
}

// joined lists the attempts on one line.
func joined(tried []error) error {
	texts := make([]string, len(tried))
	for i, err := range tried {
		texts[i] = err.Error()
	}
	return errors.New(strings.Join(texts, "; "))
}
