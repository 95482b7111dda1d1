import { type Block, outline, type Value } from './outline.ts'
import type { Snapshot } from './snapshot.ts'
import { inLine, legible, pretty } from './text.ts'

/** Every character that means something in Markdown, its tables, its HTML, or makes addresses links. */
const escaped = (text: string): string => text.replace(/[\\`*_{}[\]()<>#+\-.!|&~:=@^$]/g, '\\$&')

const oneLine = (text: string): string => escaped(inLine(text))

/** A code span in fences that its text does not have; within a table its bars are escaped. */
function span(text: string): string {
  const shown = inLine(text).replaceAll('|', '\\|')
  const fence = '`'.repeat(longestRun(shown) + 1)
  return fence.length > 1 ? `${fence} ${shown} ${fence}` : `${fence}${shown}${fence}`
}

const longestRun = (text: string): number => Math.max(0, ...Array.from(text.matchAll(/`+/g), ([run]) => run.length))

function valueText(value: Value): string {
  if (value === null) return ''
  if (typeof value === 'string') return oneLine(value)
  return 'code' in value ? span(value.code) : oneLine(value.url)
}

const row = (cells: readonly string[]): string => `| ${cells.join(' | ')} |`

const table = (head: readonly string[], rows: readonly (readonly Value[])[]): string =>
  [row(head), row(head.map(() => '---')), ...rows.map(cells => row(cells.map(valueText)))].join('\n')

/** Lines of a record as a quotation: an empty one ends nothing, and none begins a block of its own. */
const quoted = (text: string): string =>
  legible(text)
    .split('\n')
    .map(each => `> ${escaped(each.trim())}`.trimEnd())
    .join('  \n')

function fenced(text: string): string {
  const fence = '`'.repeat(Math.max(3, longestRun(text) + 1))
  return `${fence}json\n${text}\n${fence}`
}

const indented = (text: string, width: number): string => text.replace(/^(?=.)/gm, ' '.repeat(width)).slice(width)

function blockText(block: Block): string {
  if ('heading' in block) return `${'#'.repeat(block.level)} ${oneLine(block.heading)}`
  if ('facts' in block) return table(['', ''], block.facts)
  if ('rows' in block) return table(block.head, block.rows)
  if ('text' in block) return quoted(block.text)
  if ('data' in block) return fenced(pretty(block.data))
  if ('note' in block) return `*${block.note}*`
  return block.steps
    .map(({ title, blocks }, index) => {
      const marker = `${index + 1}. `
      return marker + indented([`**${oneLine(title)}**`, ...blocks.map(blockText)].join('\n\n'), marker.length)
    })
    .join('\n\n')
}

/** An export as Markdown that can be printed as it is: nothing of a record is read as Markdown or HTML. */
export const markdownOf = (snapshot: Snapshot): string => `${outline(snapshot).map(blockText).join('\n\n')}\n`
