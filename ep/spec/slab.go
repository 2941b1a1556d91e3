package spec

// Slab makes what operations return, many at a time. None is used twice: who releases one again
// must not release another's.
type Slab[T any] struct{ left []T }

func (s *Slab[T]) Take() *T {
	if len(s.left) == 0 {
		s.left = make([]T, 32)
	}
	v := &s.left[0]
	s.left = s.left[1:]
	return v
}
