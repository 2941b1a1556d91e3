// Package closer closes objects in the reverse order of their making.
package closer

import (
	"errors"
	"slices"
)

// Stack is a list of objects to close. The zero value is empty.
type Stack []func() error

// Add puts a function on the stack.
func (s *Stack) Add(f func() error) { *s = append(*s, f) }

// Close calls all functions, the last one first, and empties the stack.
func (s *Stack) Close() error {
	var errs []error
	for _, f := range slices.Backward(*s) {
		errs = append(errs, f())
	}
	*s = nil
	return errors.Join(errs...)
}
