package main

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

var (
	// comment is one of the header's, with what follows up to the end of its declaration: nothing, for a heading.
	comment = regexp.MustCompile(`(?ms)^/\*(.*?)\*/\n(\n)?`)
	// declared is a function, which begins its line.
	declared = regexp.MustCompile(`(?m)^(?:const )?\w+ \*?(weft_\w+)\(`)
	margin   = regexp.MustCompile(`(?m)^[ \t]*\* ?`)
)

// cTables are the functions of weft.h, under its own headings: comments of one short sentence with nothing below.
func cTables(root string) (string, error) {
	header, err := os.ReadFile(filepath.Join(root, "clib", "weft.h"))
	if err != nil {
		return "", err
	}
	var t table
	t.WriteString("# C's interface\n")
	t.prose("The functions of [weft.h](../../clib/weft.h), which says for each what it takes, gives and owns. " +
		"[The guide](../guides/c.md) has a program.")
	heading, shown, n := "The library", "", 0
	text := string(header)
	add := func(between, says string) {
		for _, f := range declared.FindAllStringSubmatch(between, -1) {
			if heading != shown {
				fmt.Fprintf(&t, "\n## %s\n", heading)
				t.head("function")
				shown = heading
			}
			if says == "" {
				says = "The members of its struct in weft.h say what"
			}
			t.row(f[1], says)
			n++
		}
	}
	says, last := "", 0
	for _, at := range comment.FindAllStringSubmatchIndex(text, -1) {
		add(text[last:at[0]], says)
		last = at[1]
		body := strings.TrimSpace(margin.ReplaceAllString(text[at[2]:at[3]], ""))
		if alone := at[4] >= 0; alone && len(body) < 60 && strings.HasSuffix(body, ".") {
			heading, says = strings.TrimSuffix(body, "."), ""
		} else {
			says = sentence(body)
		}
	}
	add(text[last:], says)
	if n < 50 {
		return "", fmt.Errorf("%d functions in weft.h; are they still one a line?", n)
	}
	return t.String(), nil
}
