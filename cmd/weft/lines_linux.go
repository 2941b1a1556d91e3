package main

import "os"

// linesFile is a file of lines. Its old content stays until there is a line.
type linesFile struct {
	*os.File
	begun bool
}

func openLines(name string) (*linesFile, error) {
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE, 0o644)
	if err != nil {
		return nil, err
	}
	return &linesFile{File: f}, nil
}

func (f *linesFile) Write(p []byte) (int, error) {
	if !f.begun {
		if info, err := f.Stat(); err == nil && info.Mode().IsRegular() { // a pipe has nothing to lose
			if err := f.Truncate(0); err != nil {
				return 0, err
			}
		}
		f.begun = true
	}
	return f.File.Write(p)
}
