package main

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// modules are those that users import.
var modules = []string{
	"weft", "weft.ep", "weft.plan", "weft.port", "weft.torch", "deep_ep", "mscclpp", "mscclpp.language", "mscclpp.ext.ep",
}

var (
	public  = regexp.MustCompile(`(?s)__all__ = \[(.*?)\]`)
	quoted  = regexp.MustCompile(`"(\w+)"`)
	defined = regexp.MustCompile(`(?m)^(class|def) (\w+)`)
	method  = regexp.MustCompile(`(?m)^    def ([a-z]\w*)\(`)
	text    = regexp.MustCompile(`(?s)^\s*(?:r?"""(.*?)""")`)
	head    = regexp.MustCompile(`^class [^\n]*?:(?: *#[^\n]*)?\n`)
	member  = regexp.MustCompile(`(?m)^    (\w+) = \d+$`)
	role    = regexp.MustCompile(":\\w+:`~?([^`]+)`")
	value   = regexp.MustCompile(`(?m)^(\w+)(?:: .*)? = .*\n(?:"""((?s:.*?))""")?`)
)

func pythonTables(root string) (string, error) {
	var t table
	t.WriteString("# Python's interface\n")
	t.prose("`help(weft)` has the rest. Arguments stand without their types and defaults. " +
		"[The guide](../guides/python.md) has programs.")
	for _, module := range modules {
		folder := filepath.Join(root, "python", filepath.Join(strings.Split(module, ".")...))
		names, found, err := moduleNames(folder)
		if err != nil {
			return "", err
		}
		t.unsaid = ""
		if !strings.HasPrefix(module, "weft") {
			t.unsaid = "As the original's"
		}
		fmt.Fprintf(&t, "\n## %s\n", module)
		t.head("name")
		for _, name := range names {
			t.python(name, found[name])
		}
	}
	return t.String(), nil
}

// moduleNames are the public names of a package in its order, and the text of each from its definition on.
func moduleNames(folder string) ([]string, map[string]string, error) {
	first := filepath.Join(folder, "__init__.py")
	if _, err := os.Stat(folder + ".py"); err == nil { // a module without a folder
		first = folder + ".py"
	}
	entry, err := os.ReadFile(first)
	if err != nil {
		return nil, nil, err
	}
	all := public.FindStringSubmatch(string(entry))
	if all == nil {
		return nil, nil, fmt.Errorf("%s has no __all__", folder)
	}
	var names []string
	for _, name := range quoted.FindAllStringSubmatch(all[1], -1) {
		names = append(names, name[1])
	}
	files := []string{first}
	for _, pattern := range []string{"*.py", "*/*.py", "../_abi.py", "../weft/*/*.py", "../../../weft/*/*.py", "_abi.py"} {
		more, err := filepath.Glob(filepath.Join(folder, filepath.FromSlash(pattern)))
		if err != nil {
			return nil, nil, err
		}
		files = append(files, more...)
	}
	found := map[string]string{}
	for i, file := range files {
		if strings.HasSuffix(file, "_abi.py") && slices.Contains(files[i+1:], file) {
			continue // structs of C, whose names are others' in Python, come last
		}
		source, err := os.ReadFile(file)
		if err != nil {
			return nil, nil, err
		}
		for _, at := range defined.FindAllSubmatchIndex(source, -1) {
			if name := string(source[at[4]:at[5]]); found[name] == "" {
				found[name] = body(string(source[at[0]:]))
			}
		}
		for _, v := range value.FindAllStringSubmatch(string(source), -1) {
			if found[v[1]] == "" {
				found[v[1]] = "= " + v[2]
			}
		}
	}
	return names, found, nil
}

// body is a definition's text up to the next one at the margin.
func body(from string) string {
	at := strings.Index(from, "\n")
	for at >= 0 {
		rest := from[at+1:]
		if rest == "" || !strings.ContainsRune(" \n)", rune(rest[0])) {
			return from[:at+1]
		}
		next := strings.Index(rest, "\n")
		if next < 0 {
			break
		}
		at += 1 + next
	}
	return from
}

// python adds a name, and the methods of a class.
func (t *table) python(name, source string) {
	switch {
	case strings.HasPrefix(source, "def "):
		arguments, says := signature(source)
		t.row(name+arguments, says)
	case strings.HasPrefix(source, "class "):
		says := sentence(docstring(head.ReplaceAllString(source, "")))
		if members := member.FindAllStringSubmatch(source, -1); members != nil {
			var names []string
			for _, m := range members {
				names = append(names, "`"+m[1]+"`")
			}
			says = strings.TrimPrefix(says+": ", ": ") + strings.Join(names, ", ")
		}
		t.row(name, says)
		for _, at := range method.FindAllStringSubmatchIndex(source, -1) {
			called, before := source[at[2]:at[3]], strings.TrimRight(source[:at[0]], "\n")
			line := before[strings.LastIndex(before, "\n")+1:]
			arguments, says := signature(source[at[0]:])
			switch strings.TrimSpace(line) {
			case "@property", "@cached_property", "@functools.cached_property":
				arguments = ""
			case "@overload":
				continue
			}
			if strings.HasSuffix(strings.TrimSpace(line), ".setter") {
				continue
			}
			t.row(name+"."+called+arguments, says)
		}
	case name == "join":
		t.row(name, "`Communicator.join`")
	case name == "ep":
		t.row(name, "The package `weft.ep`, below")
	case name == "plan", name == "port":
		t.row(name, "The module `weft."+name+"`, below")
	default:
		t.row(name, sentence(strings.TrimPrefix(source, "= ")))
	}
}

// docstring is the documentation at the beginning of a text, in Markdown.
func docstring(from string) string {
	found := text.FindStringSubmatch(from)
	if found == nil {
		return ""
	}
	return strings.ReplaceAll(strings.ReplaceAll(role.ReplaceAllString(found[1], "`$1`"), "``", "`"), `\\*`, "*")
}

// signature is the names of a function's arguments, and the first sentence of its documentation. What it has to refuse
// arguments that it does not know, on all ranks, is none.
func signature(source string) (arguments, says string) {
	_, source, _ = strings.Cut(source, "(")
	var names []string
	depth, from, in := 1, 0, byte(0)
	add := func(argument string) {
		name, _, _ := strings.Cut(argument, ":")
		name, _, _ = strings.Cut(name, "=")
		if name = strings.TrimSpace(name); name != "" && name != "self" && name != "cls" && name != "**unknown" {
			names = append(names, name)
		}
	}
	for i := range len(source) {
		c := source[i]
		switch {
		case in != 0:
			if c == in {
				in = 0
			}
		case c == '"' || c == '\'':
			in = c
		case strings.IndexByte("([{", c) >= 0:
			depth++
		case strings.IndexByte(")]}", c) >= 0:
			depth--
			if depth == 0 {
				add(source[from:i])
				_, rest, _ := strings.Cut(source[i:], ":\n")
				return "(" + strings.Join(names, ", ") + ")", sentence(docstring(rest))
			}
		case c == ',' && depth == 1:
			add(source[from:i])
			from = i + 1
		}
	}
	return "(...)", ""
}
