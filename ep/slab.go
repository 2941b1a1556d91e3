package ep

// slab makes what operations return, many at a time. None is used twice: who releases one again
// must not release another's.
type slab[T any] struct{ left []T }

func (s *slab[T]) take() *T {
	if len(s.left) == 0 {
		s.left = make([]T, 32)
	}
	v := &s.left[0]
	s.left = s.left[1:]
	return v
}
