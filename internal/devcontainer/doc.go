// Package devcontainer reads the settings of an environment from a project's
// devcontainer.json, for projects that have no .gitenv.
//
// Each field of the specification (https://containers.dev) becomes settings, or is
// refused by its name and line, or is listed as one that is not used here, such as
// what concerns editors. None is dropped in silence.
package devcontainer
