package kernel

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
)

// Fill puts the cubins of specs into a directory that may be carried to other machines, and named
// in WEFT_CACHE there. Entries that are in the directory and in order stay as they are, and need no
// compiler. The others are loaded as [Cache.LoadAll] does: the machine needs no GPU, and kernels of
// the cache are not compiled. Unfinished files of earlier calls are removed once they are a day
// old. A directory that is filled for other users must belong to them or to root where they use it.
//
// Some specs' failure does not keep the others out.
func (c *Cache) Fill(ctx context.Context, dir string, specs []Spec) error {
	d, err := makeDirectory(dir, 0o755)
	if err != nil {
		return fmt.Errorf("fill kernel cache %s: %w", dir, err)
	}
	defer d.close()
	d.sweep("")
	var missing []Spec
	for _, s := range specs {
		key := s.Key()
		_, _, err := d.read(key)
		if err == nil {
			continue
		}
		if !errors.Is(err, fs.ErrNotExist) {
			c.refused(dir, key, s, err)
		}
		missing = append(missing, s)
	}
	cubins, err := c.LoadAll(ctx, missing)
	errs := []error{err}
	written := map[Key]bool{}
	for _, cubin := range cubins {
		if cubin.Size() == 0 || written[cubin.Key] {
			continue // one that failed, or a duplicate
		}
		written[cubin.Key] = true
		if err := d.write(cubin, 0o644, c.rename); err != nil {
			errs = append(errs, fmt.Errorf("fill kernel cache %s: kernel %s for %s: %w", dir, cubin.Name, cubin.Arch, err))
		}
	}
	return errors.Join(errs...)
}
