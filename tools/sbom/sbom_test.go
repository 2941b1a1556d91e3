package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"
)

// A bill names every file and every module of the programs inside, with licences, and is the same
// each time.
func TestBill(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	folder := t.TempDir()
	artifact := filepath.Join(folder, "weft.whl")
	if err := os.WriteFile(artifact, []byte("a wheel"), 0o600); err != nil {
		t.Fatal(err)
	}
	texts := make([]string, 2)
	for i := range texts {
		file := filepath.Join(folder, "bill.json")
		err := writeBill(file, "../..", "0123", time.Unix(1000, 0).UTC(), []string{artifact + "=" + self, artifact})
		if err != nil {
			t.Fatal(err)
		}
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		texts[i] = string(text)
	}
	if texts[0] != texts[1] {
		t.Errorf("bills differ:\n%s\n%s", texts[0], texts[1])
	}
	var d document
	if err := json.Unmarshal([]byte(texts[0]), &d); err != nil {
		t.Fatal(err)
	}
	version, err := os.ReadFile("../../VERSION")
	if err != nil {
		t.Fatal(err)
	}
	m := d.Metadata
	if m.Component.Version != strings.TrimSpace(string(version)) || m.Timestamp != "1970-01-01T00:16:40Z" {
		t.Errorf("%+v", m)
	}
	modules, err := modulesOf([]string{self})
	if err != nil {
		t.Fatal(err)
	}
	if len(d.Components) != 2+len(modules) {
		t.Errorf("%d components, want 2 files and %d modules", len(d.Components), len(modules))
	}
	for _, c := range d.Components {
		if len(c.Licences) != 1 || c.Licences[0].License.ID == "" {
			t.Errorf("%s has no licence", c.Name)
		}
	}
	var needs []string
	for _, m := range modules {
		needs = append(needs, purl(m))
	}
	if got := d.Dependencies[0]; got.Ref != "weft.whl" || !reflect.DeepEqual(got.DependsOn, needs) {
		t.Errorf("%+v", got)
	}
}

func TestIdentify(t *testing.T) {
	for text, want := range map[string]string{
		"Apache License\n      Version 2.0, January 2004":                                      "Apache-2.0",
		"Permission is hereby granted, free of charge, to any\nperson obtaining a copy":        "MIT",
		"Redistribution and use in source and binary\nforms ... Neither the name of":           "BSD-3-Clause",
		"Redistribution and use in source and binary forms, with or without modification, ...": "BSD-2-Clause",
		"All rights reserved.": "",
	} {
		if got := identify(text); got != want {
			t.Errorf("%q is %q, want %q", text, got, want)
		}
	}
}

func TestNotices(t *testing.T) {
	l := licences{goItself: {"BSD-3-Clause", "Go's text\n"}, "example.org/a": {"MIT", "A's text\n"}}
	got := l.notices([]module{{path: "example.org/a", version: "v1.0.0"}, {path: goItself, version: "1.26"}})
	for _, want := range []string{
		"example.org/a v1.0.0 (MIT)\n\nA's text\n",
		"standard library 1.26 (BSD-3-Clause)\n\nGo's text\n",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("no %q in\n%s", want, got)
		}
	}
}
