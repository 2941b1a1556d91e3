package kernel

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"time"
)

// Options say where a cache keeps cubins and how it compiles. The zero value has the defaults.
type Options struct {
	// Compiler opens the compiler, when something must be compiled for the first time and never
	// again. Nil means [NVRTC].
	Compiler func() (Compiler, error)
	// Dir is read and written. Empty means WEFT_CACHE_DIR, or else weft/kernels in the user's cache
	// directory.
	Dir string
	// ReadOnly directories are looked at before Dir, in order. Nil means those that WEFT_CACHE
	// lists, separated as PATH is.
	ReadOnly []string
	// Parallel bounds how many kernels are compiled at once by this process. Zero means as many as
	// it has processors.
	Parallel int
	// Logger gets problems of directories and entries and, at level Debug, compilations. Nil logs
	// nothing.
	Logger *slog.Logger
}

// Cache gives cubins for specs. It is safe for concurrent use, holds nothing open and needs no
// closing. It keeps loaded kernels in memory.
type Cache struct {
	*store
	logger *slog.Logger
	warned *sync.Map // the directory problems that were logged
}

// store is the part of a cache that copies with another logger share.
type store struct {
	compiler func() (Compiler, error)
	dir      string // empty: there is none
	noDir    error  // why
	readOnly []string
	slots    chan struct{}

	// The system's functions, and how long to wait for another process. Tests make it fail.
	flock    func(*os.File) (bool, error)
	rename   func(d *os.Root, from, to string) error
	patience time.Duration

	mu       sync.Mutex
	loaded   map[Key]Cubin
	searches map[Key]*search
}

// New makes a cache. It touches no file.
func New(o Options) *Cache {
	c := &store{
		dir:      o.Dir,
		readOnly: o.ReadOnly,
		flock:    flock,
		rename:   (*os.Root).Rename,
		patience: time.Minute,
		loaded:   map[Key]Cubin{},
		searches: map[Key]*search{},
	}
	open := o.Compiler
	if open == nil {
		open = NVRTC
	}
	c.compiler = sync.OnceValues(func() (Compiler, error) {
		compiler, err := open()
		if err != nil {
			return nil, noCompiler(err)
		}
		return compiler, nil
	})
	if o.Parallel <= 0 {
		o.Parallel = runtime.GOMAXPROCS(0)
	}
	c.slots = make(chan struct{}, o.Parallel)
	if c.dir == "" {
		c.dir, c.noDir = userDir()
	}
	if c.readOnly == nil {
		for _, dir := range filepath.SplitList(os.Getenv("WEFT_CACHE")) {
			if dir != "" {
				c.readOnly = append(c.readOnly, dir)
			}
		}
	}
	return (&Cache{store: c}).WithLogger(o.Logger)
}

// WithLogger returns the same cache, with its directories and its memory, for requests that use
// another logger; nil logs nothing. If requests share a search, the first one's logger gets the
// messages.
func (c *Cache) WithLogger(l *slog.Logger) *Cache {
	if l == nil {
		l = slog.New(slog.DiscardHandler)
	}
	return &Cache{store: c.store, logger: l, warned: new(sync.Map)}
}

func userDir() (string, error) {
	if dir := os.Getenv("WEFT_CACHE_DIR"); dir != "" {
		return dir, nil
	}
	dir, err := os.UserCacheDir()
	if err != nil {
		return "", err
	}
	return filepath.Join(dir, "weft", "kernels"), nil
}

// Dir is the directory that the cache writes, or empty if there is none.
func (c *Cache) Dir() string { return c.dir }

// Load gives the cubin of a spec: from memory, from a directory, or compiled. It returns when the
// context ends. Its errors are [*Error].
func (c *Cache) Load(ctx context.Context, s Spec) (Cubin, error) {
	cubin, err := c.load(ctx, s)
	if err != nil {
		return Cubin{}, err
	}
	return cubin, nil
}

// LoadAll loads several specs at once, and returns their cubins in the same order. One that fails
// leaves the zero Cubin and does not keep the others from being loaded. The error has an [*Error]
// for each that failed.
func (c *Cache) LoadAll(ctx context.Context, specs []Spec) ([]Cubin, error) {
	cubins, errs := make([]Cubin, len(specs)), make([]*Error, len(specs))
	var all sync.WaitGroup
	for i, s := range specs {
		all.Go(func() { cubins[i], errs[i] = c.load(ctx, s) })
	}
	all.Wait()
	return cubins, joined(errs)
}

func (c *Cache) load(ctx context.Context, s Spec) (Cubin, *Error) {
	err := s.check()
	if err == nil {
		var cubin Cubin
		if cubin, err = c.share(ctx, s.Key(), s); err == nil {
			return cubin, nil
		}
	}
	return Cubin{}, &Error{Name: s.Name, Arch: s.Arch, Err: err}
}

// share waits for the search for a key, and begins it if there is none.
func (c *Cache) share(ctx context.Context, key Key, spec Spec) (Cubin, error) {
	c.mu.Lock()
	if cubin, ok := c.loaded[key]; ok {
		c.mu.Unlock()
		return cubin, nil
	}
	if ctx.Err() != nil {
		c.mu.Unlock()
		return Cubin{}, context.Cause(ctx)
	}
	s := c.searches[key]
	if s == nil {
		s = &search{cache: c, key: key, spec: spec.clone(), done: make(chan struct{})}
		// All requests that wait share it, so it does not end with any one context.
		var own context.Context
		own, s.cancel = context.WithCancel(context.WithoutCancel(ctx))
		c.searches[key] = s
		go c.run(own, s)
	}
	s.waiters++
	c.mu.Unlock()

	select {
	case <-s.done:
		return s.cubin, s.err
	case <-ctx.Done():
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if s.waiters--; s.waiters == 0 {
		// No request waits any more. The next request begins anew.
		s.cancel()
		if c.searches[key] == s {
			delete(c.searches, key)
		}
	}
	return Cubin{}, context.Cause(ctx)
}

func (c *Cache) run(ctx context.Context, s *search) {
	defer s.cancel()
	s.cubin, s.err = s.find(ctx)
	c.mu.Lock()
	if s.err == nil {
		c.loaded[s.key] = s.cubin
	}
	if c.searches[s.key] == s {
		delete(c.searches, s.key)
	}
	c.mu.Unlock()
	close(s.done)
}

// warnOnce logs a directory's problem the first time.
func (c *Cache) warnOnce(message, dir string, err error) {
	if _, warned := c.warned.LoadOrStore(message+"\x00"+dir, true); !warned {
		c.logger.Warn(message, "dir", dir, "err", err)
	}
}
