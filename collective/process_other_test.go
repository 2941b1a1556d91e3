//go:build !linux

package collective

import "fmt"

func runChild(role string) error { return fmt.Errorf("role %q needs Linux", role) }
