import { z } from 'zod'
import type { Config } from '../../config.ts'
import { DispatchedEvent, type EventSubscriber } from '../../control/webhooks/event-subscribers.ts'
import { policyAllowsEvent } from '../../control/webhooks/matching.ts'
import { patternMatches } from '../../core/db/events.ts'
import { type Fragment, type Queryable, sql } from '../../core/db/sql.ts'
import { withTriggerChain } from '../../core/db/trigger-chain.ts'
import { ExpressionError, evaluate, reducedBudget, truthy } from '../../core/expressions/evaluate.ts'
import { type PrincipalRecord, triggerChainOf } from '../../core/iam/caller.ts'
import { compileDocument } from '../../core/iam/policy.ts'
import { handler, type JobContext } from '../../core/jobs/handler.ts'
import { workQueue } from '../../core/jobs/queue.ts'
import { eventLoopYielder } from '../../core/process/event-loop.ts'
import { injectFault } from '../../core/process/fault-injection.ts'
import { withValue } from '../runs/engine/run-state.ts'
import { isReservedEventName } from '../triggers/events.ts'
import { completeEventWait } from './command.ts'
import type { EventWait } from './model.ts'

/**
 * Events that executions wait for. Dispatch only notes for which patterns somebody waits: filters are judged by a message
 * of the project, so that the waits of one take no time of others.
 */

const retry = { limit: 20 }

/** Has executions that wait for one of some patterns judge an event, behind an id. */
const eventQueue = workQueue('execution.match_event', {
  message: z.object({ project_id: z.string(), event_id: z.string(), patterns: z.array(z.string()), after: z.string() }),
  project: message => message.project_id,
  concern: 'orchestration',
  retry,
})

/** Ends a wait with the event that came. */
const arrivalQueue = workQueue('execution.complete_event_wait', {
  message: z.object({
    project_id: z.string(),
    id: z.string(),
    case_id: z.string(),
    since: z.string(),
    event_id: z.string(),
  }),
  project: message => message.project_id,
  concern: 'orchestration',
  retry,
})

/** Executions that judge an event by one message. */
const BATCH = 200
/** Share of the budget of an expression that a filter may spend: half a millisecond. */
const SHARE = 1 / 20

const awaited = sql.type(z.strictObject({ project_id: z.string(), pattern: z.string() }))

/** The patterns that executions of projects wait for. By playbook_executions_event_wait. */
const patternsIn = (db: Queryable, projectIds: readonly string[]) =>
  db.any(awaited`
    select distinct project_id, event_wait ->> 'pattern' as pattern from playbook_executions
    where project_id = any(${sql.array([...projectIds], 'text')}) and event_wait is not null`)

/** Whether a project has an execution that waits for an event. By playbook_executions_event_wait. */
export const hasEventWait = (project: Fragment): Fragment => sql.fragment`exists (
  select from playbook_executions g where g.project_id = ${project} and g.event_wait is not null)`

export const executionEvents: EventSubscriber = {
  active: hasEventWait,
  async take(tx, _services, events) {
    const waits = await patternsIn(tx, [...new Set(events.map(({ project_id }) => project_id))])
    if (waits.length === 0) return
    const byProject = Map.groupBy(waits, ({ project_id }) => project_id)
    for (const { id: event_id, project_id, name } of events) {
      const patterns = (byProject.get(project_id) ?? [])
        .map(({ pattern }) => pattern)
        .filter(pattern => patternMatches(pattern, name))
      if (patterns.length > 0 && !isReservedEventName(name))
        tx.send(eventQueue, { project_id, event_id, patterns, after: '' })
    }
  },
}

const Event = DispatchedEvent.extend({
  envelope: z.string().nullable(),
  causation: z.array(z.string()).nullable(),
  created_at: z.string(),
})
type Event = z.output<typeof Event>
const event = sql.type(Event)

const eventOf = (db: Queryable, id: string): Promise<Event | null> =>
  db.maybeOne(event`
    select id, project_id, name, resource_type, resource_id, null as tags, envelope, causation, created_at
    from events where id = ${id}`)

const Waiting = z.object({
  id: z.string(),
  case_id: z.string(),
  event_wait: z.custom<EventWait>(),
  orchestration_run_id: z.string(),
  /** Of the step; null where it is large. */
  input: z.record(z.string(), z.unknown()).nullable(),
  isLarge: z.boolean(),
  authority: z.custom<PrincipalRecord>(),
  policy: z.unknown(),
})
type Waiting = z.output<typeof Waiting>
const waiting = sql.type(Waiting)

/** Bytes of an input that is read with those of others. */
const SMALL = 32 * 1024

/**
 * The executions of a project that wait for one of some patterns, behind an id, with what they judge events by. By
 * playbook_executions_event_wait and primary keys.
 */
const waitingBehind = (db: Queryable, project: string, patterns: readonly string[], after: string) =>
  db.any(waiting`
    select e.id, e.case_id, e.event_wait, e.orchestration_run_id, r.authority, y.document as policy,
      case when octet_length(s.input::text) <= ${SMALL} then s.input end as input,
      coalesce(octet_length(s.input::text) > ${SMALL}, false) as "isLarge"
    from (
      select id, case_id, event_wait, orchestration_run_id from playbook_executions
      where project_id = ${project} and event_wait ->> 'pattern' = any(${sql.array([...patterns], 'text')})
        and event_wait is not null and id > ${after}
      order by id limit ${BATCH}) e
    join playbook_execution_steps s on s.execution_id = e.id and s.key = e.event_wait ->> 'step_key'
    join orchestration_runs r on r.id = e.orchestration_run_id
    left join policies y on y.id = r.authority #>> '{via,policy_id}'
    order by e.id`)

const given = sql.type(z.object({ input: z.record(z.string(), z.unknown()).nullable() }))

const inputOf = (db: Queryable, { id, event_wait }: Waiting) =>
  db.maybeOneFirst(given`
    select input from playbook_execution_steps where execution_id = ${id} and key = ${event_wait.step_key}`)

/** What a filter reads: the envelope, and the values that the input of the step holds by paths. */
function rootOf(envelope: object, input: Record<string, unknown> | null): object {
  // Of two paths the longer one is within the value of the shorter one.
  const paths = Object.keys(input ?? {}).sort((one, other) => other.length - one.length)
  return paths.reduce((root, path) => withValue(root, path.split('.'), input?.[path]), { ...envelope })
}

/** Whether a filter lets an event by; one that cannot be evaluated on it does not. */
function passes(filter: unknown, root: object): boolean {
  try {
    return filter == null || truthy(evaluate(filter, root, reducedBudget(SHARE)))
  } catch (error) {
    if (!(error instanceof ExpressionError)) throw error
    return false
  }
}

/** The triggers that led to what follows an event in an execution; null where it does not wait for this one. */
async function judge(db: Queryable, found: Waiting, came: Event, envelope: any): Promise<readonly string[] | null> {
  const { id, orchestration_run_id, event_wait, authority, policy } = found
  // Its own beginning is no end of it, and neither is what happened before.
  if ([id, orchestration_run_id].includes(came.resource_id) || new Date(came.created_at) <= new Date(event_wait.since))
    return null
  const { via } = authority
  const isBounded = via?.type === 'trigger' && via.policy_id !== null
  if (isBounded && !policyAllowsEvent(compileDocument(policy), came, envelope.data?.tags)) return null
  const input = found.isLarge ? await inputOf(db, found) : found.input
  if (!passes(event_wait.filter, rootOf(envelope, input))) return null
  return [...new Set([...triggerChainOf(authority), ...(came.causation ?? [])])]
}

type Judging = z.output<typeof eventQueue.message>

async function judgeAll({ project_id, event_id, patterns, after }: Judging, { services }: JobContext): Promise<void> {
  const came = await eventOf(services.pool, event_id)
  if (!came?.envelope) return
  const envelope = JSON.parse(came.envelope)
  const found = await waitingBehind(services.pool, project_id, patterns, after)
  const breathe = eventLoopYielder()
  const arrivals: { chain: readonly string[]; message: z.output<typeof arrivalQueue.message> }[] = []
  for (const each of found) {
    await breathe()
    const chain = await judge(services.pool, each, came, envelope)
    const { id, case_id, event_wait } = each
    if (chain) arrivals.push({ chain, message: { project_id, id, case_id, since: event_wait.since, event_id } })
  }
  const isMore = found.length === BATCH
  if (arrivals.length === 0 && !isMore) return
  await injectFault(services, 'event_judged')
  await services.write(async tx => {
    for (const { chain, message } of arrivals) withTriggerChain(chain, () => tx.send(arrivalQueue, message))
    if (isMore) tx.send(eventQueue, { project_id, event_id, patterns, after: found[found.length - 1].id })
  })
}

/** An event stays with a lost worker no longer than a run that it ends the wait of. */
const leaseSeconds = (config: Config): number => config.ORCHESTRATION_NODE_LEASE_SECONDS

export const eventHandlers = [
  handler(eventQueue, { concurrency: 2, leaseSeconds }, judgeAll),
  handler(arrivalQueue, { concurrency: 4, leaseSeconds }, async ({ event_id, ...wait }, { services }) => {
    const came = await eventOf(services.pool, event_id)
    const text = came?.envelope
    if (!text) return
    await services.write(async tx => {
      await completeEventWait(tx, services, wait, text)
      await injectFault(services, 'event_taken')
    })
    await injectFault(services, 'event_answered')
  }),
]
