//go:build unix && !linux

package kernel

import "errors"

func (o *order) mount() error {
	if o.Mount == "" {
		return nil
	}
	return errors.ErrUnsupported
}
