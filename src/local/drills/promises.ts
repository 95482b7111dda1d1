import type { Kind } from './kinds.ts'
import type { Ledger } from './load.ts'
import { DELIVERED, type KindReport, type Observed } from './reconcile.ts'

/** Everything by which promises are judged. */
export type Evidence = {
  kinds: readonly Kind[]
  reports: readonly KindReport[]
  ledger: Ledger
  observed: Observed
  refusals: readonly string[]
  /** What did not progress. */
  stalls: readonly string[]
  /** Processes that did not exit with 0 after SIGTERM. */
  uncleanStops: readonly string[]
}

/** What breaks a promise, empty if it is held. */
type Judge = (evidence: Evidence) => string[]

const differs = (what: string, found: number, expected: number): string[] =>
  found === expected ? [] : [`${what}: ${found}, expected ${expected}`]

const expectedUsage = ({ kinds, ledger }: Evidence, meter: 'llm_tokens' | 'tool_execution'): number =>
  kinds.reduce((sum, { name, usage }) => sum + (usage?.[meter] ?? 0) * ledger[name].acknowledged.length, 0)

const quantityOf = (rows: readonly any[], name: string): number =>
  rows
    .flatMap(({ components }) => components as { component: string; quantity: number }[])
    .reduce((sum, { component, quantity }) => (component === name ? sum + Number(quantity) : sum), 0)

/** The promises of docs/operations.md that drills check, by the names in its table. */
export const PROMISES = {
  'nothing-lost': ({ reports }) => reports.flatMap(({ kind, lost }) => (lost > 0 ? [`${kind}: ${lost} lost`] : [])),

  'nothing-doubled': ({ reports, observed, ledger }) => [
    ...reports.flatMap(({ kind, doubled }) => (doubled > 0 ? [`${kind}: ${doubled} doubled`] : [])),
    ...(ledger['session turns']
      ? differs('messages', observed.messages, 2 * ledger['session turns'].acknowledged.length)
      : []),
  ],

  resumes: ({ stalls }) => [...stalls],

  'usage-exact': evidence => {
    const { usageEvents, usageTotals, internals } = evidence.observed
    const of = (meter: string) => usageEvents.rows.filter(({ meter_type }) => meter_type === meter)
    const events = (rows: readonly any[]) => rows.reduce((sum, { event_count }) => sum + event_count, 0)
    return [
      ...(['llm_tokens', 'tool_execution'] as const).flatMap(meter =>
        differs(`usage events of ${meter}`, events(of(meter)), expectedUsage(evidence, meter)),
      ),
      ...differs('events of the usage report', usageTotals.event_count, events(usageEvents.rows)),
      ...differs(
        'output tokens of the usage report',
        usageTotals.output_tokens,
        quantityOf(of('llm_tokens'), 'output_tokens'),
      ),
      ...(internals ? differs('days whose sums differ from their events', internals.wrongUsageDays, 0) : []),
    ]
  },

  'lists-exact': ({ observed }) => {
    const lists = { ...observed.records, events: observed.events, deliveries: observed.deliveries }
    return Object.entries(lists).flatMap(([name, { rows, total }]) => differs(`total of ${name}`, total, rows.length))
  },

  'events-delivered': ({ observed, ledger }) => {
    const { rows } = observed.deliveries
    const delivered = new Set(
      rows.filter(({ status }) => status === 'completed').map(({ payload }) => payload?.data?.id as string),
    )
    const caused = ledger[DELIVERED.kind]?.acknowledged ?? []
    return [
      ...differs('events', observed.events.total, caused.length),
      ...differs('events without a completed delivery', caused.filter(({ id }) => !delivered.has(id)).length, 0),
      ...(observed.internals ? differs('events that were not dispatched', observed.internals.undispatched, 0) : []),
    ]
  },

  'audit-intact': ({ observed: { audit } }) => [
    ...(audit.valid ? [] : ['the hash chain is broken']),
    ...(audit.checked > 0 ? [] : ['the hash chain is empty']),
  ],

  'no-dead-letters': ({ observed }) =>
    observed.internals ? differs('dead letters', observed.internals.deadLetters, 0) : [],

  available: ({ refusals }) =>
    refusals.length > 0 ? [`${refusals.length} failed requests, such as ${refusals[0]}`] : [],

  'stops-cleanly': ({ reports, kinds, ledger, observed, uncleanStops }) => [
    ...uncleanStops,
    ...reports.flatMap(({ kind, repeated }) =>
      repeated > 0 && kinds.some(({ name, once }) => name === kind && !once)
        ? [`${kind}: ${repeated} repeated calls`]
        : [],
    ),
    ...kinds.flatMap(({ name, model, once }) =>
      model && !once
        ? differs(
            `model calls of ${name}`,
            observed.modelCalls[model.lane],
            model.count * ledger[name].acknowledged.length,
          )
        : [],
    ),
  ],
} satisfies Record<string, Judge>

export type PromiseName = keyof typeof PROMISES

/** Promises that every drill checks. */
export const ALWAYS: readonly PromiseName[] = [
  'nothing-lost',
  'nothing-doubled',
  'resumes',
  'usage-exact',
  'lists-exact',
  'events-delivered',
  'audit-intact',
  'no-dead-letters',
]

export type PromiseReport = { name: PromiseName; held: boolean; broken_by: string[] }

/** Judges promises by the evidence of a drill. */
export const judge = (names: readonly PromiseName[], evidence: Evidence): PromiseReport[] =>
  names.map(name => {
    const broken_by = (PROMISES[name] as Judge)(evidence)
    return { name, held: broken_by.length === 0, broken_by }
  })
