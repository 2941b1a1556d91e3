package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// licences are the licences of modules, by path.
type licences map[string]licence

type licence struct {
	id   string // of SPDX
	text string
}

// readLicences finds them in the folders in which Go keeps the modules of the repository.
func readLicences(root string, modules []module) (licences, error) {
	folders, err := moduleFolders(root, modules)
	if err != nil {
		return nil, err
	}
	l := licences{}
	for _, m := range modules {
		text, err := licenceIn(folders[m.path])
		if m.path == goItself && err != nil {
			// Distributions keep Go's licence elsewhere; that of its own modules is the same.
			text, err = licenceIn(folders[goModule])
		}
		if err != nil {
			return nil, fmt.Errorf("module %s: %w", m.path, err)
		}
		id := identify(text)
		if id == "" {
			return nil, fmt.Errorf("module %s has a licence that is not known: read it, and add it to identify", m.path)
		}
		l[m.path] = licence{id, text}
	}
	return l, nil
}

// goModule is a module of Go's own that every program here has.
const goModule = "golang.org/x/sys"

// moduleFolders asks for no module that was not built, so it needs no network where Go has built.
func moduleFolders(root string, modules []module) (map[string]string, error) {
	list := exec.Command("go", "list", "-m", "-json", goModule)
	for _, m := range modules {
		if m.path != goItself && m.path != goModule {
			list.Args = append(list.Args, m.path)
		}
	}
	list.Dir = root
	out, err := list.Output()
	if err != nil {
		return nil, fmt.Errorf("go list: %w", err)
	}
	folders := map[string]string{}
	for d := json.NewDecoder(strings.NewReader(string(out))); ; {
		var m struct{ Path, Dir string }
		switch err := d.Decode(&m); {
		case errors.Is(err, io.EOF):
			goroot, err := exec.Command("go", "env", "GOROOT").Output()
			folders[goItself] = strings.TrimSpace(string(goroot))
			return folders, err
		case err != nil:
			return nil, err
		}
		folders[m.Path] = m.Dir
	}
}

func licenceIn(folder string) (string, error) {
	if folder == "" {
		return "", errors.New("not among the modules that Go keeps: run go mod download")
	}
	for _, name := range []string{"LICENSE", "LICENSE.txt", "LICENSE.md", "UNLICENSE", "COPYING"} {
		text, err := os.ReadFile(filepath.Join(folder, name))
		if err == nil {
			return string(text), nil
		}
	}
	return "", fmt.Errorf("no licence in %s", folder)
}

// identify is the SPDX name of a licence, by what only its text says. It knows those whose terms have
// been read: all ask for no more than their text in the release.
func identify(text string) string {
	text = strings.Join(strings.Fields(text), " ")
	has := func(s string) bool { return strings.Contains(text, s) }
	redistribution := has("Redistribution and use in source and binary forms")
	switch {
	case has("Apache License Version 2.0"):
		return "Apache-2.0"
	case has("Permission is hereby granted, free of charge, to any person obtaining a copy"):
		return "MIT"
	case redistribution && has("Neither the name of"):
		return "BSD-3-Clause"
	case redistribution:
		return "BSD-2-Clause"
	case has("This is free and unencumbered software released into the public domain"):
		return "Unlicense"
	}
	return ""
}

// notices is the text that goes with programs.
func (l licences) notices(modules []module) string {
	var b strings.Builder
	b.WriteString("Weft's programs and libraries contain the work of others, under these licences.\n")
	for _, m := range modules {
		name := m.path
		if name == goItself {
			name = "Go, its runtime and standard library"
		}
		fmt.Fprintf(&b, "\n%s\n%s %s (%s)\n\n%s\n", strings.Repeat("-", 80), name, m.version, l[m.path].id,
			strings.TrimSpace(l[m.path].text))
	}
	return b.String()
}
