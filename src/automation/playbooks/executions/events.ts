import { z } from 'zod'
import { withValue } from '#automation/orchestrations/runs/engine/run-state.ts'
import { isReservedEventName } from '#automation/triggers/events.ts'
import { DispatchedEvent, type EventSubscriber } from '#control/webhooks/event-subscribers.ts'
import { policyAllowsEvent } from '#control/webhooks/matching.ts'
import type { Config } from '#core/base/config.ts'
import { eventLoopYielder } from '#core/base/event-loop.ts'
import { parseExactJson } from '#core/base/exact-json.ts'
import { injectFault } from '#core/base/fault-injection.ts'
import { type Fragment, type Queryable, sql } from '#core/db/sql.ts'
import { withTriggerChain } from '#core/db/trigger-chain.ts'
import { ExpressionError, evaluateBriefly, truthy } from '#core/expressions/evaluate.ts'
import { type PrincipalRecord, triggerChainOf } from '#core/iam/caller.ts'
import { compileDocument } from '#core/iam/policy.ts'
import { workQueue } from '#core/queues/queue.ts'
import { handler, type JobContext } from '#core/work/handler.ts'
import { patternMatches } from '#core/writes/events.ts'
import { completeEventWait } from './command.ts'
import type { EventWait } from './model.ts'

// Events that executions wait for. Dispatch only matches patterns and sends a message of the project, whose handler
// evaluates the filters. Waits of one project therefore do not delay the dispatch of others.

const retry = { limit: 20 }

/** Event to match against the executions that wait for one of the patterns, after execution id `after`. */
const eventQueue = workQueue('execution.match_event', {
  message: z.object({ project_id: z.string(), event_id: z.string(), patterns: z.array(z.string()), after: z.string() }),
  project: message => message.project_id,
  concern: 'orchestration',
  retry,
})

/** Event wait to complete with a matching event. */
const waitCompletionQueue = workQueue('execution.complete_event_wait', {
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

/** Executions matched per message. */
const BATCH = 200

const patternRow = sql.type(z.strictObject({ project_id: z.string(), pattern: z.string() }))

/** Lists the patterns that executions of projects wait for. By playbook_executions_event_wait. */
const listPatterns = (db: Queryable, projectIds: readonly string[]) =>
  db.any(patternRow`
    select distinct project_id, event_wait ->> 'pattern' as pattern from playbook_executions
    where project_id = any(${sql.array([...projectIds], 'text')}) and event_wait is not null`)

/** Condition: a project has an execution that waits for an event. By playbook_executions_event_wait. */
export const hasEventWait = (project: Fragment): Fragment => sql.fragment`exists (
  select from playbook_executions g where g.project_id = ${project} and g.event_wait is not null)`

export const executionEvents: EventSubscriber = {
  active: hasEventWait,
  async take(tx, _services, events) {
    const waits = await listPatterns(tx, [...new Set(events.map(({ project_id }) => project_id))])
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

const StoredEvent = DispatchedEvent.extend({
  envelope: z.string().nullable(),
  causation: z.array(z.string()).nullable(),
  created_at: z.string(),
})
type StoredEvent = z.output<typeof StoredEvent>
const eventRow = sql.type(StoredEvent)

const findEvent = (db: Queryable, id: string): Promise<StoredEvent | null> =>
  db.maybeOne(eventRow`
    select id, project_id, name, resource_type, resource_id, null as tags, envelope, causation, created_at
    from events where id = ${id}`)

const EventWaiter = z.object({
  id: z.string(),
  case_id: z.string(),
  event_wait: z.custom<EventWait>(),
  orchestration_run_id: z.string(),
  /** Input of the step. Null if it is large. */
  input: z.record(z.string(), z.unknown()).nullable(),
  isLarge: z.boolean(),
  authority: z.custom<PrincipalRecord>(),
  policy: z.unknown(),
})
type EventWaiter = z.output<typeof EventWaiter>
const eventWaiterRow = sql.type(EventWaiter)

/** Maximum bytes of an input that is read in the batch. Larger inputs are read separately. */
const SMALL_INPUT_BYTES = 32 * 1024

/**
 * Lists the executions of a project that wait for one of the patterns, after an id, with the data of their filters. By
 * playbook_executions_event_wait and primary keys.
 */
const listEventWaiters = (db: Queryable, project: string, patterns: readonly string[], after: string) =>
  db.any(eventWaiterRow`
    select e.id, e.case_id, e.event_wait, e.orchestration_run_id, r.authority, y.document as policy,
      case when octet_length(s.input::text) <= ${SMALL_INPUT_BYTES} then s.input end as input,
      coalesce(octet_length(s.input::text) > ${SMALL_INPUT_BYTES}, false) as "isLarge"
    from (
      select id, case_id, event_wait, orchestration_run_id from playbook_executions
      where project_id = ${project} and event_wait ->> 'pattern' = any(${sql.array([...patterns], 'text')})
        and event_wait is not null and id > ${after}
      order by id limit ${BATCH}) e
    join playbook_execution_steps s on s.execution_id = e.id and s.key = e.event_wait ->> 'step_key'
    join orchestration_runs r on r.id = e.orchestration_run_id
    left join policies y on y.id = r.authority #>> '{via,policy_id}'
    order by e.id`)

const inputRow = sql.type(z.object({ input: z.record(z.string(), z.unknown()).nullable() }))

const readStepInput = (db: Queryable, { id, event_wait }: EventWaiter) =>
  db.maybeOneFirst(inputRow`
    select input from playbook_execution_steps where execution_id = ${id} and key = ${event_wait.step_key}`)

/** Returns the root of a filter: the envelope with the values of the step input, whose keys are paths. */
function filterRoot(envelope: object, input: Record<string, unknown> | null): object {
  // Longer paths first: a shorter path replaces the values within it.
  const paths = Object.keys(input ?? {}).sort((one, other) => other.length - one.length)
  return paths.reduce((root, path) => withValue(root, path.split('.'), input?.[path]), { ...envelope })
}

/** Whether an event passes a filter. False if the filter cannot be evaluated. */
function passesFilter(filter: unknown, root: object): boolean {
  try {
    return filter == null || truthy(evaluateBriefly(filter, root))
  } catch (error) {
    if (!(error instanceof ExpressionError)) throw error
    return false
  }
}

/**
 * Returns the trigger chain of the work that an event causes in an execution; null if the event does not match its
 * wait.
 */
async function matchEvent(
  db: Queryable,
  waiter: EventWaiter,
  event: StoredEvent,
  envelope: any,
): Promise<readonly string[] | null> {
  const { id, orchestration_run_id, event_wait, authority, policy } = waiter
  // Events of the execution itself and earlier events do not match.
  if (
    [id, orchestration_run_id].includes(event.resource_id) ||
    new Date(event.created_at) <= new Date(event_wait.since)
  )
    return null
  const { via } = authority
  const isBounded = via?.type === 'trigger' && via.policy_id !== null
  if (isBounded && !policyAllowsEvent(compileDocument(policy), event, envelope.data?.tags)) return null
  const input = waiter.isLarge ? await readStepInput(db, waiter) : waiter.input
  if (!passesFilter(event_wait.filter, filterRoot(envelope, input))) return null
  return [...new Set([...triggerChainOf(authority), ...(event.causation ?? [])])]
}

type EventMessage = z.output<typeof eventQueue.message>

/** Matches an event against one batch of waiting executions and queues the next batch. */
async function matchBatch(
  { project_id, event_id, patterns, after }: EventMessage,
  { services }: JobContext,
): Promise<void> {
  const event = await findEvent(services.pool, event_id)
  if (!event?.envelope) return
  const envelope = parseExactJson(event.envelope)
  const waiters = await listEventWaiters(services.pool, project_id, patterns, after)
  const yieldToEventLoop = eventLoopYielder()
  const matches: { chain: readonly string[]; message: z.output<typeof waitCompletionQueue.message> }[] = []
  for (const waiter of waiters) {
    await yieldToEventLoop()
    const chain = await matchEvent(services.pool, waiter, event, envelope)
    const { id, case_id, event_wait } = waiter
    if (chain) matches.push({ chain, message: { project_id, id, case_id, since: event_wait.since, event_id } })
  }
  const isMore = waiters.length === BATCH
  if (matches.length === 0 && !isMore) return
  await injectFault(services, 'event_judged')
  await services.write(async tx => {
    for (const { chain, message } of matches) withTriggerChain(chain, () => tx.send(waitCompletionQueue, message))
    if (isMore) tx.send(eventQueue, { project_id, event_id, patterns, after: waiters[waiters.length - 1].id })
  })
}

/** The lease of an event message must not outlast the lease of a node execution that it completes. */
const leaseSeconds = (config: Config): number => config.ORCHESTRATION_NODE_LEASE_SECONDS

export const eventHandlers = [
  handler(eventQueue, { concurrency: 2, leaseSeconds }, matchBatch),
  handler(waitCompletionQueue, { concurrency: 4, leaseSeconds }, async ({ event_id, ...wait }, { services }) => {
    const envelope = (await findEvent(services.pool, event_id))?.envelope
    if (!envelope) return
    await services.write(async tx => {
      await completeEventWait(tx, services, wait, envelope)
      await injectFault(services, 'event_taken')
    })
    await injectFault(services, 'event_answered')
  }),
]
