package trace

// Trace is the files of a job on one axis of time.
type Trace struct {
	Files []*File
}

// Align puts the events of files on one axis of time.
func Align(files []*File) (*Trace, error) { return &Trace{Files: files}, nil }
