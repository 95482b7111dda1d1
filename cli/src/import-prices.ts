import { Caller } from './call.ts'
import { loadCommands } from './commands.ts'
import { Connection } from './connection.ts'
import { EXIT, type Failure, UsageError } from './failure.ts'
import { interruption } from './interrupt.ts'
import { addConnectionOptions, createParser, parseWith } from './parse.ts'
import { type BookPrice, pricesOf, readPriceBook } from './price-book.ts'
import { reportError } from './report.ts'
import { outputSettings } from './run.ts'
import { canAsk, note, printLine, requireYes, visible } from './terminal.ts'

/** A price of the service. */
type Price = BookPrice & { effective_from: string; effective_until: string | null; resource: string | null }

type Change = { price: BookPrice; effective_from: string; from: number | null }

/** Most prices of one request. */
const MAX_PRICES = 500

/** Delay of prices that follow others; must exceed the difference of the clocks and the time to confirm. */
const LEAD_MS = 5 * 60_000

const collect = (value: string, previous: string[] = []): string[] => [...previous, value]

/** `muster prices import`: shows how the prices of a book differ from the prices in effect, and adds them. */
export async function importPricesCommand(args: string[]): Promise<number> {
  const parser = addConnectionOptions(createParser('muster prices import'))
    .description('Add the prices of a price book as prices of the deployment, or with --project of a project.')
    .option('--book [file]', 'the price book; by default the book of this program')
    .option('--vendor <name>', 'only the prices of this vendor; repeatable', collect)
    .option('--plan', 'only print what would change')
    .option('--yes', 'add them without a confirmation')
  if (args.includes('--help')) {
    await printLine(parser.helpInformation())
    return EXIT.done
  }
  const { options } = parseWith(parser, args)
  const { book: file, vendor = [], plan, yes, ...connectionOptions } = options
  if (file === undefined) throw new UsageError('a price book is required', 'Add --book, or --book <file>.')
  const book = readPriceBook(file === true ? undefined : file)
  const wanted = pricesOf(book, vendor)
  const connection = await Connection.open(connectionOptions)
  const settings = outputSettings(options, connection.settings.output)
  try {
    const caller = new Caller(connection, loadCommands())
    // Not the project of the profile: it would hide whose prices change.
    const isOfProject = connectionOptions.project !== undefined
    const project = isOfProject ? { project_id: await connection.projectId() } : {}
    const scope = isOfProject ? 'ProjectPrices' : 'Prices'
    const listed = async (command: string, args: { project_id?: string }): Promise<Price[]> => {
      const prices: Price[] = []
      const list = await caller.list(caller.commandById(command), args, { signal: interruption })
      for await (const price of list) prices.push(price)
      return prices
    }
    const current = await listed(`list${scope}`, project)
    const broader = isOfProject ? await listed('listPrices', {}) : []
    const changes = changesOf(wanted, { current, broader }, Date.now())
    if (settings.isHuman && !settings.isQuiet) for (const line of lines(changes, book.date)) note(line)
    if (plan || changes.length === 0) {
      if (!settings.isHuman) await printLine(JSON.stringify(answer(book.date, changes, 0)))
      return EXIT.done
    }
    await confirm(changes.length, yes)
    for (let at = 0; at < changes.length; at += MAX_PRICES) {
      const prices = changes
        .slice(at, at + MAX_PRICES)
        .map(({ price, effective_from }) => ({ ...price, effective_from }))
      await caller.callById(`put${scope}`, { ...project, prices }, { signal: interruption })
    }
    if (settings.isHuman) note(`${changes.length} prices added`)
    else await printLine(JSON.stringify(answer(book.date, changes, changes.length)))
    return EXIT.done
  } catch (error) {
    if (interruption.aborted) return (interruption.reason as Failure).exitCode
    return reportError(error, { connection, isJson: options.json })
  }
}

const itemOf = ({ provider, model, component }: BookPrice): string => JSON.stringify([provider, model, component])
const variantOf = ({ tier, above_tokens, unit }: BookPrice): string => JSON.stringify([tier, above_tokens, unit])

/** Returns the prices of a book without those that a price from a later day has replaced. */
function withoutReplaced(book: readonly BookPrice[], now: number): BookPrice[] {
  const startOf = ({ effective_from }: BookPrice): number => (effective_from ? Date.parse(effective_from) : -Infinity)
  const keyOf = (price: BookPrice): string => itemOf(price) + variantOf(price)
  const latest = new Map<string, number>()
  for (const price of book)
    if (startOf(price) <= now) latest.set(keyOf(price), Math.max(startOf(price), latest.get(keyOf(price)) ?? -Infinity))
  return book.filter(price => startOf(price) > now || startOf(price) === latest.get(keyOf(price)))
}

/**
 * Returns the prices of a book that differ from the prices in effect. A price of an item that has one already, also a broader
 * one, starts later, because recorded usage keeps its price.
 */
function changesOf(
  book: readonly BookPrice[],
  { current, broader }: Record<'current' | 'broader', readonly Price[]>,
  now: number,
): Change[] {
  const isEffective = ({ effective_from, effective_until, resource }: Price): boolean =>
    resource === null && Date.parse(effective_from) <= now && (!effective_until || Date.parse(effective_until) > now)
  const byItem = Map.groupBy(
    current.filter(({ resource }) => resource === null),
    itemOf,
  )
  const priced = new Set(
    [...current, ...broader]
      .filter(({ resource, effective_from }) => resource === null && Date.parse(effective_from) <= now)
      .map(itemOf),
  )
  const soon = new Date(now + LEAD_MS).toISOString()
  return withoutReplaced(book, now).flatMap((price): Change[] => {
    const ofItem = byItem.get(itemOf(price)) ?? []
    const same = ofItem
      .filter(each => variantOf(each) === variantOf(price))
      .sort((a, b) => Date.parse(b.effective_from) - Date.parse(a.effective_from))
    const start = price.effective_from
    if (start !== undefined && Date.parse(start) > now) {
      const planned = same.find(each => Date.parse(each.effective_from) === Date.parse(start))
      return planned?.unit_price === price.unit_price ? [] : [{ price, effective_from: start, from: null }]
    }
    const before = same.find(isEffective)
    // A price that starts soon comes from an import a few minutes ago.
    if (same.some(each => each.unit_price === price.unit_price && Date.parse(each.effective_from) > now)) return []
    if (before?.unit_price === price.unit_price) return []
    const isFirst = !priced.has(itemOf(price))
    return [{ price, effective_from: isFirst ? new Date(now).toISOString() : soon, from: before?.unit_price ?? null }]
  })
}

function lines(changes: readonly Change[], date: string): string[] {
  if (changes.length === 0) return [`the prices are equal to the price book of ${date}`]
  return [
    `price book of ${date}, USD per million units:`,
    ...changes.map(({ price, effective_from, from }) => {
      const { provider, model, component, tier, above_tokens, unit_price } = price
      const only = [
        tier && `tier ${tier}`,
        above_tokens && `above ${above_tokens} tokens`,
        price.effective_from && `from ${effective_from}`,
      ]
      const change = from === null ? million(unit_price) : `${million(from)} -> ${million(unit_price)}`
      return visible(
        [from === null ? '+' : '~', provider, model, component, change, ...only.filter(Boolean)].join('  '),
      )
    }),
  ]
}

/** Returns a price per million units, without the digits that a multiplication of doubles adds. */
const million = (price: number): string => String(Number((price * 1e6).toPrecision(12)))

const answer = (date: string, changes: readonly Change[], added: number) => ({
  date,
  changes: changes.map(({ price, effective_from, from }) => ({ ...price, effective_from, replaces: from })),
  added,
})

async function confirm(count: number, yes: boolean | undefined): Promise<void> {
  if (yes) return
  if (!canAsk()) throw new UsageError(`${count} prices would be added`, 'Add --yes, or --plan to see them.')
  await requireYes(`Add ${count} prices?`)
}
