// Words of a `skep` line, as a shell takes them.

/** Return a word that the shell leaves as it is. */
export const quoted = (text: string): string =>
  /^[\w./:@-]+$/.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`;
