import { type OutlineBlock, type OutlineStep, outlineCase, type Value } from './outline.ts'
import { interleave, prettyJson, toPrintable, toSingleLine } from './printable-text.ts'
import type { CaseSnapshot } from './snapshot.ts'

/** Escapes every character with a meaning in Markdown, tables or HTML, or in autolinks. */
const escapeMarkdown = (text: string): string => text.replace(/[\\`*_{}[\]()<>#+\-.!|&~:=@^$]/g, '\\$&')

const renderLine = (text: string): string => escapeMarkdown(toSingleLine(text))

/** Renders a code span with a fence longer than any run of backticks in the text. Escapes bars for tables. */
function renderCode(text: string): string {
  const code = toSingleLine(text).replaceAll('|', '\\|')
  const fence = '`'.repeat(longestBacktickRun(code) + 1)
  return fence.length > 1 ? `${fence} ${code} ${fence}` : `${fence}${code}${fence}`
}

function longestBacktickRun(text: string): number {
  let longest = 0
  for (const [run] of text.matchAll(/`+/g)) longest = Math.max(longest, run.length)
  return longest
}

function renderValue(value: Value): string {
  if (value === null) return ''
  if (typeof value === 'string') return renderLine(value)
  return 'code' in value ? renderCode(value.code) : renderLine(value.url)
}

const renderRow = (cells: readonly string[]): string => `| ${cells.join(' | ')} |`

function* renderTable(head: readonly string[], rows: readonly (readonly Value[])[]): Generator<string> {
  yield `${renderRow(head)}\n${renderRow(head.map(() => '---'))}`
  for (const cells of rows) yield `\n${renderRow(cells.map(renderValue))}`
}

/** Renders text as one block quote. Every line is prefixed, so that no line ends the quote or starts another block. */
const renderQuote = (text: string): string =>
  toPrintable(text)
    .split('\n')
    .map(each => `> ${escapeMarkdown(each.trim())}`.trimEnd())
    .join('  \n')

function renderCodeBlock(text: string): string {
  const fence = '`'.repeat(Math.max(3, longestBacktickRun(text) + 1))
  return `${fence}json\n${text}\n${fence}`
}

const indent = (text: string, width: number): string => text.replace(/^(?=.)/gm, ' '.repeat(width)).slice(width)

function* renderBlock(block: OutlineBlock): Generator<string> {
  if ('heading' in block) yield `${'#'.repeat(block.level)} ${renderLine(block.heading)}`
  else if ('facts' in block) yield* renderTable(['', ''], block.facts)
  else if ('rows' in block) yield* renderTable(block.head, block.rows)
  else if ('text' in block) yield renderQuote(block.text)
  else if ('data' in block) yield renderCodeBlock(prettyJson(block.data))
  else if ('note' in block) yield `*${block.note}*`
  else yield* interleave(block.steps.map(renderStep), '\n\n')
}

function* renderStep({ title, blocks }: OutlineStep, index: number): Generator<string> {
  const marker = `${index + 1}. `
  const texts = [`**${renderLine(title)}**`, ...blocks.map(block => [...renderBlock(block)].join(''))]
  yield marker + indent(texts.join('\n\n'), marker.length)
}

/** Renders an export as Markdown. Text of records is escaped. */
export function* renderMarkdown(snapshot: CaseSnapshot): Generator<string> {
  yield* interleave(outlineCase(snapshot).map(renderBlock), '\n\n')
  yield '\n'
}
