package doctor

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/weftgo/weft/cuda/kernel"
	"github.com/weftgo/weft/cuda/nvrtc"
)

// Compiler is the NVRTC that would compile GPU kernels.
type Compiler struct {
	Path    string `json:"path"` // empty: none
	Version string `json:"version"`
	Err     string `json:"error,omitempty"`
}

func compiler() Compiler {
	c, err := nvrtc.Open()
	if err != nil {
		return Compiler{Err: err.Error()}
	}
	return Compiler{Path: c.Path(), Version: c.Version().String()}
}

// Cache is a directory of compiled kernels.
type Cache struct {
	Dir     string    `json:"dir"`
	Written bool      `json:"written"` // the user's own; the others, which WEFT_CACHE names, are read only
	Absent  bool      `json:"absent"`  // it does not exist
	Err     string    `json:"error,omitempty"`
	Kernels int       `json:"kernels"` // that are in order
	Refused []Refusal `json:"refused"` // those that are not
}

// Refusal is an entry of a cache that is not believed, and why.
type Refusal struct {
	Path string `json:"path"`
	Err  string `json:"error"`
}

// caches are the directories in the order in which they are looked at.
func caches() []Cache {
	var all []Cache
	for _, dir := range filepath.SplitList(os.Getenv("WEFT_CACHE")) {
		if dir != "" {
			all = append(all, cache(dir, false))
		}
	}
	if dir := kernel.New(kernel.Options{}).Dir(); dir != "" {
		all = append(all, cache(dir, true))
	}
	return all
}

func cache(dir string, written bool) Cache {
	c := Cache{Dir: dir, Written: written, Refused: []Refusal{}}
	entries, err := kernel.List(dir)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		c.Absent = true
	case err != nil:
		c.Err = err.Error()
	}
	for _, e := range entries {
		if e.Err != nil {
			c.Refused = append(c.Refused, Refusal{e.Path, e.Err.Error()})
			continue
		}
		c.Kernels++
	}
	return c
}
