# Sourced after env.sh: writes the files by which pkg-config and CMake find the C library. They go by
# their own place, so the tree that they are in can be moved as a whole.
# shellcheck shell=sh

# package_files FOLDER LIB INCLUDE PC CMAKE [PLACE]: writes the files into the folders PC and CMAKE of a
# tree at FOLDER, whose folders LIB and INCLUDE have the libraries and the headers. PLACE is where the
# tree will stand, if not at FOLDER.
package_files() {
	version=$(cat VERSION) lib=$2 include=$3 place=${6:-$1}
	mkdir -p "$4" "$5"
	up=$(above "$1" "$4")
	package_file weft "$version" 'Tensors between the ranks of a machine-learning job' >"$4/weft.pc"
	{
		package_file nccl_ep "$version" "NCCL EP's functions over Weft"
		printf 'Libs.private: -lpthread -ldl\n'
	} >"$4/nccl_ep.pc"

	cat >"$5/weft-config.cmake" <<CMAKE
# find_package(weft) makes the targets weft::weft, the C library, and weft::nccl_ep, its NCCL EP face.
get_filename_component(_weft_prefix "\${CMAKE_CURRENT_LIST_DIR}$(above "$1" "$5")" ABSOLUTE)
foreach(_weft_name weft nccl_ep)
	if(NOT TARGET weft::\${_weft_name})
		add_library(weft::\${_weft_name} SHARED IMPORTED)
		set_target_properties(weft::\${_weft_name} PROPERTIES
			IMPORTED_LOCATION "\${_weft_prefix}/$lib/lib\${_weft_name}.so"
			IMPORTED_SONAME "lib\${_weft_name}.so"
			INTERFACE_INCLUDE_DIRECTORIES "\${_weft_prefix}/$include")
	endif()
endforeach()
unset(_weft_prefix)
unset(_weft_name)
CMAKE
	cat >"$5/weft-config-version.cmake" <<CMAKE
# Later versions serve programs of earlier ones.
set(PACKAGE_VERSION "$version")
if(NOT PACKAGE_FIND_VERSION VERSION_GREATER PACKAGE_VERSION)
	set(PACKAGE_VERSION_COMPATIBLE TRUE)
endif()
if(PACKAGE_FIND_VERSION VERSION_EQUAL PACKAGE_VERSION)
	set(PACKAGE_VERSION_EXACT TRUE)
endif()
CMAKE
}

# above TREE FOLDER: the way from a folder of a tree up to its top: "/../..".
above() {
	printf '%s' "${2#"$1"}" | sed 's|/[^/]*|/..|g'
}

# package_file NAME VERSION DESCRIPTION: a file for pkg-config. A program searches the library where
# this file was when it was linked. By a relative PKG_CONFIG_PATH that is a relative path, which leads
# nowhere from other folders, so the place of the installation comes behind it.
package_file() {
	cat <<PC
prefix=\${pcfiledir}$up
libdir=\${prefix}/$lib
includedir=\${prefix}/$include

Name: $1
Description: $3
Version: $2
Cflags: -I\${includedir}
Libs: -L\${libdir} -Wl,-rpath,\${libdir} -Wl,-rpath,$place/$lib -l$1
PC
}
