/**
 * Characters that are not drawn, or that change the direction or lines of others: they could hide what a text says, or
 * hide a text for a model. The two selectors of emoji styles stay.
 */
const HIDDEN = /(?![\t\n\r]|\ufe0e|\ufe0f)[\p{Cc}\p{DI}\p{Bidi_C}\u2028\u2029\ufff9-\ufffb]/gu

/** Returns a text with hidden characters made visible. */
export const visible = (text: string): string =>
  text.replace(
    HIDDEN,
    character => `⟨U+${(character.codePointAt(0) as number).toString(16).toUpperCase().padStart(4, '0')}⟩`,
  )

/** Longest Markdown that is parsed: some texts cost the square of their length. */
const MARKDOWN_MAX = 30_000
/** Twenty levels of quotes or lists: parsing costs the cube of the levels, and thousands exceed the stack. */
const NESTED = /^(?:[ \t]*(?:>[ \t]*|(?:[-+*]|\d{1,9}[.)])[ \t]+){20}|(?:\t| {4}){10}[ \t]*(?:[-+*>]|\d{1,9}[.)]))/m

/** Cells that rows of one table may have: each row is filled up to the columns of the delimiter row. */
const CELLS_MAX = 5000
const DELIMITERS = /^[-:|>+*.)\d \t]+$/

/** The most cells that a table of a Markdown text can have. */
function cellsOf(text: string): number {
  const lines = text.split(/[\r\n]/)
  const columns = lines
    .filter(line => line.includes('|') && DELIMITERS.test(line))
    .map(line => line.split(/-+/).length - 1)
  return Math.max(0, ...columns) * lines.length
}

/** Whether parsing a Markdown text could block the page. */
export const isCostlyMarkdown = (text: string): boolean =>
  text.length > MARKDOWN_MAX || NESTED.test(text) || cellsOf(text) > CELLS_MAX
