package main

import (
	"os"
	"strings"
	"testing"
)

const loom = `
#ifndef WEFT_H
#define WEFT_H
#include <stddef.h>
#ifdef __cplusplus
extern "C" {
#endif
#define WEFT_DAYS 7
#define WEFT_RELEASE "1.0"
#define WEFT_ALL ((weft_line) ~(uintptr_t)0)

typedef enum weft_engine { WEFT_HOST = 0, WEFT_GPU = 1 } weft_engine;
typedef enum weft_status { WEFT_OK = 0 } weft_status;

typedef struct weft_loom_s *weft_loom; /* a handle */
typedef void *weft_line;

/* How threads cross. */
typedef enum weft_weave {
	WEFT_PLAIN_WEAVE = 0, /* over one, under one */
	WEFT_TWILL_WEAVE = 1
} weft_weave;

typedef int (*weft_snap_fn)(void *context, const char *line);

typedef struct weft_loom_options {
	size_t size;
	int32_t width, weave;
	const void *spare[WEFT_DAYS];
	weft_snap_fn snap;
	int32_t added; /* later */
} weft_loom_options;

int weft_looms(void);

weft_status weft_loom_run(weft_loom loom, weft_line line, const weft_loom_options *options);
#endif
`

// What is declared is in all mirrors, and nothing else has to be written.
func TestMirrors(t *testing.T) {
	h, err := parse("weft.h", loom)
	if err != nil {
		t.Fatal(err)
	}
	sizes, err := h.goSizes(firstSizes("least weft_loom_options 80\n"))
	if err != nil {
		t.Fatal(err)
	}
	for what, texts := range map[string][]string{
		sizes: {"\tcase *C.weft_loom_options:\n\t\treturn 80\n"},
		h.shim(map[string]bool{"goweft_loom_run": true}): {
			"weft_status weft_loom_run(weft_loom loom, weft_line line, const weft_loom_options *options) {\n",
			"CALL(goweft_loom_run(ID(loom), line, (weft_loom_options *)options, libweft_timeout));",
			"\tcase WEFT_OK:\n\t\treturn \"WEFT_OK\";\n",
		},
		h.python(): {
			"from ctypes import CFUNCTYPE, c_char_p, c_int, c_int32, c_size_t, c_void_p\n",
			"\nDAYS = 7\nALL = 2**64 - 1\nRELEASE = \"1.0\"\nHOST = 0\nGPU = 1\n",
			"class Weave(Choice):\n    \"\"\"How threads cross.\"\"\"\n\n    plain = 0\n    \"\"\"over one, " +
				"under one\"\"\"\n    twill = 1\n",
			"SnapFunction = CFUNCTYPE(c_int, c_void_p, c_char_p)\n",
			"        (\"weave\", c_int32),\n        (\"spare\", c_void_p * 7),\n        (\"snap\", " +
				"SnapFunction),\n        (\"added\", c_int32),\n    )\n",
			"    \"weft_looms\": (),\n    \"weft_loom_run\": (c_void_p, c_void_p, c_void_p),\n",
		},
	} {
		for _, text := range texts {
			if !strings.Contains(what, text) {
				t.Errorf("no %q in\n%s", text, what)
			}
		}
	}
	if got := h.shim(nil); strings.Contains(got, "weft_loom_run") {
		t.Errorf("a function that C implements is passed on to Go:\n%s", got)
	}
	// 8 + 2*4 + 7*8 + 8 + 4, and 4 to the next multiple of 8.
	if sizes, err = h.goSizes(nil); err != nil || !strings.Contains(sizes, "return 88\n") {
		t.Errorf("a new struct: %v\n%s", err, sizes)
	}
	if _, err := h.goSizes(map[string]uint64{"weft_loom_options": 96}); err == nil ||
		!strings.Contains(err.Error(), "never shrink") {
		t.Errorf("a struct that has shrunk: %v", err)
	}
}

// The header's number is that of VERSION.
func TestReleased(t *testing.T) {
	text, err := released(loom, "2.3.4-rc.1")
	if err != nil || !strings.Contains(text, "\n#define WEFT_RELEASE \"2.3.4-rc.1\"\n") {
		t.Errorf("%v\n%s", err, text)
	}
	if _, err := released("#define WEFT_DAYS 7\n", "1.0"); err == nil {
		t.Error("a header without the number passes")
	}
}

// What the parser does not know it refuses, with the line.
func TestParseRefuses(t *testing.T) {
	for declaration, want := range map[string]string{
		"int loom(void);":                            `"loom"`,
		"long weft_loom(void);":                      "type long",
		"int weft_loom(int);":                        `")", want a name`,
		"int weft_loom(void)":                        `"", want ";"`,
		"static int weft_loom(void);":                "type static",
		"#pragma once":                               "# pragma once",
		"#define WEFT_SIZE (1 + 2)":                  "want a number",
		"#include \"other.h\"":                       "other.h",
		"#ifdef __cplusplus\nclass\n#endif":          "for C++ only",
		"typedef int weft_int;":                      "want a pointer",
		"typedef union weft_u { int32_t a; } u;":     "type union",
		"typedef struct weft_s weft_s;":              `"weft_s", want "{"`,
		"typedef struct weft_s { int32_t a; } w;":    "begins with something else than size_t size",
		"typedef struct weft_s { int a; } weft_s;":   "type int",
		"typedef struct weft_s { size_t size: 1;":    `":", want ";"`,
		"typedef struct weft_s_s *weft_other;":       "a handle weft_other of struct weft_s_s",
		"typedef enum weft_e { WEFT_A } weft_e;":     `"}", want "="`,
		"typedef enum weft_e { WEFT_A = -1 } w;":     `"-", want a number`,
		"typedef enum weft_e { WEFT_A = 1 } weft_f;": `"weft_f", want "weft_e"`,
		"typedef enum weft_loom { WEFT_A = 1 } weft_loom;\ntypedef void *weft_loom;": "declared already",
		"/* never closed": "comment not terminated",
	} {
		if _, err := parse("weft.h", "\n"+declaration); err == nil || !strings.Contains(err.Error(), want) ||
			!strings.HasPrefix(err.Error(), "weft.h:") {
			t.Errorf("%s: %v, want %s", declaration, err, want)
		}
	}
}

func FuzzParse(f *testing.F) {
	text, err := os.ReadFile("../../clib/weft.h")
	if err != nil {
		f.Fatal(err)
	}
	f.Add(string(text))
	f.Add(loom)
	f.Fuzz(func(t *testing.T, text string) {
		h, err := parse("weft.h", text)
		if err != nil {
			return
		}
		h.python()
		h.shim(nil)
		if _, err := h.goSizes(nil); err != nil {
			t.Error(err)
		}
	})
}
