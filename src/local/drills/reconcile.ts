import { type Credential, type Listed, must, readAll } from './api.ts'
import type { Deployment } from './deployment.ts'
import { query } from './deployment.ts'
import { type Kind, modelCalls, type Prepared } from './kinds.ts'
import type { Ledger } from './load.ts'
import type { Call, Receiver } from './receiver.ts'

/** Everything that the API, the doubles and the database have of the work of a drill. */
export type Observed = {
  records: Record<string, Listed>
  calls: readonly Call[]
  /** Model calls by lane. */
  modelCalls: Record<string, number>
  events: Listed
  deliveries: Listed
  usageEvents: Listed
  /** Totals of the usage report. */
  usageTotals: { event_count: number; output_tokens: number }
  audit: { valid: boolean; checked: number }
  messages: number
  /** Read from the database; null for a deployment that the drill did not start. */
  internals: { deadLetters: number; undispatched: number; wrongUsageDays: number } | null
}

/** The balance of one kind of work. */
export type KindReport = {
  kind: string
  acknowledged: number
  /** Acknowledged work that is missing, failed, or lacks a call, and requests without an answer until the end. */
  lost: number
  /** Records, calls or events that no acknowledged request accounts for. */
  doubled: number
  /** Calls that were made again with the same key, which the receiver recognizes. */
  repeated: number
  /** Longest time from the first request to its answer, and to the end of the work. */
  longest_answer_ms: number
  longest_wait_ms: number
  errors: Record<string, number>
}

/** The event and the kind of work that causes it. */
export const DELIVERED = { kind: 'webhook events', event: 'actors.created', path: '/hook' }

/** Reads everything that is reconciled. */
export async function observe(
  credential: Credential,
  kinds: readonly Kind[],
  prepared: Prepared,
  doubles: { receiver: Receiver; doubleUrl: string },
  deployment: Deployment | null,
  omitsUsageSums = false,
): Promise<Observed> {
  const { project_id, webhook_id, session_id } = prepared
  const records: Observed['records'] = {}
  for (const kind of kinds) records[kind.name] = await readAll(credential, kind.list(prepared))
  const lanes = kinds.flatMap(({ model }) => (model ? [model.lane] : []))
  const counts = await Promise.all(lanes.map(lane => modelCalls(doubles.doubleUrl, lane)))
  const usageEvents = await readAll(credential, '/usage/events')
  const { totals } = await must(credential, 'GET', '/usage/aggregate?group_by=meter_type')
  return {
    records,
    calls: [...doubles.receiver.calls],
    modelCalls: Object.fromEntries(lanes.map((lane, index) => [lane, counts[index]])),
    events: await readAll(credential, `/events?event=${DELIVERED.event}`),
    deliveries: await readAll(credential, `/webhook-deliveries?webhook_id=${webhook_id}`),
    usageEvents,
    usageTotals: totals,
    audit: await must(credential, 'GET', `/audit-log/verify?project_id=${project_id}`),
    messages: (await must(credential, 'GET', `/sessions/${session_id}/messages?limit=1`)).total,
    internals: deployment && (await readInternals(deployment, omitsUsageSums)),
  }
}

async function readInternals(deployment: Deployment, omitsUsageSums: boolean): Promise<Observed['internals']> {
  const [row] = await query(
    deployment.databaseUrl,
    `select (select count(*)::int from pgboss.job where name like '%.dead') as dead,
      (select count(*)::int from events where dispatched_at is null) as undispatched`,
  )
  if (omitsUsageSums) return { deadLetters: row.dead, undispatched: row.undispatched, wrongUsageDays: 0 }
  const { wrong } = JSON.parse(await deployment.command(['reprocess', 'usage', '--dry-run', '--json']))
  return { deadLetters: row.dead, undispatched: row.undispatched, wrongUsageDays: wrong }
}

/** The number of acknowledged work, deliveries and events that have not ended. */
export async function countOpen(
  credential: Credential,
  kinds: readonly Kind[],
  prepared: Prepared,
  ledger: Ledger,
): Promise<number> {
  let open = 0
  for (const kind of kinds) {
    const { rows } = await readAll(credential, kind.list(prepared))
    open += Math.max(0, ledger[kind.name].acknowledged.length - rows.length)
    open += rows.filter(row => kind.outcome(row) === null).length
  }
  const queued = `/webhook-deliveries?webhook_id=${prepared.webhook_id}&status=queued&limit=1`
  open += (await must(credential, 'GET', queued)).total
  const events = await readAll(credential, `/events?event=${DELIVERED.event}`)
  return open + events.rows.filter(({ dispatched_at }) => dispatched_at === null).length
}

/** Groups the keys of calls by the acknowledged ID that they contain; keys without one are in the group null. */
function groupKeys(calls: readonly Call[], path: string, ids: readonly string[], idOf: (call: Call) => string | null) {
  const known = new Set(ids)
  const groups = new Map<string | null, Set<string>>()
  let count = 0
  for (const call of calls) {
    if (call.path !== path) continue
    count++
    const found = idOf(call)
    const id = found !== null && known.has(found) ? found : null
    groups.set(id, (groups.get(id) ?? new Set()).add(call.key))
  }
  const distinct = [...groups.values()].reduce((sum, keys) => sum + keys.size, 0)
  return { groups, repeated: count - distinct }
}

/** IDs consist of a prefix and 26 characters. */
const idIn = (key: string): string | null => key.split(/[^0-9a-z_]/).find(part => /_[0-9a-z]{26}$/.test(part)) ?? null

/** Compares the acknowledged work of a kind with its records and calls. */
export function balance(kind: Kind, ledger: Ledger, observed: Observed): KindReport {
  const { acknowledged, errors, unanswered } = ledger[kind.name]
  const rows = new Map(observed.records[kind.name].rows.map(row => [row.id as string, row]))
  const ids = acknowledged.map(({ id }) => id)
  const isEvent = kind.name === DELIVERED.kind
  const expected = isEvent ? { path: DELIVERED.path, count: 1 } : kind.calls
  const { groups, repeated } = expected
    ? groupKeys(observed.calls, expected.path, ids, call => (isEvent ? call.resource : idIn(call.key)))
    : { groups: new Map<string | null, Set<string>>(), repeated: 0 }
  const count = expected?.count ?? 0
  const keysOf = (id: string | null) => groups.get(id)?.size ?? 0
  const lost = ids.filter(id => !rows.has(id) || kind.outcome(rows.get(id)) !== 'succeeded' || keysOf(id) < count)
  const extraCalls = ids.reduce((sum, id) => sum + Math.max(0, keysOf(id) - count), keysOf(null))
  const known = new Set(ids)
  const extraRows = [...rows.keys()].filter(id => !known.has(id)).length
  // A request that was never answered may have been executed.
  const doubledRows = Math.max(0, extraRows - unanswered) + ids.length - known.size
  const deliveredAt = new Map(observed.calls.map(({ resource, at }) => [resource, at]))
  const waits = acknowledged.map(({ id, sentAt, answeredAt }) => {
    const { completed_at, finished_at, updated_at } = rows.get(id) ?? {}
    const end = isEvent ? deliveredAt.get(id) : Date.parse(completed_at ?? finished_at ?? updated_at ?? '')
    return { answer: answeredAt - sentAt, wait: Math.max(end || 0, answeredAt) - sentAt }
  })
  return {
    kind: kind.name,
    acknowledged: ids.length,
    lost: lost.length + unanswered,
    doubled: doubledRows + extraCalls,
    repeated,
    longest_answer_ms: Math.max(0, ...waits.map(({ answer }) => answer)),
    longest_wait_ms: Math.max(0, ...waits.map(({ wait }) => wait)),
    errors,
  }
}
