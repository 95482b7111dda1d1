import { type OutlineBlock, type OutlineStep, outlineCase, type Value } from './outline.ts'
import { inLine, interleave, prettyJson, toPrintable } from './printable-text.ts'
import type { CaseSnapshot } from './snapshot.ts'

/** Every character that means something in Markdown, its tables, its HTML, or makes addresses links. */
const escaped = (text: string): string => text.replace(/[\\`*_{}[\]()<>#+\-.!|&~:=@^$]/g, '\\$&')

const oneLine = (text: string): string => escaped(inLine(text))

/** A code span in fences that its text does not have; within a table its bars are escaped. */
function span(text: string): string {
  const shown = inLine(text).replaceAll('|', '\\|')
  const fence = '`'.repeat(longestRun(shown) + 1)
  return fence.length > 1 ? `${fence} ${shown} ${fence}` : `${fence}${shown}${fence}`
}

function longestRun(text: string): number {
  let longest = 0
  for (const [run] of text.matchAll(/`+/g)) longest = Math.max(longest, run.length)
  return longest
}

function valueText(value: Value): string {
  if (value === null) return ''
  if (typeof value === 'string') return oneLine(value)
  return 'code' in value ? span(value.code) : oneLine(value.url)
}

const row = (cells: readonly string[]): string => `| ${cells.join(' | ')} |`

function* table(head: readonly string[], rows: readonly (readonly Value[])[]): Generator<string> {
  yield `${row(head)}\n${row(head.map(() => '---'))}`
  for (const cells of rows) yield `\n${row(cells.map(valueText))}`
}

/** Lines of a record as a quotation: an empty one ends nothing, and none begins a block of its own. */
const quoted = (text: string): string =>
  toPrintable(text)
    .split('\n')
    .map(each => `> ${escaped(each.trim())}`.trimEnd())
    .join('  \n')

function fenced(text: string): string {
  const fence = '`'.repeat(Math.max(3, longestRun(text) + 1))
  return `${fence}json\n${text}\n${fence}`
}

const indented = (text: string, width: number): string => text.replace(/^(?=.)/gm, ' '.repeat(width)).slice(width)

function* pieces(block: OutlineBlock): Generator<string> {
  if ('heading' in block) yield `${'#'.repeat(block.level)} ${oneLine(block.heading)}`
  else if ('facts' in block) yield* table(['', ''], block.facts)
  else if ('rows' in block) yield* table(block.head, block.rows)
  else if ('text' in block) yield quoted(block.text)
  else if ('data' in block) yield fenced(prettyJson(block.data))
  else if ('note' in block) yield `*${block.note}*`
  else yield* interleave(block.steps.map(stepPieces), '\n\n')
}

function* stepPieces({ title, blocks }: OutlineStep, index: number): Generator<string> {
  const marker = `${index + 1}. `
  const texts = [`**${oneLine(title)}**`, ...blocks.map(block => [...pieces(block)].join(''))]
  yield marker + indented(texts.join('\n\n'), marker.length)
}

/** An export as Markdown that can be printed as it is: nothing of a record is read as Markdown or HTML. */
export function* markdownOf(snapshot: CaseSnapshot): Generator<string> {
  yield* interleave(outlineCase(snapshot).map(pieces), '\n\n')
  yield '\n'
}
