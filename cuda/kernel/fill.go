package kernel

import (
	"context"
	"errors"
	"fmt"
)

// Fill puts the cubins of specs into a directory that may be carried to other machines, and named in WEFT_CACHE there. It loads
// them as [Cache.LoadAll] does, so the machine needs no GPU, and takes what the cache has. Entries that are in the directory and in order stay
// as they are. Who fills a directory for others must see to it that it belongs to them or to root where it is used.
//
// Some specs' failure does not keep the others out.
func (c *Cache) Fill(ctx context.Context, dir string, specs []Spec) error {
	d, err := makeDirectory(dir, 0o755)
	if err != nil {
		return fmt.Errorf("fill kernel cache %s: %w", dir, err)
	}
	defer d.close()
	cubins, err := c.LoadAll(ctx, specs)
	errs := []error{err}
	for _, cubin := range cubins {
		if cubin.Size() == 0 {
			continue // one that failed
		}
		if _, _, err := d.read(cubin.Key); err == nil {
			continue
		}
		if err := d.write(cubin, 0o644, c.rename); err != nil {
			errs = append(errs, fmt.Errorf("fill kernel cache %s: kernel %s for %s: %w", dir, cubin.Name, cubin.Arch, err))
		}
	}
	return errors.Join(errs...)
}
