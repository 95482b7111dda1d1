import { EXIT, Failure, UsageError } from './failure.ts'
import { isId } from './ids.ts'
import { isTerminal, type OutputSettings, printLine, visible, write } from './terminal.ts'

type Item = Record<string, unknown>

const UNITS: [Intl.RelativeTimeFormatUnit, number][] = [
  ['day', 86_400],
  ['hour', 3600],
  ['minute', 60],
  ['second', 1],
]
const TIME = /^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z$/

/** Returns the value at a path such as `output.parts[0].text`; undefined without one. */
export function valueAt(value: unknown, path: string): unknown {
  let node: any = value
  for (const [, name, index] of path.matchAll(/([^.[\]]+)|\[(\d+)\]/g)) {
    if (node === null || typeof node !== 'object') return undefined
    node = node[name ?? Number(index)]
  }
  return node
}

/** Returns a time as "3 minutes ago", or in UTC. */
export function timeText(time: string, { isUtc }: Pick<OutputSettings, 'isUtc'>, now = Date.now()): string {
  if (isUtc) return time
  const seconds = (Date.parse(time) - now) / 1000
  const [unit, size] = UNITS.find(([, length]) => Math.abs(seconds) >= length) ?? UNITS[3]
  return new Intl.RelativeTimeFormat('en', { numeric: 'auto' }).format(Math.trunc(seconds / size), unit)
}

function cellText(value: unknown, settings: OutputSettings): string {
  if (value === undefined || value === null) return ''
  if (typeof value === 'string') return TIME.test(value) ? timeText(value, settings) : visible(value)
  if (Array.isArray(value) && value.every(each => typeof each !== 'object')) return visible(value.join(','))
  return visible(typeof value === 'object' ? JSON.stringify(value) : String(value))
}

/** Prints lists as a table whose columns are as wide as the first rows need. IDs are never cut. */
export class Table {
  readonly #columns: readonly string[]
  readonly #settings: OutputSettings
  #widths: number[] | null = null

  constructor(columns: readonly string[], settings: OutputSettings) {
    this.#columns = columns
    this.#settings = settings
  }

  /** @throws UsageError for a requested column that no item has */
  async print(items: readonly unknown[]): Promise<void> {
    this.#refuseUnknown(items)
    const rows = items.map(item => this.#columns.map(column => cellText(valueAt(item, column), this.#settings)))
    const isFirst = this.#widths === null
    this.#widths ??= this.#measure(rows)
    const widths = this.#widths
    const line = (cells: readonly string[]) =>
      cells
        .map((cell, index) => (isId(cell) ? cell : cut(cell, widths[index])).padEnd(widths[index]))
        .join('  ')
        .trimEnd()
    const head = isFirst ? [line(this.#columns.map(each => each.toUpperCase()))] : []
    await write([...head, ...rows.map(line)].map(each => `${each}\n`).join(''))
  }

  #refuseUnknown(items: readonly unknown[]): void {
    const names = new Set(items.flatMap(item => Object.keys(item as Item)))
    const unknown = this.#settings.columns?.find(column => !names.has(column.split('.')[0]))
    if (unknown !== undefined)
      throw new UsageError(`no item has the field ${unknown} of --columns`, `Fields: ${[...names].join(', ')}.`)
  }

  #measure(rows: readonly string[][]): number[] {
    const widths = this.#columns.map((column, index) => Math.max(column.length, ...rows.map(row => row[index].length)))
    if (!isTerminal()) return widths
    const isFixed = this.#columns.map((_, index) => rows.some(row => isId(row[index])))
    let excess = widths.reduce((sum, width) => sum + width + 2, -2) - (process.stdout.columns || 80)
    while (excess > 0) {
      const widest = widths.reduce((best, width, at) => (!isFixed[at] && width > (widths[best] ?? 0) ? at : best), -1)
      if (widest < 0 || widths[widest] <= 8) break
      const less = Math.min(excess, Math.ceil(widths[widest] / 4), widths[widest] - 8)
      widths[widest] -= less
      excess -= less
    }
    return widths
  }
}

const cut = (text: string, width: number): string => (text.length <= width ? text : `${text.slice(0, width - 1)}…`)

/** Columns of a list without declared ones: the first fields with a plain value. */
export const columnsOf = (items: readonly unknown[]): string[] =>
  Object.entries((items[0] ?? {}) as Item)
    .filter(([, value]) => typeof value !== 'object')
    .map(([name]) => name)
    .slice(0, 6)

/** Returns a record as `key: value` lines, nested values as YAML. */
async function recordText(value: unknown, settings: OutputSettings): Promise<string> {
  if (typeof value !== 'object' || value === null) return visible(String(value ?? ''), 'lines')
  const { stringify } = await import('yaml')
  const shown = settings.isUtc ? value : withRelativeTimes(value, settings)
  return visible(stringify(shown, { lineWidth: 0, blockQuote: 'literal' }).trimEnd(), 'lines')
}

function withRelativeTimes(value: object, settings: OutputSettings): object {
  return Object.fromEntries(
    Object.entries(value).map(([name, each]) => [
      name,
      typeof each === 'string' && TIME.test(each) ? `${each} (${timeText(each, settings)})` : each,
    ]),
  )
}

/** Prints one field of a value as text. @throws Failure if it has none */
export async function printField(value: unknown, field: string): Promise<void> {
  const found = valueAt(value, field)
  if (found === undefined || found === null) throw new Failure(`the answer has no field ${field}`, EXIT.failed)
  const text = typeof found === 'object' ? JSON.stringify(found) : String(found)
  await printLine(isTerminal() ? visible(text, 'lines') : text)
}

/** Prints an answer: a table or lines for people, else its unchanged body. */
export async function printAnswer(
  data: unknown,
  body: string,
  settings: OutputSettings,
  columns?: readonly string[],
): Promise<void> {
  const items = (data as { data?: unknown })?.data
  const isList = Array.isArray(items)
  if (settings.field) {
    for (const each of isList && valueAt(data, settings.field) === undefined ? items : [data])
      await printField(each, settings.field)
    return
  }
  if (settings.format === 'jsonl')
    return write((isList ? items : [data]).map(each => `${JSON.stringify(each)}\n`).join(''))
  if (settings.format === 'json') return write(isTerminal() ? `${body}\n` : body)
  if (isList) return printTable(items, settings, columns)
  const nested = nestedList(data)
  if (!nested) return printLine(await recordText(data, settings))
  await printLine(`${await recordText(nested.rest, settings)}\n`)
  await printTable(nested.items, settings, columns)
}

async function printTable(items: unknown[], settings: OutputSettings, columns?: readonly string[]): Promise<void> {
  if (items.length > 0) await new Table(settings.columns ?? columns ?? columnsOf(items), settings).print(items)
}

/** Returns the page in an answer, such as the groups of usage, and the other fields; null without one. */
function nestedList(answer: unknown): { items: unknown[]; rest: object } | null {
  if (typeof answer !== 'object' || answer === null) return null
  const lists = Object.entries(answer).filter(([, value]) => Array.isArray(value?.data) && 'total' in value)
  if (lists.length !== 1) return null
  const [[name, { data }]] = lists
  return { items: data, rest: Object.fromEntries(Object.entries(answer).filter(([each]) => each !== name)) }
}
