package kernel

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"time"
)

// A search is for the cubin of one key. The requests of a process for that key share it.
type search struct {
	cache   *Cache
	key     Key
	spec    Spec
	waiters int // guarded by the cache's mutex
	cancel  context.CancelFunc

	done  chan struct{}
	cubin Cubin
	err   error

	looked  bool        // in the directories that are never written
	refused fs.FileInfo // the entry in the cache's own directory that was refused and logged
	alone   bool        // others have been waited for long enough
}

// Pauses between two looks at a lock that another holds.
const (
	firstPause   = time.Millisecond
	longestPause = 16 * time.Millisecond
)

// find attempts until no other process has the key's lock, or has had it for too long.
func (s *search) find(ctx context.Context) (Cubin, error) {
	c := s.cache
	var since time.Time
	for pause := firstPause; ; pause = min(2*pause, longestPause) {
		cubin, busy, err := s.attempt(ctx)
		if !busy {
			return cubin, err
		}
		if since.IsZero() {
			since = time.Now()
			c.logger.Debug("another process compiles the kernel", "kernel", s.spec.Name, "arch", s.spec.Arch)
		}
		if time.Since(since) >= c.patience {
			c.logger.Warn("another process holds the kernel's lock for too long: compiling without it",
				"kernel", s.spec.Name, "arch", s.spec.Arch, "lock", filepath.Join(c.dir,
					s.key.String()+lockSuffix), "waited", time.Since(since))
			s.alone = true
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return Cubin{}, context.Cause(ctx)
		}
	}
}

// attempt is one turn of all that takes a processor. It is busy if another process is compiling the
// kernel.
func (s *search) attempt(ctx context.Context) (cubin Cubin, busy bool, err error) {
	c := s.cache
	select {
	case c.slots <- struct{}{}:
		defer func() { <-c.slots }()
	case <-ctx.Done():
		return Cubin{}, false, context.Cause(ctx)
	}
	if !s.looked {
		s.looked = true
		if cubin, ok := s.elsewhere(); ok {
			return cubin, false, nil
		}
	}
	d, err := c.own()
	if err != nil {
		c.warnOnce("kernel cache not used", c.dir, err)
		cubin, err = c.compile(ctx, s.key, s.spec)
		return cubin, false, err
	}
	defer d.close()
	if cubin, ok := s.read(d); ok {
		return cubin, false, nil
	}
	unlock, busy := s.lock(d)
	if busy {
		return Cubin{}, true, nil
	}
	defer unlock()
	// The last holder of the lock may have written the entry since the last look.
	if cubin, ok := s.read(d); ok {
		return cubin, false, nil
	}
	if cubin, err = c.compile(ctx, s.key, s.spec); err != nil {
		return Cubin{}, false, err
	}
	if err := d.write(cubin, 0o600, c.rename); err != nil {
		c.warnOnce("kernel cache cannot be written", c.dir, err)
	}
	return cubin, false, nil
}

// own opens the directory that the cache writes, and makes it if it is not there.
func (c *Cache) own() (*directory, error) {
	if c.noDir != nil {
		return nil, c.noDir
	}
	return makeDirectory(c.dir, 0o700)
}

// elsewhere looks in the directories that are never written.
func (s *search) elsewhere() (Cubin, bool) {
	c := s.cache
	for _, path := range c.readOnly {
		d, err := openDirectory(path)
		if err != nil {
			c.warnOnce("kernel cache not used", path, err)
			continue
		}
		cubin, _, err := d.read(s.key)
		d.close()
		if err == nil {
			return cubin, true
		}
		if !errors.Is(err, fs.ErrNotExist) {
			c.refused(path, s.key, s.spec, err)
		}
	}
	return Cubin{}, false
}

// read looks in the cache's own directory.
func (s *search) read(d *directory) (Cubin, bool) {
	if s.refused != nil {
		// While another process compiles this is asked again and again, and the file is not read
		// each time.
		if info, err := d.root.Lstat(s.key.String() + entrySuffix); err == nil && os.SameFile(info, s.refused) {
			return Cubin{}, false
		}
	}
	cubin, info, err := d.read(s.key)
	if err == nil {
		return cubin, true
	}
	if !errors.Is(err, fs.ErrNotExist) {
		s.refused = info
		s.cache.refused(d.path, s.key, s.spec, err)
	}
	return Cubin{}, false
}

// refused logs why a kernel is compiled although a directory has an entry for it.
func (c *Cache) refused(dir string, key Key, spec Spec, err error) {
	c.logger.Warn("kernel cache entry refused", "entry", filepath.Join(dir, key.String()+entrySuffix), "kernel",
		spec.Name, "arch", spec.Arch, "err", err)
}

// lock takes the key's lock, or reports that another process has it. Where there are no locks it
// goes on without one.
func (s *search) lock(d *directory) (unlock func(), busy bool) {
	c, without := s.cache, func() {}
	if s.alone {
		return without, false
	}
	f, err := d.lockFile(s.key)
	if err != nil {
		c.warnOnce("kernel cache cannot be written", d.path, err)
		return without, false
	}
	taken, err := c.flock(f)
	if err != nil {
		c.warnOnce("kernel cache cannot be locked: every process compiles for itself", d.path, err)
	}
	if !taken {
		_ = f.Close()
		return without, err == nil
	}
	d.sweep(s.key.String())
	return func() {
		funlock(f)
		_ = f.Close()
	}, false
}
