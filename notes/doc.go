// Package notes is the format of the records that environments leave in git
// notes, and access to the notes refs.
//
// Vocabulary:
//
//   - A note is the text that a notes ref keeps for one commit.
//   - A [Record] is one block of a note of refs/notes/env: one exec. Its headers
//     are in the style of a git object, a blank line follows, then the output
//     indented by four spaces. [Record.Encode] and [Parse] are inverse.
//   - A [State] is one line of a note of refs/notes/env-state: what another
//     machine needs to rebuild an environment.
//   - A [Ref] is a notes ref. It reads any layout git has written.
//
// Notes are merged by git without knowledge of the format, by concatenation or
// by lines, and people edit them. Therefore readers are tolerant: foreign text
// is passed over, a block whose id was seen before is dropped, unknown headers
// are kept. And writers only ever append: what is in a note stays, byte for
// byte.
//
// Nothing in a note can drive a terminal: control characters are made visible.
// The whole output, byte for byte, is a blob that the record names.
package notes
